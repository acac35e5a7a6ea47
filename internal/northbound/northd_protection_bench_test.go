// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// BenchmarkProtection reports the cost of control-plane protection: logical flows and the time of a full computation of ovn-northd, and flows, meters and
// the time of ovn-controller on a node with a pod of each of the first 110 subnets.
func BenchmarkProtection(b *testing.B) {
	for _, shape := range []protectedShape{
		{vpcs: 10, subnets: 1},
		{vpcs: 100, subnets: 1},
		{vpcs: 1000, subnets: 1},
		{vpcs: 1, subnets: 100, services: 100},
	} {
		for _, mode := range []v1alpha1.ProtectionMode{v1alpha1.ProtectionUnlimited, v1alpha1.ProtectionLimited} {
			b.Run(fmt.Sprintf("%d VPCs of %d subnets and %d Services without endpoints, %s", shape.vpcs, shape.subnets, shape.services, mode), func(b *testing.B) {
				for b.Loop() {
					shape.measure(b, mode)
				}
			})
		}
	}
}

// protectedShape is the size of a network. Each subnet has a pod.
type protectedShape struct{ vpcs, subnets, services int }

func (s protectedShape) measure(b *testing.B, mode v1alpha1.ProtectionMode) {
	const pods = 110
	b.StopTimer()
	defer b.StartTimer()
	server := nbtest.Start(b)
	e := lead(b, server.Endpoint())
	ports := map[string]string{}
	for i := range s.vpcs {
		name := fmt.Sprint("vpc-", i)
		e.apply(translate.ProtectionOwner(name), translate.Protection(name, v1alpha1.ControlPlaneProtection{Mode: mode}))
		e.apply(vpc(name), translate.Vpc(translate.VpcInputs{Name: name}))
		for k := range s.services {
			in := translate.ServiceInputs{Vpc: name, Service: &corev1.Service{Spec: corev1.ServiceSpec{
				ClusterIPs: []string{netip.AddrFrom4([4]byte{10, 96, byte(k >> 8), byte(k)}).String()}, Ports: []corev1.ServicePort{{Port: 80}},
			}}}
			in.Service.Namespace, in.Service.Name = "ns", fmt.Sprint("s", k)
			e.apply(translate.ServiceOwner("ns", in.Service.Name), translate.Service(in))
		}
		for k := range s.subnets {
			n := i*s.subnets + k
			network, cidr := fmt.Sprint("subnet-", n), netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(n >> 8), byte(n), 0}), 24)
			e.apply(subnet(network), translate.Subnet(translate.SubnetInputs{
				Name: network, Vpc: name, CIDRs: []netip.Prefix{cidr}, Gateways: []netip.Addr{cidr.Addr().Next()}, Services: true,
			}))
			p := fmt.Sprint("p", n)
			e.apply(pod(p), translate.Pod(translate.PodInputs{
				Namespace: "ns", Name: p, UID: p, Node: "n1", Subnet: network, Vpc: name, MAC: net.HardwareAddr{2, 0, 0, 1, byte(n >> 8), byte(n)},
				Addresses: []netip.Addr{cidr.Addr().Next().Next()},
			}))
			if n < pods {
				ports[p+".ns"] = p
			}
		}
	}
	northd := server.Northd()
	northd.Settled()
	spent := processTime(b, northd)
	northd.Recompute()
	northd.Settled()
	b.ReportMetric(float64((processTime(b, northd) - spent).Milliseconds()), "northd-ms")
	b.ReportMetric(float64(len(northd.Southbound.Rows("Logical_Flow"))), "logical-flows")
	chassis := northd.Chassis("n1", ports)
	b.ReportMetric(float64(chassis.Flows()), "flows")
	b.ReportMetric(float64(len(chassis.Meters())), "meters")
	b.ReportMetric(float64(processTime(b, chassis).Milliseconds()), "ovn-controller-ms")
	e.stop()
	northd.Stop()
	server.Stop()
}
