// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes_test

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/probes"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// join creates the IP object of a node, as the controller would. The returned function deletes it.
func join(n *agenttest.Node, name string, addresses ...netip.Addr) (leave func()) {
	n.Helper()
	ip := &v1.IP{
		ObjectMeta: metav1.ObjectMeta{
			Name: v1.NodePortName(name), Labels: map[string]string{v1.LabelSubnet: v1.JoinSubnet},
			Annotations: map[string]string{v1.AnnotationNodeAddresses.Key(): ipfamily.Join(addresses)},
		},
		Spec: v1.IPSpec{Subnet: v1.JoinSubnet, NodeName: name, IPAddress: "100.64.0.9"},
	}
	must.Succeed(n.TB, n.API.Create(n.Context(), ip))
	return func() { must.Succeed(n.TB, client.IgnoreNotFound(n.API.Delete(n.Root.Context(), ip))) }
}

func TestAddressesThatTheNodeMustReachAreNotDiverted(t *testing.T) {
	n := agenttest.Serving(t)
	addresses := []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:51::7")}
	routes, rules := routesTo(addresses, agenttest.ProbePort), rulesOf(agenttest.ProbePort)

	t.Run("another node, for pods that start later, until it leaves", func(t *testing.T) {
		n := n.In(t)
		leave := join(n, "node-2", addresses...)
		defer leave()
		tenant := tenantAt(n, "later", far, addresses...)
		warned(n, tenant.Pod, probes.ReasonAddressReserved, "198.51.100.7 is an address of node node-2", "2001:db8:51::7 is an address of node node-2")
		hasProbes(t, n, nil, nil)
		leave()
		hasProbes(t, n, routes, rules)
	})
	t.Run("external addresses of a Service and addresses of other nodes, for pods that start later", func(t *testing.T) {
		n := n.In(t)
		tenantAt(n, "older", far, addresses...)
		hasProbes(t, n, routes, rules)
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "taken", Namespace: "default"}, Spec: corev1.ServiceSpec{
			ExternalIPs: []string{addresses[0].String()}, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		must.Succeed(t, n.API.Create(t.Context(), s))
		defer func() { must.Succeed(t, n.API.Delete(n.Root.Context(), s)) }()
		younger := tenantAt(n, "younger", far[:1], addresses[0])
		warned(n, younger.Pod, probes.ReasonAddressReserved, "198.51.100.7 is an external address of Service default/taken")
		hasProbes(t, n, routes, rules) // the older pod's
		leave := join(n, "node-3", addresses...)
		defer leave()
		n.Agent.Kill()
		n.StartAgent()
		n.WaitReady()
		hasProbes(t, n, routes, rules)
		leave()
		s.Spec.ExternalIPs = []string{"198.51.100.8"}
		must.Succeed(t, n.API.Update(t.Context(), s))
		both := slices.Sorted(slices.Values(append(routesTo(addresses[:1], agenttest.ProbePort), routes...)))
		hasProbes(t, n, both, rules)
	})
	t.Run("a network that is connected later, until it is disconnected", func(t *testing.T) {
		n := n.In(t)
		tenant := tenantAt(n, "connecting", far, addresses...)
		hasProbes(t, n, routes, rules)
		link, err := netlink.LinkByName("eth1")
		must.Succeed(t, err)
		address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 51, 100, 200), Mask: net.CIDRMask(24, 32)}}
		must.Succeed(t, netlink.AddrAdd(link, address))
		defer func() { _ = netlink.AddrDel(link, address) }()
		hasProbes(t, n, routesTo(addresses[1:], agenttest.ProbePort), rules[1:])
		warned(n, tenant.Pod, probes.ReasonAddressReserved, "198.51.100.7 is in 198.51.100.0/24, a network connected to the node by interface eth1")
		must.Succeed(t, netlink.AddrDel(link, address))
		hasProbes(t, n, routes, rules)
	})
	t.Run("a pod on a connected network starts all the same", func(t *testing.T) {
		n := n.In(t)
		neighbours := []netip.Addr{netip.MustParseAddr("172.30.0.9"), netip.MustParseAddr("fd00:172:30::9")}
		tenant := tenantAt(n, "neighbour", []netip.Prefix{agenttest.NodeIPs[0].Masked(), agenttest.NodeIPs[1].Masked()}, neighbours...)
		hasProbes(t, n, nil, nil)
		warned(n, tenant.Pod, probes.ReasonAddressReserved, "172.30.0.9 is in 172.30.0.0/24", "fd00:172:30::9 is in fd00:172:30::/64", "eth0")
	})
	t.Run("a pod in a CIDR of Services", func(t *testing.T) {
		n := n.In(t)
		tenant := tenantAt(n, "service", []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, netip.MustParseAddr("10.96.0.10"))
		hasProbes(t, n, nil, nil)
		warned(n, tenant.Pod, probes.ReasonAddressReserved, "10.96.0.10 is in 10.96.0.0/12, a CIDR of Services")
	})
}

// systemd-networkd deletes rules of other programs when it starts.
func TestRulesOfProbesComeBack(t *testing.T) {
	n := agenttest.Serving(t)
	addresses := []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:51::7")}
	tenantAt(n, "probed", far, addresses...)
	routes, rules := routesTo(addresses, agenttest.ProbePort), rulesOf(agenttest.ProbePort)
	hasProbes(t, n, routes, rules)
	agenttest.DeleteRules(t, 75)
	hasProbes(t, n, routes, rules)
}
