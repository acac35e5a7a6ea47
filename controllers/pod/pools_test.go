// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// Manifests for Kube-OVN give pods static addresses that an IPPool contains. The pods get them if their namespace may use the pool, and the
// pool counts them.
func TestStaticAddressesOfAPool(t *testing.T) {
	w := newWorld(t)
	w.namespace("pooled", nil)
	w.namespace("other", nil)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/120")
	for name, spec := range map[string]kubeovnv1.IPPoolSpec{
		"open":  {Subnet: "ovn-default", IPs: []string{"10.16.0.100..10.16.0.105", "fd00:10:16::64"}},
		"bound": {Subnet: "ovn-default", IPs: []string{"10.16.0.110..10.16.0.115"}, Namespaces: []string{"pooled"}},
	} {
		w.Create(&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	}
	process := w.start()
	for _, c := range []struct {
		namespace, name string
		annotations     []string
		want            string
	}{
		{"other", "static", []string{"ip_address", "10.16.0.100,fd00:10:16::64"}, "10.16.0.100,fd00:10:16::64"},
		{"other", "listed", []string{"ip_pool", "10.16.0.101", "ip_family", "ipv4"}, "10.16.0.101"},
		{"pooled", "static", []string{"ip_address", "10.16.0.110", "ip_family", "ipv4"}, "10.16.0.110"},
	} {
		if got := address(w.pod(c.namespace, c.name, c.annotations...)); got != c.want {
			t.Errorf("pod %s/%s has %s, want %s", c.namespace, c.name, got, c.want)
		}
	}

	refused := newPod("other", "bound", "ip_address", "10.16.0.111")
	w.Create(refused)
	w.warned(refused, "address 10.16.0.111 is taken by IPPool bound")

	for pool, want := range map[string]float64{"open": 2, "bound": 1} {
		if got := process.Allocator.PoolUsage("ovn-default", pool).IPv4().Using; got != want {
			t.Errorf("IPPool %s counts %v addresses, want %v", pool, got, want)
		}
	}
}

// An invalid spec of a subnet does not open its pools: a claim is checked with the addresses that the allocator has.
func TestAnInvalidSubnetOpensNoPool(t *testing.T) {
	w := newWorld(t)
	invalid := w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112").DeepCopy() // a copy: the test world uses the specs of its subnets
	w.Create(&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "bound"}, Spec: kubeovnv1.IPPoolSpec{
		Subnet: "ovn-default", Namespaces: []string{"other"}, IPs: []string{"10.16.0.100..10.16.0.110", "fd00:10:16::100"},
	}})
	w.Change(invalid, func() { invalid.Spec.CIDRBlock = "10.99.0.0/24,fd00:10:99::/112" })
	w.forgeAll(map[string]kubeovnv1.PodNetwork{
		"pool":   {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.105", "fd00:10:16::105")},
		"pool-6": {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.51", "fd00:10:16::100")},
		"honest": {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.50", "fd00:10:16::50")},
	})
	process := w.start()
	w.Eventually(func() string {
		if _, held := process.Allocator.Lookup("honest.default"); !held {
			return "the pod whose claim is one that it may make does not hold its address"
		}
		return ""
	})
	for _, name := range []string{"pool", "pool-6"} {
		if allocation, held := process.Allocator.Lookup(name + ".default"); held {
			t.Errorf("pod %s holds %v of a pool of another namespace", name, allocation.Addresses)
		}
	}
	if pools := process.Allocator.Pools("ovn-default"); !slices.Equal(pools, []string{"bound"}) {
		t.Errorf("the allocator has the pools %v, want bound", pools)
	}
}
