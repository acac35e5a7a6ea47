// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package svc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kiln-net/kiln/internal/serving/budget"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

// serviceOf returns a Service of both families with its EndpointSlices.
func serviceOf(ports, endpoints int, change ...func(*corev1.Service)) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	s := &corev1.Service{}
	s.Namespace, s.Name = "ns", "s"
	s.Spec.ClusterIPs = []string{"10.96.0.1", "fd00:96::1"}
	of := []*discoveryv1.EndpointSlice{{AddressType: discoveryv1.AddressTypeIPv4}, {AddressType: discoveryv1.AddressTypeIPv6}}
	for i := range ports {
		name := fmt.Sprint("p", i)
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(1 + i)})
		for _, slice := range of {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: new(int32(1 + i))})
		}
	}
	for i := range endpoints {
		for _, slice := range of {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{map[bool]string{true: "10.16.", false: "fd00:16::"}[slice == of[0]] + fmt.Sprint(i)},
				Conditions: discoveryv1.EndpointConditions{Ready: new(i%2 == 0)},
			})
		}
	}
	for _, f := range change {
		f(s)
	}
	return s, of
}

func TestFlowsOfServices(t *testing.T) {
	sticky := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	nodePorts := func(s *corev1.Service) {
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 30000
		}
	}
	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	external := func(n int) func(*corev1.Service) {
		return func(s *corev1.Service) {
			for i := range n {
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("192.0.%d.%d", i/250, i%250))
			}
		}
	}
	for _, tt := range []struct {
		name             string
		ports, endpoints int
		change           []func(*corev1.Service)
		flows            int
	}{
		{"without endpoints", 1, 0, nil, 2 * 16},
		{"endpoints that do not serve count as well", 1, 10, nil, 2 * 26},
		{"ports times endpoints", 100, 10, nil, 2 * 100 * 26},
		{"session affinity", 1, 10, []func(*corev1.Service){sticky}, 2 * 26},
		{"node ports", 1, 10, []func(*corev1.Service){nodePorts}, 4 * 26},
		{"node ports with a Local policy", 1, 10, []func(*corev1.Service){nodePorts, local}, 4*26 + 2*20},
		{"external addresses", 2, 10, []func(*corev1.Service){external(100)}, 2 * (2 + 100) * 26},
		{"an address that is given twice", 1, 10, []func(*corev1.Service){external(1), external(1)}, 3 * 26},
		{"source ranges", 1, 0, []func(*corev1.Service){func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = make([]string, 100)
		}}, 32 + 200},
		{"addresses of an OvnEip", 2, 10, []func(*corev1.Service){func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, new("kubeovn.io/ovn-eip")
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		}}, 2 * 2 * 2 * 26},
		{"headless", 1, 10, []func(*corev1.Service){func(s *corev1.Service) { s.Spec.ClusterIPs = []string{corev1.ClusterIPNone} }}, 0},
		{"ExternalName", 1, 10, []func(*corev1.Service){func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := svc.Flows(serviceOf(tt.ports, tt.endpoints, tt.change...)); got != tt.flows {
				t.Errorf("%d flows, want %d", got, tt.flows)
			}
		})
	}
}

// TestOrdinaryServicesAreWithinTheBounds uses Services as in large clusters.
func TestOrdinaryServicesAreWithinTheBounds(t *testing.T) {
	for _, tt := range []struct{ services, ports, endpoints int }{
		{1, 3, 20_000}, {1, 1000, 40}, {1, 4000, 0}, {5000, 2, 30}, {10_000, 2, 10}, {10_000, 3, 1},
	} {
		flows := svc.Flows(serviceOf(tt.ports, tt.endpoints))
		if flows > svc.Bounds.Object || tt.services*flows > svc.Bounds.Group {
			t.Errorf("%+v cost %d flows each, %d in all", tt, flows, tt.services*flows)
		}
	}
}

// TestTheCostOfAHugeServiceIsFoundFast: a Service that exceeds its bound must not cost the controller much.
func TestTheCostOfAHugeServiceIsFoundFast(t *testing.T) {
	gate.Skip(t, gate.Long)
	s, of := serviceOf(20_000, 1000, func(s *corev1.Service) {
		for i := range 100_000 {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
		}
	})
	for len(of) < 100 {
		of = append(of, of[:2]...)
	}
	began := time.Now()
	if flows := svc.Flows(s, of); flows <= svc.Bounds.Object {
		t.Errorf("%d flows", flows)
	}
	if took := time.Since(began); took > 10*time.Second { // 0.3 s on an idle machine; a quadratic algorithm would take minutes
		t.Errorf("it took %v", took)
	}
}

func TestRefusals(t *testing.T) {
	s, _ := serviceOf(1, 1)
	for verdict, want := range map[budget.Verdict]string{
		budget.ObjectExceeded: "the Service is not served: it would cost each node 5 flows, more than 131072: divide it, or use fewer ports, addresses or endpoints",
		budget.GroupExceeded:  "the Service is not served: with its 5 flows the Services of namespace ns in Vpc v would cost each node more than 1048576 flows",
		budget.Within:         "",
	} {
		if got := svc.Refusal(s, "v", verdict, 5); !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%q, want %q", got, want)
		}
	}
	mistakes.Sees(t, 31, svc.Refusal(s, "v", budget.ObjectExceeded, 131073))
}
