// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// protectedVpc is a VPC with one subnet, a Service without endpoints, and a pod on node n1.
type protectedVpc struct {
	name               string
	pod4, pod6         netip.Addr
	gateway4, gateway6 netip.Addr
	mac                net.HardwareAddr
	// router is the MAC address of the gateway.
	router string
}

// routerMTU is the MTU of the routers' ports. Routers answer larger packets with an error.
const routerMTU = 1000

// rejecting is the address of the Service without endpoints, by IPv4 or not.
var rejecting = map[bool]string{true: "10.96.0.80", false: "fd00:96::80"}

// port is the name of the pod's port.
func (v *protectedVpc) port() string { return v.name + ".ns" }

// applyProtected applies the nth VPC with all features whose packets ovn-controller answers.
func applyProtected(e *engine, server *nbtest.Server, name string, n byte, limits v1alpha1.ControlPlaneProtection) *protectedVpc {
	e.t.Helper()
	cidr4, cidr6 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, n, 0, 0}), 24), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", n))
	v := &protectedVpc{
		name: name, gateway4: cidr4.Addr().Next(), gateway6: cidr6.Addr().Next(), mac: net.HardwareAddr{2, 0, 0, 0, n, 1},
	}
	v.pod4, v.pod6 = v.gateway4.Next(), v.gateway6.Next()
	e.apply(translate.ProtectionOwner(name), translate.Protection(name, limits))
	e.apply(vpc(name), translate.Vpc(translate.VpcInputs{Name: name}))
	network := name + "-net"
	e.apply(subnet(network), translate.Subnet(translate.SubnetInputs{
		Name: network, Vpc: name, CIDRs: []netip.Prefix{cidr4, cidr6}, Gateways: []netip.Addr{v.gateway4, v.gateway6}, Services: true,
		DHCP: true, IPv6RA: true, MulticastSnooping: true,
		VirtualPorts: []translate.VirtualPort{{Address: cidr4.Addr().Next().Next().Next(), Parents: []string{v.port()}}},
	}))
	server.Transact(nbtest.Op{
		"op": "update", "table": "Logical_Router_Port", "where": []any{[]any{"name", "==", name + "-" + network}},
		"row": map[string]any{"options": nbtest.Map(map[string]string{"gateway_mtu": strconv.Itoa(routerMTU)})},
	})
	in := translate.ServiceInputs{Vpc: name, Service: &corev1.Service{Spec: corev1.ServiceSpec{
		ClusterIPs: []string{rejecting[true], rejecting[false]}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}}}
	in.Service.Namespace, in.Service.Name = "ns", name
	e.apply(service(name), translate.Service(in))
	e.apply(pod(name), translate.Pod(translate.PodInputs{
		Namespace: "ns", Name: name, UID: name, Node: "n1", Subnet: network, Vpc: name, MAC: v.mac, Addresses: []netip.Addr{v.pod4, v.pod6},
		DHCP: []netip.Prefix{cidr4, cidr6},
	}))
	for _, row := range server.Rows("Logical_Router_Port") {
		if row["name"] == name+"-"+network {
			v.router = row["mac"].(string)
		}
	}
	return v
}

// packet is a kind of packets that ovn-controller answers.
type packet struct {
	limit string // the meter
	// answer is the description, by describe, of the frame that the pod gets.
	answer string
	// frame returns a packet. Different numbers give different connections.
	frame func(v *protectedVpc, n int) string
}

