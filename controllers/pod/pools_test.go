// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
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
