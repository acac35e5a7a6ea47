// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/host"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/internal/validation"
)

// An invalid spec may contain the address of the API server, or of a network that the node uses.
func TestASpecThatIsWrongChangesNothingOnTheNode(t *testing.T) {
	n := agenttest.Serving(t)
	wrong := &validation.Problem{Reason: validation.ReasonCIDRConflict, Message: "it holds the address of the API server"}
	agenttest.WantRoutes(n, true, "10.16.0.0/16", "fd00:10:16::/112")
	unseen := agenttest.SubnetOf("unseen", "192.0.2.0/24")
	must.Succeed(t, n.API.Create(t.Context(), unseen))
	refused := agenttest.SubnetOf("refused", "203.0.113.0/24")
	must.Succeed(t, n.API.Create(t.Context(), refused))
	n.Judge(refused, wrong)
	n.Judge(n.ChangeOnly("ovn-default", func(s *v1.SubnetSpec) { s.CIDRBlock, s.NATOutgoing = "198.51.100.0/24", false }), wrong)

	n.Create(agenttest.SubnetOf("later", "10.21.0.0/16"))
	agenttest.WantRoutes(n, true, "10.21.0.0/16", "10.16.0.0/16", "fd00:10:16::/112")
	agenttest.WantRoutes(n, false, "192.0.2.0/24", "203.0.113.0/24", "198.51.100.0/24")
	for text, there := range map[string]bool{"10.16.0.0/16": true, "192.0.2.0/24": false, "203.0.113.0/24": false, "198.51.100.0/24": false} {
		n.Eventually("nftables has no invalid entries", func() bool { return strings.Contains(ruleset(t), text) == there })
	}

	n.Judge(unseen, nil)
	agenttest.WantRoutes(n, true, "192.0.2.0/24")
	n.Change("ovn-default", func(s *v1.SubnetSpec) { s.CIDRBlock = "10.16.0.0/16,fd00:10:16::/112" })
	for i, change := range []func(*v1.SubnetSpec){
		func(s *v1.SubnetSpec) { s.Gateway = "10.99.0.1" },
		func(s *v1.SubnetSpec) { s.CIDRBlock = "198.51.100.0/24" },
	} {
		n.Judge(n.ChangeOnly("ovn-default", change), wrong)
		n.Agent.Kill()
		n.StartAgent()
		n.WaitReady()
		marker := fmt.Sprintf("10.%d.0.0/16", 22+i)
		n.Create(agenttest.SubnetOf(fmt.Sprintf("marker-%d", i), marker))
		agenttest.WantRoutes(n, true, marker, "10.16.0.0/16", "fd00:10:16::/112")
		agenttest.WantRoutes(n, false, "203.0.113.0/24", "198.51.100.0/24")
		n.Eventually("pods are still known", func() bool {
			return strings.Contains(ruleset(t), marker) && strings.Contains(ruleset(t), "10.16.0.0/16")
		})
	}
	if !agenttest.HasAddress(host.JoinInterface, "100.64.0.2/16") {
		t.Error("ovn0 has lost its address")
	}
}

// A restarted agent, a rebooted node and a new node all use the validated spec from the status, because they have no state of their own.
func TestARestartedNodeUsesTheValidatedSpec(t *testing.T) {
	n := agenttest.Serving(t)
	n.Create(agenttest.SubnetOf("second", "10.21.0.0/16,fd00:10:21::/112"))
	agenttest.WantRoutes(n, true, "10.21.0.0/16")
	n.Agent.Kill()
	wrong := &validation.Problem{Reason: validation.ReasonCIDRConflict, Message: "it holds the address of the API server"}
	for _, name := range []string{"ovn-default", "second"} {
		n.Judge(n.ChangeOnly(name, func(s *v1.SubnetSpec) { s.CIDRBlock, s.NATOutgoing = "198.51.100.0/24", false }), wrong)
	}
	for _, booted := range []bool{false, true} {
		if booted {
			n.Agent.Kill()
			must.Succeed(t, netlink.LinkSetDown(n.Link(host.JoinInterface)))
			nodetest.NFT(t, "delete table inet "+host.NATTable)
		}
		n.StartAgent()
		n.WaitReady()
		agenttest.WantRoutes(n, true, "10.16.0.0/16", "fd00:10:16::/112", "10.21.0.0/16", "fd00:10:21::/112")
		agenttest.WantRoutes(n, false, "198.51.100.0/24")
		if out := nodetest.NFT(t, "list set inet "+host.NATTable+" outgoing4"); !strings.Contains(out, "10.16.0.0/16") {
			t.Errorf("packets that leave the default subnet are not translated: %s", out)
		}
	}
}

// The subnet exists, and its pods work, until the last pod is deleted.
func TestADeletedSubnetIsRoutedUntilItsObjectIsRemoved(t *testing.T) {
	n := agenttest.Serving(t)
	used := agenttest.SubnetOf("used", "10.21.0.0/16")
	used.Finalizers = []string{"kubeovn.io/test"}
	n.Create(used)
	agenttest.WantRoutes(n, true, "10.21.0.0/16")
	must.Succeed(t, n.API.Delete(t.Context(), used))
	n.Create(agenttest.SubnetOf("later", "10.22.0.0/16"))
	agenttest.WantRoutes(n, true, "10.22.0.0/16", "10.21.0.0/16")
	must.Succeed(t, n.API.Get(t.Context(), client.ObjectKeyFromObject(used), used))
	used.Finalizers = nil
	must.Succeed(t, n.API.Update(t.Context(), used))
	agenttest.WantRoutes(n, false, "10.21.0.0/16")
}

// Policies admit connections of a node from its recorded addresses and from those of ovn0. A node whose address has changed uses the latter until an
// administrator accepts the new one, so that probes of isolated pods keep working.
func TestTheSourceOfRoutesIsTheRecordedAddress(t *testing.T) {
	n := agenttest.Serving(t)
	agenttest.WantRoutes(n, true, "10.16.0.0/16", "fd00:10:16::/112")
	n.Record(netip.MustParseAddr("198.51.100.1"), agenttest.NodeIPs[1].Addr())
	n.Eventually("the address of ovn0 is the source", func() bool {
		r := agenttest.RouteTo(n, "10.16.0.0/16")
		return r != nil && (r.Src == nil || r.Src.String() == agenttest.JoinIPs[0].String())
	})
	agenttest.WantRoutes(n, true, "fd00:10:16::/112")
	n.Record(agenttest.NodeIPs[0].Addr(), agenttest.NodeIPs[1].Addr())
	agenttest.WantRoutes(n, true, "10.16.0.0/16", "fd00:10:16::/112")
}
