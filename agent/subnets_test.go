// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/host"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/nodetest"
	"github.com/kiln-net/kiln/internal/validation"
)

func subnetOf(name, cidrs string) *v1.Subnet {
	return &v1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.SubnetSpec{CIDRBlock: cidrs}}
}

// An invalid spec may contain the address of the API server, or of a network that the node uses.
func TestASpecThatIsWrongChangesNothingOnTheNode(t *testing.T) {
	n := serving(t)
	wrong := &validation.Problem{Reason: validation.ReasonCIDRConflict, Message: "it holds the address of the API server"}
	wantRoutes(n, true, "10.16.0.0/16", "fd00:10:16::/112")
	unseen := subnetOf("unseen", "192.0.2.0/24")
	must(t, n.api.Create(t.Context(), unseen))
	refused := subnetOf("refused", "203.0.113.0/24")
	must(t, n.api.Create(t.Context(), refused))
	n.judge(refused, wrong)
	n.judge(n.changeOnly("ovn-default", func(s *v1.SubnetSpec) { s.CIDRBlock, s.NATOutgoing = "198.51.100.0/24", false }), wrong)

	n.create(subnetOf("later", "10.21.0.0/16"))
	wantRoutes(n, true, "10.21.0.0/16", "10.16.0.0/16", "fd00:10:16::/112")
	wantRoutes(n, false, "192.0.2.0/24", "203.0.113.0/24", "198.51.100.0/24")
	for text, there := range map[string]bool{"10.16.0.0/16": true, "192.0.2.0/24": false, "203.0.113.0/24": false, "198.51.100.0/24": false} {
		n.eventually("nftables has no invalid entries", func() bool { return strings.Contains(ruleset(t), text) == there })
	}

	n.judge(unseen, nil)
	wantRoutes(n, true, "192.0.2.0/24")
	n.change("ovn-default", func(s *v1.SubnetSpec) { s.CIDRBlock = "10.16.0.0/16,fd00:10:16::/112" })
	for i, change := range []func(*v1.SubnetSpec){
		func(s *v1.SubnetSpec) { s.Gateway = "10.99.0.1" },
		func(s *v1.SubnetSpec) { s.CIDRBlock = "198.51.100.0/24" },
	} {
		n.judge(n.changeOnly("ovn-default", change), wrong)
		n.agent.Kill()
		n.startAgent()
		n.waitReady()
		marker := fmt.Sprintf("10.%d.0.0/16", 22+i)
		n.create(subnetOf(fmt.Sprintf("marker-%d", i), marker))
		wantRoutes(n, true, marker, "10.16.0.0/16", "fd00:10:16::/112")
		wantRoutes(n, false, "203.0.113.0/24", "198.51.100.0/24")
		n.eventually("pods are still known", func() bool {
			return strings.Contains(ruleset(t), marker) && strings.Contains(ruleset(t), "10.16.0.0/16")
		})
	}
	if !hasAddress(host.JoinInterface, "100.64.0.2/16") {
		t.Error("ovn0 has lost its address")
	}
}

// A restarted agent, a rebooted node and a new node all use the validated spec from the status, because they have no state of their own.
func TestANodeKnowsWhatWasRightWithoutHavingSeenIt(t *testing.T) {
	n := serving(t)
	n.create(subnetOf("second", "10.21.0.0/16,fd00:10:21::/112"))
	wantRoutes(n, true, "10.21.0.0/16")
	n.agent.Kill()
	wrong := &validation.Problem{Reason: validation.ReasonCIDRConflict, Message: "it holds the address of the API server"}
	for _, name := range []string{"ovn-default", "second"} {
		n.judge(n.changeOnly(name, func(s *v1.SubnetSpec) { s.CIDRBlock, s.NATOutgoing = "198.51.100.0/24", false }), wrong)
	}
	for _, booted := range []bool{false, true} {
		if booted {
			n.agent.Kill()
			must(t, netlink.LinkSetDown(n.link(host.JoinInterface)))
			nodetest.NFT(t, "delete table inet "+host.NATTable)
		}
		n.startAgent()
		n.waitReady()
		wantRoutes(n, true, "10.16.0.0/16", "fd00:10:16::/112", "10.21.0.0/16", "fd00:10:21::/112")
		wantRoutes(n, false, "198.51.100.0/24")
		if out := nodetest.NFT(t, "list set inet "+host.NATTable+" outgoing4"); !strings.Contains(out, "10.16.0.0/16") {
			t.Errorf("packets that leave the default subnet are not translated: %s", out)
		}
	}
}

func (n *node) link(name string) netlink.Link {
	n.Helper()
	link, err := netlink.LinkByName(name)
	must(n.TB, err)
	return link
}

// The subnet exists, and its pods work, until the last pod is deleted.
func TestADeletedSubnetIsRoutedUntilItIsGone(t *testing.T) {
	n := serving(t)
	used := subnetOf("used", "10.21.0.0/16")
	used.Finalizers = []string{"kubeovn.io/test"}
	n.create(used)
	wantRoutes(n, true, "10.21.0.0/16")
	must(t, n.api.Delete(t.Context(), used))
	n.create(subnetOf("later", "10.22.0.0/16"))
	wantRoutes(n, true, "10.22.0.0/16", "10.21.0.0/16")
	must(t, n.api.Get(t.Context(), client.ObjectKeyFromObject(used), used))
	used.Finalizers = nil
	must(t, n.api.Update(t.Context(), used))
	wantRoutes(n, false, "10.21.0.0/16")
}
