// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/svc"
)

// serviceShape is the size of a TCP Service of IPv4.
type serviceShape struct {
	ports, endpoints, addresses int
	sticky                      bool
}

func (s serviceShape) String() string {
	text := fmt.Sprintf("%d ports, %d endpoints, %d addresses", s.ports, s.endpoints, s.addresses)
	if s.sticky {
		text += ", affinity"
	}
	return text
}

func (s serviceShape) inputs(name string, n int) translate.ServiceInputs {
	in := translate.ServiceInputs{Vpc: kubeovnv1.DefaultVpc, Service: &corev1.Service{}}
	in.Service.Namespace, in.Service.Name = "ns", name
	if s.sticky {
		in.Service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	in.Service.Spec.ClusterIPs = []string{netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}).String()}
	for i := range s.addresses - 1 {
		in.Service.Spec.ExternalIPs = append(in.Service.Spec.ExternalIPs, netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}).String())
	}
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	for i := range s.ports {
		port := fmt.Sprint("p", i)
		in.Service.Spec.Ports = append(in.Service.Spec.Ports, corev1.ServicePort{Name: port, Port: int32(1000 + i)})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port, Port: new(int32(2000 + i))})
	}
	for i := range s.endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 17, byte(i >> 8), byte(i)}).String()}})
	}
	in.Slices = []*discoveryv1.EndpointSlice{slice}
	return in
}

// TestFlowsOfServices counts the flows that ovn-controller installs for Services in a VPC of five subnets. svc.Flows
// must not be less, since it bounds Services.
func TestFlowsOfServices(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	chassis := applySubjects(e, northd, 1)
	applySwitches(e, 5)
	before := chassis.Flows()
	for _, shape := range []serviceShape{
		{ports: 1, addresses: 1},
		{ports: 10, endpoints: 1, addresses: 1},
		{ports: 10, endpoints: 20, addresses: 1},
		{ports: 1, endpoints: 300, addresses: 1},
		{ports: 2, endpoints: 5, addresses: 10},
		{ports: 1, endpoints: 1, addresses: 1, sticky: true},
		{ports: 10, endpoints: 20, addresses: 1, sticky: true},
	} {
		in := shape.inputs("s", 1)
		owner := translate.ServiceOwner("ns", "s")
		e.apply(owner, translate.Service(in))
		flows, estimate := chassis.Flows()-before, svc.Flows(in.Service, in.Slices)
		t.Logf("%v: %d flows, estimated at %d", shape, flows, estimate)
		if flows == 0 || flows > estimate || estimate > 2*flows {
			t.Errorf("%v: %d flows, estimated at %d", shape, flows, estimate)
		}
		e.apply(owner, nil)
	}
}

// BenchmarkServices applies Services and reports their cost for ovn-northd, and for ovn-controller and ovs-vswitchd on a node
// with a pod.
func BenchmarkServices(b *testing.B) {
	for _, shape := range []struct {
		services int
		each     serviceShape
	}{
		{1, serviceShape{ports: 100, endpoints: 1, addresses: 1}},
		{1, serviceShape{ports: 100, endpoints: 100, addresses: 1}},
		{1, serviceShape{ports: 100, endpoints: 100, addresses: 1, sticky: true}},
		{1, serviceShape{ports: 1000, endpoints: 100, addresses: 1}},
		{1, serviceShape{ports: 1, endpoints: 10_000, addresses: 1}},
		{1, serviceShape{ports: 1, endpoints: 10, addresses: 1000}},
		{1000, serviceShape{ports: 1, endpoints: 4, addresses: 1}},
	} {
		b.Run(fmt.Sprintf("%d of %v", shape.services, shape.each), func(b *testing.B) { benchmarkServices(b, shape.services, shape.each) })
	}
}

func benchmarkServices(b *testing.B, services int, shape serviceShape) {
	server := nbtest.Start(b)
	northd := server.Northd()
	e := lead(b, server.Endpoint())
	chassis := applySubjects(e, northd, 1)
	applySwitches(e, 5)
	before, flows := chassis.Flows(), 0
	var controller, central, vswitchd time.Duration
	for b.Loop() {
		c, n, v := processTime(b, chassis), processTime(b, northd), processTime(b, chassis.Switch)
		for i := range services {
			in := shape.inputs(fmt.Sprint("s", i), i)
			e.apply(translate.ServiceOwner("ns", in.Service.Name), translate.Service(in))
		}
		flows = chassis.Flows() - before
		b.StopTimer()
		controller, central, vswitchd = controller+processTime(b, chassis)-c, central+processTime(b, northd)-n, vswitchd+processTime(b, chassis.Switch)-v
		for i := range services {
			e.apply(translate.ServiceOwner("ns", fmt.Sprint("s", i)), nil)
		}
		chassis.Flows()
		b.StartTimer()
	}
	b.ReportMetric(float64(flows), "flows")
	b.ReportMetric(float64(controller.Milliseconds())/float64(b.N), "ovn-controller-ms")
	b.ReportMetric(float64(central.Milliseconds())/float64(b.N), "northd-ms")
	b.ReportMetric(float64(vswitchd.Milliseconds())/float64(b.N), "vswitchd-ms")
}

// applySwitches adds subnets with Services to the default VPC until it has n.
func applySwitches(e *engine, n int) {
	e.t.Helper()
	for i := 3; i <= n; i++ {
		name := fmt.Sprint("more-", i)
		e.apply(subnet(name), translate.Subnet(translate.SubnetInputs{
			Name: name, Vpc: kubeovnv1.DefaultVpc, Services: true, Gateways: []netip.Addr{netip.AddrFrom4([4]byte{10, 30, byte(i), 1})},
			CIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 30, byte(i), 0}), 24)},
		}))
	}
}
