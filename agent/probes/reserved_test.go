// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func TestAddressesOfObjects(t *testing.T) {
	proxy := corev1.LoadBalancerIPModeProxy
	service := &corev1.Service{
		Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1", "fd00::1"}, ExternalIPs: []string{"192.0.2.1"}},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: "192.0.2.2", IPMode: &proxy}, {Hostname: "lb.example"},
		}}},
	}
	if got, want := serviceAddresses(service), addresses("10.96.0.1", "fd00::1", "192.0.2.1", "192.0.2.2"); !slices.Equal(got, want) {
		t.Errorf("a Service has %v, want %v", got, want)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.5"}}},
	}
	if got, want := apiServerAddresses(slice), addresses("10.0.0.5"); !slices.Equal(got, want) {
		t.Errorf("the API server has %v, want %v", got, want)
	}
	slice.Namespace = "tenant"
	if got := apiServerAddresses(slice); got != nil {
		t.Errorf("a Service of that name elsewhere has %v", got)
	}
}

func TestResolvers(t *testing.T) {
	const content = "# of the node\nsearch example\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nnameserver nonsense\nnameserver\n"
	if got, want := resolversIn(content), addresses("192.0.2.53", "fe80::1"); !slices.Equal(got, want) {
		t.Errorf("there are resolvers %v, want %v", got, want)
	}
}
