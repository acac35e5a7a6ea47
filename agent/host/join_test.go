// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// Even if an administrator disables IPv6 on all interfaces, the interfaces of the overlay have IPv6 if the cluster does.
func TestANodeThatHasIPv6DisabledServesBothFamilies(t *testing.T) {
	const all = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
	n := agenttest.NewNode(t)
	n.Register()
	n.Allocate()
	t.Cleanup(func() { must.Succeed(t, errors.Join(os.WriteFile(all, []byte("0"), 0o644), agenttest.RestoreIPv6())) })
	must.Succeed(t, os.WriteFile(all, []byte("1"), 0o644))
	object := &corev1.Node{}
	must.Succeed(t, n.API.Get(t.Context(), client.ObjectKey{Name: agenttest.NodeName}, object))
	object.Status.Addresses = object.Status.Addresses[:1]
	must.Succeed(t, n.API.Status().Update(t.Context(), object))
	n.StartAgent()
	n.WaitReady()
	n.Router()
	first, second := n.Sandbox(n.Pod("first", 10), agenttest.NewID()), n.Sandbox(n.Pod("second", 11), agenttest.NewID())
	for _, c := range []*agenttest.Container{first, second} {
		c.MustAdd()
		t.Cleanup(c.MustDel)
		must.Succeed(t, c.Check())
	}
	for i, address := range agenttest.AddressesOf(11) {
		if from := agenttest.Exchange(t, first.NS, second.NS, address, "hello"); from != agenttest.AddressesOf(10)[i] {
			t.Errorf("a pod is seen as %s", from)
		}
		agenttest.Exchange(t, nil, second.NS, address, "hello")
	}
	must.Succeed(t, os.WriteFile(all, []byte("1"), 0o644)) // again, now on all existing interfaces
	n.Eventually("ovn0 has its address and its route again", func() bool {
		return agenttest.HasAddress(host.JoinInterface, "fd00:100:64::2/112") && agenttest.RouteTo(n, "fd00:10:16::/112") != nil
	})
	agenttest.Exchange(t, nil, second.NS, agenttest.AddressesOf(11)[1], "hello")
}