// packets are kinds of packets, by their description.
var packets = map[string]packet{
	"a connection to a Service without endpoints": {"rejects", "ipv4 tcp", func(v *protectedVpc, n int) string {
		return v.ipv4(v.router, rejecting[true], 6, 64) + fmt.Sprintf(",tcp(src=%d,dst=80),tcp_flags(syn)", 1024+n)
	}},
	"an IPv6 connection to a Service without endpoints": {"rejects", "ipv6 tcp", func(v *protectedVpc, n int) string {
		return v.ipv6(v.router, rejecting[false], 6, 64) + fmt.Sprintf(",tcp(src=%d,dst=80),tcp_flags(syn)", 1024+n)
	}},
	"a neighbour solicitation for the gateway": {"neighbors", "icmp6 type 136", func(v *protectedVpc, _ int) string {
		return v.ipv6("33:33:ff:00:00:01", "ff02::1:ff00:1", 58, 255) + fmt.Sprintf(",icmpv6(type=135,code=0),nd(target=%s,sll=%s,tll=00:00:00:00:00:00)", v.gateway6, v.mac)
	}},
	"a packet with TTL 1": {"errors", "icmp4 type 11", func(v *protectedVpc, n int) string {
		return v.ipv4(v.router, "198.51.100.1", 17, 1) + fmt.Sprintf(",udp(src=%d,dst=33434)", 1024+n)
	}},
	"a packet with hop limit 1": {"errors", "icmp6 type 3", func(v *protectedVpc, n int) string {
		return v.ipv6(v.router, "2001:db8::1", 17, 1) + fmt.Sprintf(",udp(src=%d,dst=33434)", 1024+n)
	}},
	"a packet larger than the MTU": {"errors", "icmp4 type 3", func(v *protectedVpc, _ int) string {
		return datagram(v.router, v.mac, v.pod4, unknown(v.gateway4, 0), 1024, 9, make([]byte, routerMTU))
	}},
	"an IPv6 packet larger than the MTU": {"errors", "icmp6 type 2", func(v *protectedVpc, _ int) string {
		return datagram(v.router, v.mac, v.pod6, unknown(v.gateway6, 0), 1024, 9, make([]byte, routerMTU))
	}},
	"a packet to an unknown neighbour": {"resolutions", "arp", func(v *protectedVpc, n int) string {
		return v.ipv4(v.router, unknown(v.gateway4, n).String(), 17, 64) + fmt.Sprintf(",udp(src=%d,dst=9)", 1024+n)
	}},
	"an IPv6 packet to an unknown neighbour": {"resolutions", "icmp6 type 135", func(v *protectedVpc, n int) string {
		return v.ipv6(v.router, unknown(v.gateway6, n).String(), 17, 64) + fmt.Sprintf(",udp(src=%d,dst=9)", 1024+n)
	}},
	"a router solicitation": {"dhcp", "icmp6 type 134", func(v *protectedVpc, _ int) string {
		return v.ipv6("33:33:00:00:00:02", "ff02::2", 58, 255) + ",icmpv6(type=133,code=0)"
	}},
	"a DHCP request": {"dhcp", "ipv4 udp from 67", func(v *protectedVpc, _ int) string {
		discover := must.Value(dhcpv4.NewDiscovery(v.mac))
		return datagram("ff:ff:ff:ff:ff:ff", v.mac, netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255"), 68, 67, discover.ToBytes())
	}},
	"a DHCPv6 request": {"dhcp", "ipv6 udp from 547", func(v *protectedVpc, _ int) string {
		solicit := must.Value(dhcpv6.NewSolicit(v.mac))
		return datagram("33:33:00:01:00:02", v.mac, linkLocal(v.mac), netip.MustParseAddr("ff02::1:2"), 546, 547, solicit.ToBytes())
	}},
}

func (v *protectedVpc) ipv4(to, dst string, protocol, ttl int) string {
	return fmt.Sprintf("in_port(1),eth(src=%s,dst=%s),eth_type(0x0800),ipv4(src=%s,dst=%s,proto=%d,tos=0,ttl=%d,frag=no)", v.mac, to, v.pod4, dst, protocol, ttl)
}

func (v *protectedVpc) ipv6(to, dst string, protocol, hops int) string {
	return fmt.Sprintf("in_port(1),eth(src=%s,dst=%s),eth_type(0x86dd),ipv6(src=%s,dst=%s,label=0,proto=%d,tclass=0,hlimit=%d,frag=no)", v.mac, to, v.pod6, dst, protocol, hops)
}

// linkLocal is the link-local address of an interface (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

// unknown returns an address in the subnet of a gateway that no port has.
func unknown(gateway netip.Addr, n int) netip.Addr {
	b := gateway.AsSlice()
	b[len(b)-1] = 200 + byte(n%50)
	address, _ := netip.AddrFromSlice(b)
	return address
}

// datagram returns a frame with a UDP datagram, as hexadecimal digits.
func datagram(destination string, mac net.HardwareAddr, src, dst netip.Addr, from, to uint16, payload []byte) string {
	udp := binary.BigEndian.AppendUint16(nil, from)
	udp = binary.BigEndian.AppendUint16(udp, to)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(append(udp, 0, 0), payload...)
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, 17}, udp[4:6], udp)
	binary.BigEndian.PutUint16(udp[6:], checksum(pseudo))
	frame := append(must.Value(net.ParseMAC(destination)), mac...)
	if src.Is4() {
		ip := append([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0}, append(src.AsSlice(), dst.AsSlice()...)...)
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(udp)))
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		frame = slices.Concat(frame, []byte{0x08, 0x00}, ip)
	} else {
		ip := slices.Concat([]byte{0x60, 0, 0, 0}, udp[4:6], []byte{17, 64}, src.AsSlice(), dst.AsSlice())
		frame = slices.Concat(frame, []byte{0x86, 0xdd}, ip)
	}
	return hex.EncodeToString(append(frame, udp...))
}

