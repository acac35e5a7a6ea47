// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"net/netip"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

const (
	podBlock  = "10.16.0.0/16,fd00:10:16::/64"
	joinBlock = "100.64.0.0/16,fd00:100:64::/112"
)

// runWithDefaults restarts the controllers with CIDRs of the OVNCluster.
func (n *network) runWithDefaults(pods, join string) (started *subnet.Reconciler) {
	n.Helper()
	n.runWith(cache.Options{}, func(r *subnet.Reconciler) {
		var err error
		r.Defaults.PodCIDRs, err = ipfamily.ParseCIDRs(pods)
		n.Must(err)
		r.Defaults.JoinCIDRs, err = ipfamily.ParseCIDRs(join)
		n.Must(err)
		started = r
	})
	return started
}

// cidrs waits until a subnet has this cidrBlock and gateway and is ready.
func (n *network) cidrs(subnet, block, gateway string) {
	n.Helper()
	n.Eventually(func() string {
		if s := n.subnet(subnet).Spec; s.CIDRBlock != block || s.Gateway != gateway {
			return fmt.Sprintf("subnet %s has cidrBlock %s and gateway %s", subnet, s.CIDRBlock, s.Gateway)
		}
		return ""
	})
	n.condition(subnet, kubeovnv1.ConditionReady, metav1.ConditionTrue)
}

func TestDefaultSubnetsGrowToTheCIDRsOfTheCluster(t *testing.T) {
	n := start(t)
	o := n.node("n1", "192.0.2.11")
	was := n.connected(o)
	n.cidrs("ovn-default", podBlock, "10.16.0.1,fd00:10:16::1")
	n.runWithDefaults("10.16.0.0/12,fd00:10:16::/48", joinBlock)
	n.cidrs("ovn-default", "10.16.0.0/12,fd00:10:16::/48", "10.16.0.1,fd00:10:16::1")
	n.cidrs("join", joinBlock, "100.64.0.1,fd00:100:64::1")
	n.rows("Logical_Router_Port", "networks", "10.16.0.1/12 fd00:10:16::1/48", "100.64.0.1/16 fd00:100:64::1/112")
	if is := n.connected(o); fmt.Sprint(is.Addresses) != fmt.Sprint(was.Addresses) {
		t.Errorf("the node had %v and has %v", was.Addresses, is.Addresses)
	}
	n.Eventually(func() string {
		request := ipam.Request{Subnet: "ovn-default", Addresses: []netip.Addr{netip.MustParseAddr("10.31.0.7")}}
		if _, err := n.process.Allocator.Allocate("web.default", request); err != nil {
			return err.Error()
		}
		return ""
	})
}

func TestDefaultSubnetsGetASecondFamily(t *testing.T) {
	n := start(t)
	o := n.node("n1", "192.0.2.11")
	n.connected(o)
	for name, block := range map[string]string{"ovn-default": "10.16.0.0/16", "join": "100.64.0.0/16"} {
		s := n.subnet(name)
		n.change(s, func() {
			s.Spec.CIDRBlock, s.Spec.ExcludeIPs = block, nil
			s.Spec.Gateway = map[string]string{"ovn-default": "10.16.0.1", "join": "100.64.0.1"}[name]
		})
	}
	n.runWithDefaults(podBlock, joinBlock)
	n.cidrs("ovn-default", podBlock, "10.16.0.1,fd00:10:16::1")
	n.cidrs("join", joinBlock, "100.64.0.1,fd00:100:64::1")
	n.Eventually(func() string {
		if got := n.connected(o).Addresses; len(got) != 2 || got[0].String() != "100.64.0.2" {
			return fmt.Sprintf("the node has %v", got)
		}
		return ""
	})
}

// A subnet that cannot grow stays valid, so that new pods get addresses. It grows when the cause is removed.
func TestADefaultSubnetThatCannotGrowStays(t *testing.T) {
	n := start(t)
	n.cidrs("ovn-default", podBlock, "10.16.0.1,fd00:10:16::1")
	other := n.ready("other", kubeovnv1.SubnetSpec{CIDRBlock: "10.17.0.0/24"})
	inside := n.host("n1", "10.17.9.9")
	subnets := n.runWithDefaults("10.16.0.0/15,fd00:10:16::/64", joinBlock)
	blocked := func(why string) {
		t.Helper()
		why = "network.podCIDRs of the OVNCluster are 10.16.0.0/15,fd00:10:16::/64, and subnet ovn-default stays " + podBlock + ": cidrBlock 10.16.0.0/15 " + why
		n.Event(n.subnet("ovn-default"), eventsv1.Event{Reason: "SubnetNotGrown", Type: "Warning", Note: why})
		n.Eventually(func() string {
			if got := subnets.NotGrown(); len(got) != 1 || got[0] != why {
				return fmt.Sprintf("it reports %q", got)
			}
			return ""
		})
		n.cidrs("ovn-default", podBlock, "10.16.0.1,fd00:10:16::1")
	}
	blocked("holds 10.17.9.9, the address of node n1: choose another one")
	n.setAddresses(inside, "192.0.2.11")
	n.Delete(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "node-n1"}})
	blocked("overlaps with 10.17.0.0/24 of subnet other in the same VPC: choose another one")
	n.Delete(other)
	n.cidrs("ovn-default", "10.16.0.0/15,fd00:10:16::/64", "10.16.0.1,fd00:10:16::1")
	if got := subnets.NotGrown(); len(got) > 0 {
		t.Errorf("it reports %q", got)
	}
}

// Users may give default subnets other CIDRs than the OVNCluster has.
func TestOtherCIDRsOfADefaultSubnetStay(t *testing.T) {
	n := start(t)
	n.cidrs("ovn-default", podBlock, "10.16.0.1,fd00:10:16::1")
	s := n.subnet("ovn-default")
	n.change(s, func() { s.Spec.CIDRBlock = "10.16.0.0/14,fd00:10:16::/64" })
	n.runWithDefaults("10.16.0.0/15,fd00:10:17::/64", joinBlock)
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.Rests("subnet")
	n.cidrs("ovn-default", "10.16.0.0/14,fd00:10:16::/64", "10.16.0.1,fd00:10:16::1")
}
