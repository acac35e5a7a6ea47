// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// costly are the nodes of ovn-northd's engine whose full recompute takes longer the larger the network is. (sync_to_sb_addr_set
// is not among them: northd 25.03 iterates over the address sets whenever a port is added or deleted.)
var costly = []string{"northd", "lflow", "ls_stateful", "lr_stateful", "lr_nat", "lb_data", "port_group", "routes", "route_policies"}

func TestPodsAndServicesCostNorthdNoFullComputation(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	northd.Settled()
	counts := func() map[string]int {
		counts := map[string]int{}
		for _, node := range costly {
			counts[node] = northd.Recomputes(node)
		}
		return counts
	}
	before := counts()
	expectIncremental := func(what string) {
		t.Helper()
		northd.Settled()
		for node, n := range counts() {
			if n != before[node] {
				t.Errorf("%s: northd computed its %s in full", what, node)
				before[node] = n
			}
		}
	}
	pods := []translate.PodInputs{
		{Name: "first-on-n1", Node: "n1", Subnet: "s1"},
		{Name: "second-on-n1", Node: "n1", Subnet: "s1"},
		{Name: "first-of-s2-on-n1", Node: "n1", Subnet: "s2"},
		{Name: "first-on-n2", Node: "n2", Subnet: "s1"},
		{Name: "secured", Node: "n2", Subnet: "s2", PortSecurity: true},
	}
	for i, in := range pods {
		e.apply(pod(in.Name), podOf(in, i))
		northd.Await(in.Name, func(sb *nbtest.Server) bool { return slices.Contains(portsOf(sb), in.Name+".ns") })
		expectIncremental(in.Name + " comes")
	}
	e.apply(service("web"), serviceTo("10.16.0.2"))
	northd.Await("an endpoint", func(sb *nbtest.Server) bool {
		for _, row := range sb.Rows("Load_Balancer") {
			return row["vips"].(map[string]string)["10.96.0.80:80"] == "10.16.0.2:8080"
		}
		return false
	})
	expectIncremental("a Service gets an endpoint")
	for _, in := range pods {
		e.apply(pod(in.Name), nil)
		northd.Await("the end of "+in.Name, func(sb *nbtest.Server) bool { return !slices.Contains(portsOf(sb), in.Name+".ns") })
		expectIncremental(in.Name + " goes")
	}
}

func portsOf(southbound *nbtest.Server) []string {
	var names []string
	for _, row := range southbound.Rows("Port_Binding") {
		names = append(names, row["logical_port"].(string))
	}
	return names
}

// applyNetwork applies the rows of a cluster with two nodes and two subnets and without pods, from the real translators.
func applyNetwork(e *engine) {
	e.t.Helper()
	const name = kubeovnv1.DefaultVpc
	addresses := func(v4, v6 string, n byte) []netip.Addr {
		a, b := netip.MustParseAddr(v4).As4(), netip.MustParseAddr(v6).As16()
		a[3], b[15] = n, n
		return []netip.Addr{netip.AddrFrom4(a), netip.AddrFrom16(b)}
	}
	e.apply(translate.ProtectionOwner(name), translate.Protection(name, v1alpha1.ControlPlaneProtection{}))
	e.apply(vpc(name), translate.Vpc(translate.VpcInputs{Name: name, DefaultNextHops: addresses("100.64.0.0", "fd00:64::", 1)}))
	for s, v4 := range map[string]string{"join": "100.64.0.0", "s1": "10.16.0.0", "s2": "10.17.0.0"} {
		v6 := map[string]string{"join": "fd00:64::", "s1": "fd00:16::", "s2": "fd00:17::"}[s]
		e.apply(subnet(s), translate.Subnet(translate.SubnetInputs{
			Name: s, Vpc: name, Gateways: addresses(v4, v6, 1), Services: s != "join",
			Private: s == "s2", DHCP: s == "s2", IPv6RA: s == "s2", // s2 has all features, s1 the usual ones
			CIDRs: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(v4), 16), netip.PrefixFrom(netip.MustParseAddr(v6), 112)},
		}))
	}
	for i := range byte(2) {
		n := fmt.Sprint("n", i+1)
		e.apply(node(n), translate.Node(translate.NodeInputs{
			Name: n, Vpc: name, Switch: "join", MAC: net.HardwareAddr{2, 0, 0, 0, 0, i},
			Addresses: addresses("100.64.0.0", "fd00:64::", 2+i), InternalIPs: addresses("192.0.2.0", "2001:db8::", 2+i),
		}))
	}
	e.apply(service("web"), serviceTo())
}

// podOf completes the inputs of the nth pod.
func podOf(in translate.PodInputs, n int) []desired.Row {
	in.Namespace, in.UID, in.Vpc = "ns", in.Name, kubeovnv1.DefaultVpc
	n += 2 // the first address is the gateway's
	in.MAC = net.HardwareAddr{2, 1, 0, 0, byte(n >> 8), byte(n)}
	third := in.Subnet[1] - '1' + 16
	in.Addresses = []netip.Addr{
		netip.AddrFrom4([4]byte{10, third, byte(n >> 8), byte(n)}),
		netip.MustParseAddr(fmt.Sprintf("fd00:%d::%x", third, n)),
	}
	if in.Subnet == "s2" {
		in.DHCP = []netip.Prefix{netip.PrefixFrom(in.Addresses[0], 16).Masked(), netip.PrefixFrom(in.Addresses[1], 112).Masked()}
	}
	return translate.Pod(in)
}

func serviceTo(endpoints ...string) []desired.Row {
	in := translate.ServiceInputs{Vpc: kubeovnv1.DefaultVpc, Service: &corev1.Service{Spec: corev1.ServiceSpec{
		ClusterIPs: []string{"10.96.0.80"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}}}
	in.Service.Name, in.Service.Namespace = "web", "ns"
	for _, endpoint := range endpoints {
		in.Slices = append(in.Slices, &discoveryv1.EndpointSlice{
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{endpoint}}},
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		})
	}
	return translate.Service(in)
}