// checksum is the Internet checksum (RFC 1071).
func checksum(data []byte) uint16 {
	var sum uint32
	for pair := range slices.Chunk(data, 2) {
		sum += uint32(pair[0]) << 8
		if len(pair) == 2 {
			sum += uint32(pair[1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// describe returns a short description of a frame without VLAN tags, IPv4 options and IPv6 extension headers.
func describe(frame []byte) string {
	at := func(i int) int {
		if i < len(frame) {
			return int(frame[i])
		}
		return -1
	}
	family, protocol, next := "ipv4", 23, 34
	switch at(12)<<8 | at(13) {
	case 0x0806:
		return "arp"
	case 0x86dd:
		family, protocol, next = "ipv6", 20, 54
	}
	switch at(protocol) {
	case 1:
		return fmt.Sprint("icmp4 type ", at(next))
	case 58:
		return fmt.Sprint("icmp6 type ", at(next))
	case 6:
		return family + " tcp"
	case 17:
		return fmt.Sprint(family, " udp from ", at(next)<<8|at(next+1))
	}
	return "another frame"
}

// few are limits that a test exceeds with few packets.
var few = v1alpha1.ControlPlaneProtection{PacketsPerSecond: v1alpha1.ControlPacketRates{
	DHCP: 20, Neighbors: 20, Resolutions: 20, Rejects: 20, Errors: 20, Multicast: 20, BFD: 20,
}}

// TestAFloodInOneVPCLeavesTheOtherItsAnswers floods the ovn-controller of a node with packets of VPC red. A pod of VPC blue on the same node
// gets an answer to each kind of packet, and no meter drops a packet of blue.
func TestAFloodInOneVPCLeavesTheOtherItsAnswers(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	red, blue := applyProtected(e, server, "red", 1, few), applyProtected(e, server, "blue", 2, v1alpha1.ControlPlaneProtection{})
	chassis := northd.Chassis("n1", map[string]string{red.port(): red.name, blue.port(): blue.name})
	chassis.Flows()
	missing := map[string]packet{}
	for name, p := range packets {
		missing[name] = p
	}
	kinds := []string{"dhcp", "neighbors", "resolutions", "rejects", "errors"}
	eventually.Wait{For: "each kind of packet of VPC red is limited, and of VPC blue answered"}.Empty(t, func() string {
		for _, p := range packets {
			var flood []string
			for n := range 100 {
				flood = append(flood, p.frame(red, n))
			}
			chassis.Inject(red.port(), flood...)
		}
		for _, p := range missing {
			chassis.Inject(blue.port(), p.frame(blue, 0))
		}
		for _, frame := range chassis.Sent(blue.port()) {
			for name, p := range missing {
				if p.answer == describe(frame) {
					delete(missing, name)
				}
			}
		}
		for name := range missing {
			return "no answer to " + name
		}
		for _, kind := range kinds {
			if m := chassis.Meters()["copp-"+kind+"-red"]; m.Dropped == 0 {
				return fmt.Sprintf("%s: VPC red was not limited: %+v", kind, m)
			}
		}
		return ""
	})
	for _, kind := range kinds {
		if other := chassis.Meters()["copp-"+kind+"-blue"]; other.Packets == 0 || other.Dropped > 0 {
			t.Errorf("%s: VPC blue: %+v", kind, other)
		}
	}
}

// TestDefaultLimitsCarryStartingPods sends packets of 110 pods that start at once, and of 500 refused connections. No default limit drops any.
func TestDefaultLimitsCarryStartingPods(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	v := applyProtected(e, server, "red", 1, v1alpha1.ControlPlaneProtection{})
	chassis := northd.Chassis("n1", map[string]string{v.port(): v.name})
	chassis.Flows()
	const pods, connections = 110, 500
	times := map[string]int{"a connection to a Service without endpoints": connections}
	want := map[string]int{}
	for name, p := range packets {
		n := pods
		if special, ok := times[name]; ok {
			n = special
		}
		want[p.limit] += n
		var frames []string
		for i := range n {
			frames = append(frames, p.frame(v, i))
		}
		for some := range slices.Chunk(frames, 20) { // fewer than a dummy interface can queue, so that none is lost
			chassis.Inject(v.port(), some...)
		}
	}
	eventually.Wait{For: "the meters have counted all packets"}.Empty(t, func() string {
		meters := chassis.Meters()
		for kind, n := range want {
			if m := meters["copp-"+kind+"-red"]; m.Packets < n {
				return fmt.Sprintf("%s: %+v, want %d", kind, m, n)
			}
		}
		return ""
	})
	for name, m := range chassis.Meters() {
		if m.Dropped > 0 {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// sentUp matches an OpenFlow action that sends a packet to ovn-controller, with OVN's number of the reason (enum action_opcode in
// include/ovn/actions.h) and the meter, if there is one.
var sentUp = regexp.MustCompile(`controller\(userdata=(?:[0-9a-f]{2}\.){3}([0-9a-f]{2})([^)]*)\)`)

// applySession gives the router of a VPC an external port, with a BFD session.
func applySession(e *engine, v *protectedVpc) {
	e.t.Helper()
	cidrs := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	gateways := []netip.Addr{netip.MustParseAddr("192.0.2.254")}
	e.apply(subnet("ext"), translate.Subnet(translate.SubnetInputs{
		Name: "ext", Vpc: v.name, Localnet: &translate.Localnet{Network: "net1"}, CIDRs: cidrs, Gateways: gateways,
	}))
	e.apply(translate.ExternalOwner(v.name), translate.External(translate.ExternalInputs{
		Vpc: v.name, MonitorGateways: true, BFD: translate.BFD{MinTransmit: 300, MinReceive: 300, Multiplier: 3},
		Ports: []translate.ExternalPort{{
			Subnet: "ext", CIDRs: cidrs, Gateways: gateways, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			MAC: net.HardwareAddr{2, 4, 0, 0, 0, 1}, Chassis: []string{"n1"},
		}},
	}))
}

// TestEachPacketForOVNControllerHasALimit looks for flows that send packets to ovn-controller without a meter.
func TestEachPacketForOVNControllerHasALimit(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	v := applyProtected(e, server, "red", 1, v1alpha1.ControlPlaneProtection{})
	applySession(e, v)
	chassis := northd.Chassis("n1", map[string]string{v.port(): v.name})
	unlimited := func() (reasons []string) {
		for _, m := range sentUp.FindAllStringSubmatch(chassis.DumpFlows(), -1) {
			if !strings.Contains(m[2], "meter_id=") {
				reasons = append(reasons, m[1])
			}
		}
		slices.Sort(reasons)
		return slices.Compact(reasons)
	}
	// Parents of a virtual port announce its address: OVN has no limit for them. Health checks of load balancers have no limit, because the loss of
	// one looks like a failed endpoint.
	want := []string{"11", "12"} // bind_vport and handle_svc_check
	if reasons := unlimited(); !slices.Equal(reasons, want) {
		t.Errorf("reasons without a limit: %s, want %s", reasons, want)
	}
	e.apply(translate.ProtectionOwner(v.name), translate.Protection(v.name, v1alpha1.ControlPlaneProtection{Mode: v1alpha1.ProtectionUnlimited}))
	if strings.Contains(chassis.DumpFlows(), "meter_id") || len(chassis.Meters()) > 0 {
		t.Error("there are limits with mode Unlimited")
	}
	e.apply(translate.ProtectionOwner(v.name), translate.Protection(v.name, few))
	if reasons := unlimited(); !slices.Equal(reasons, want) {
		t.Errorf("reasons without a limit, after limits returned: %s", reasons)
	}
}
