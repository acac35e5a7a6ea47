// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestARouteOfSomeoneElseKeepsOneSubnetOnlyFromTheNode(t *testing.T) {
	n := agenttest.Serving(t)
	must.Succeed(t, agenttest.AddRoute("10.19.0.0/16", agenttest.Outside[0].Addr()))
	foreign := &netlink.Route{Dst: agenttest.CIDR("10.19.0.0/16"), Gw: agenttest.Outside[0].Addr().AsSlice()}
	t.Cleanup(func() { _ = netlink.RouteDel(foreign) })
	for name, block := range map[string]string{"taken": "10.19.0.0/16", "later": "10.21.0.0/16"} {
		subnet := &v1.Subnet{}
		subnet.Name, subnet.Spec.CIDRBlock = name, block
		n.Create(subnet)
	}
	agenttest.WantRoutes(n, true, "10.21.0.0/16")
	n.Eventually("the rest of the node follows", func() bool {
		return strings.Contains(ruleset(t), "10.19.0.0/16") && strings.Contains(ruleset(t), "10.21.0.0/16")
	})
	n.Eventually("the node's condition names the conflict", func() bool {
		c := n.NetworkUnavailable()
		return c != nil && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "another owner's route to 10.19.0.0/16")
	})
	if n.Health("/readyz") != http.StatusOK {
		t.Error("no pod can be attached because of one subnet")
	}
	// Failed passes are repeated for a second (k8s.OnlyEvents). After that, only the event of the deletion starts a pass.
	eventually.Stays(t, 3*time.Second, func() string {
		if c := n.NetworkUnavailable(); !strings.Contains(c.Message, "another owner's route to 10.19.0.0/16") {
			return "the condition is " + c.Message
		}
		return ""
	})
	must.Succeed(t, netlink.RouteDel(foreign))
	agenttest.WantRoutes(n, true, "10.19.0.0/16")
	n.Eventually("the conflict is resolved", func() bool { return !strings.Contains(n.NetworkUnavailable().Message, "10.19.0.0/16") })
}
