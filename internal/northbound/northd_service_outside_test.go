// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// Hosts of the external network reach a Service of a custom VPC at the addresses of its OvnEip, and not at its ClusterIPs, to which they could send packets by the router's
// port. Pods of the VPC reach it at both.
func TestNorthdServesClientsOutsideAtAddressesOfAnOvnEip(t *testing.T) {
	o := newOutside(t, "ext")
	s := &corev1.Service{}
	s.Namespace, s.Name = "ns", "web"
	s.Spec.ClusterIPs = []string{"10.96.7.80", "fd00:96::7:80"}
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
	in := translate.ServiceInputs{Service: s, Vpc: "blue", Eip: "web", Addresses: []netip.Addr{externalAddress("ext", 0, 13), externalAddress("ext", 1, 13)}}
	for family, of := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		in.Slices = append(in.Slices, &discoveryv1.EndpointSlice{
			AddressType: of, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{insideAddress("a", family).String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		})
	}
	o.apply(translate.ServiceOwner("ns", "web"), translate.Service(in))
	o.northd.Await("the load balancers", func(*nbtest.Server) bool {
		return len(o.mentions("10.96.7.80")) > 0 && len(o.mentions("192.0.2.13")) > 0
	})
	o.northd.Settled()
	routed := func(address string) bool {
		for _, row := range o.northd.Southbound.Rows("Logical_Flow") {
			stage := row["external_ids"].(map[string]string)["stage-name"]
			if strings.HasPrefix(stage, "lr_") && strings.Contains(fmt.Sprint(row["match"], " ", row["actions"]), address) {
				return true
			}
		}
		return false
	}
	router := routerMAC(o.server, "blue-ext")
	for family, ip := range []string{"ip4", "ip6"} {
		external, clusterIP := in.Addresses[family].String(), s.Spec.ClusterIPs[family]
		if !routed(external) || routed(clusterIP) {
			t.Errorf("the router serves %s: %t, and %s: %t", external, routed(external), clusterIP, routed(clusterIP))
		}
		for dst, want := range map[string]bool{external: true, clusterIP: false} {
			from := fmt.Sprintf(`inport == "localnet.ext" && eth.src == 02:05:00:00:00:01 && eth.dst == %s && %s.src == %s && %s.dst == %s && ip.ttl == 64 && tcp.dst == 80`,
				router, ip, externalAddress("ext", family, 99), ip, dst)
			if got := o.northd.Trace("ext", from, "--ct=new", "--ct=new"); strings.Contains(got, `output("a.ns")`) != want {
				t.Errorf("a packet from outside to %s reaches the pod: %t, want %t\n%s", dst, !want, want, got)
			}
			inside := fmt.Sprintf(`inport == "b.ns" && eth.src == 02:03:00:00:00:03 && eth.dst == %s && %s.src == %s && %s.dst == %s && ip.ttl == 64 && tcp.dst == 80`,
				routerMAC(o.server, "blue-net"), ip, insideAddress("b", family), ip, dst)
			if got := o.northd.Trace("net", inside, "--ct=new", "--ct=new"); !strings.Contains(got, `output("a.ns")`) {
				t.Errorf("a packet from a pod to %s does not reach the pod:\n%s", dst, got)
			}
		}
	}
	o.apply(translate.ServiceOwner("ns", "web"), nil)
	o.northd.Await("the end of the load balancers", func(*nbtest.Server) bool {
		return len(o.mentions("10.96.7.80"))+len(o.mentions("192.0.2.13")) == 0
	})
}
