// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// Packet is the packet of a query for ovn-trace(8), and for ofproto/trace of ovs-vswitchd(8).
type Packet struct {
	Family string
	// Switch and Port are the logical switch and the port at which the packet enters OVN, and Node is the node of the port.
	Switch, Port, Node string
	// Match is the packet in the language of ovn-trace.
	Match string
	// Flow is the packet in the language of ofproto/trace, without the port.
	Flow string
	// State is the state of its connection for ovn-trace: the value of --ct.
	State string
}

// Packets returns the packet of a query for each family that both ends have.
func Packets(s *Snapshot, q Query) ([]Packet, error) {
	var packets []Packet
	var missing error
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		from, problem := s.source(q.From, family)
		if problem != nil {
			missing = errors.Join(missing, errors.New(problem.step.Text))
			continue
		}
		to, problem := s.host(q.To, family, from.net.LogicalRouter)
		if problem != nil {
			missing = errors.Join(missing, errors.New(problem.step.Text))
			continue
		}
		if !from.addr.IsValid() || !to.addr.IsValid() {
			continue
		}
		p, err := s.packetOf(q, from, to, family)
		if err != nil {
			return nil, err
		}
		packets = append(packets, p)
	}
	if len(packets) == 0 {
		return nil, errors.Join(fmt.Errorf("%s and %s have no addresses of one family", q.From, q.To), missing)
	}
	return packets, nil
}

func (s *Snapshot) packetOf(q Query, from, to host, family ipfamily.Family) (Packet, error) {
	p := Packet{Family: family.String(), Node: from.node, State: "new"}
	if q.Answer {
		p.State = "est,rpl"
	}
	var cidrs []netip.Prefix
	var gateways []netip.Addr
	source, mac := from.addr, from.net.MAC
	switch from.kind {
	case aPod:
		p.Switch, p.Port, cidrs, gateways = from.net.LogicalSwitch, from.port(), from.net.CIDRs, from.net.Gateways
	case aNode:
		p.Switch, p.Port, gateways = kubeovnv1.JoinSubnet, from.port(), s.joinGateways()
		if _, join := s.nodeAddresses(from.node); first(join, family).IsValid() {
			source = first(join, family)
		}
		for _, r := range s.Records {
			if k8s.NodeOf(r) == from.node {
				mac, _ = net.ParseMAC(r.Spec.MACAddress)
			}
		}
	case outside, hidden, unused:
		return p, fmt.Errorf("%s has no port in OVN: begin at a pod or a node", q.From)
	}
	if q.SourceMAC != nil {
		mac = q.SourceMAC
	}
	if a := q.SourceAddress; a.IsValid() && familyOf(a) == family {
		source = a
	}
	if len(mac) == 0 {
		return p, fmt.Errorf("the hardware address of %s is not known: --source-mac sets it", from)
	}
	target := q.TargetMAC
	local := slices.ContainsFunc(cidrs, func(cidr netip.Prefix) bool { return cidr.Contains(to.addr) })
	physical := from.net.ProviderNetwork != "" && !s.logicalGateway(p.Switch)
	switch {
	case q.Protocol == Neighbour && !q.Answer:
		target = everyone(to.addr)
	case target != nil:
	case local && to.kind == aPod && to.net.LogicalSwitch == p.Switch:
		target = to.net.MAC
	case q.Protocol == Neighbour || physical || len(gateways) == 0:
		return p, fmt.Errorf("the destination's hardware address is not known: write it after the address of %s", q.To)
	default:
		target = translate.GatewayPortMAC(gateways)
	}
	p.Match = fmt.Sprintf(`inport == "%s" && eth.src == %s && eth.dst == %s && `, p.Port, mac, target)
	p.Flow = fmt.Sprintf("dl_src=%s,dl_dst=%s,", mac, target)
	match, flow := q.fields(source, to.addr, mac)
	p.Match, p.Flow = p.Match+match, p.Flow+flow
	return p, nil
}

func (s *Snapshot) joinGateways() []netip.Addr {
	join := s.subnet(kubeovnv1.JoinSubnet)
	if join == nil {
		return nil
	}
	network, problem := validation.Subnet(join.Name, &join.Spec)
	if problem != nil {
		return nil
	}
	return network.Gateways
}

func (s *Snapshot) logicalGateway(subnet string) bool {
	of := s.subnet(subnet)
	return of != nil && of.Spec.LogicalGateway
}

// everyone is the hardware address to which a question for the hardware address of addr goes (RFC 826, RFC 4861).
func everyone(addr netip.Addr) net.HardwareAddr {
	if addr.Is4() {
		return net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	b := addr.As16()
	return net.HardwareAddr{0x33, 0x33, 0xff, b[13], b[14], b[15]}
}

// fields returns the fields of a query's packet above Ethernet, for ovn-trace and for ofproto/trace.
func (q Query) fields(src, dst netip.Addr, mac net.HardwareAddr) (match, flow string) {
	v4 := dst.Is4()
	if q.Protocol == Neighbour {
		return q.neighbourFields(src, dst, mac)
	}
	ip, nw, name := "ip4", "nw", q.Protocol
	if !v4 {
		ip, nw, name = "ip6", "ipv6", q.Protocol+"6"
	}
	match = fmt.Sprintf("%[1]s.src == %[2]s && %[1]s.dst == %[3]s && ip.ttl == 64 && ", ip, src, dst)
	flow = fmt.Sprintf("%s,%s_src=%s,%s_dst=%s,nw_ttl=64,", name, nw, src, nw, dst)
	if q.Protocol == ICMP {
		kind := map[bool]int{true: 8, false: 128}[v4]
		if q.Answer {
			kind = map[bool]int{true: 0, false: 129}[v4]
		}
		return match + fmt.Sprintf("icmp%[1]s.type == %[2]d && icmp%[1]s.code == 0", ip[2:], kind), flow + fmt.Sprintf("icmp_type=%d,icmp_code=0", kind)
	}
	from, to := q.SourcePort, q.Port
	if from == 0 {
		from = ephemeral
	}
	if q.Answer { // it comes from the port that the connection was opened to
		from, to = to, from
	}
	match += fmt.Sprintf("%[1]s.src == %[2]d && %[1]s.dst == %[3]d", q.Protocol, from, to)
	flow += fmt.Sprintf("tp_src=%d,tp_dst=%d", from, to)
	if q.Protocol == TCP && !q.Answer {
		match, flow = match+" && tcp.flags == 2", flow+",tcp_flags=syn"
	}
	return match, flow
}

// neighbourFields are the fields of an ARP request or a neighbour solicitation, or of the answer to one.
func (q Query) neighbourFields(src, dst netip.Addr, mac net.HardwareAddr) (match, flow string) {
	operation := map[bool]int{false: 1, true: 2}[q.Answer]
	if dst.Is4() {
		return fmt.Sprintf("eth.type == 0x806 && arp.op == %d && arp.spa == %s && arp.tpa == %s && arp.sha == %s", operation, src, dst, mac),
			fmt.Sprintf("arp,arp_op=%d,arp_spa=%s,arp_tpa=%s,arp_sha=%s", operation, src, dst, mac)
	}
	if q.Answer {
		return fmt.Sprintf("ip6.src == %[1]s && ip6.dst == %[2]s && ip.ttl == 255 && icmp6.type == 136 && icmp6.code == 0 && nd.target == %[1]s && nd.tll == %[3]s", src, dst, mac),
			fmt.Sprintf("icmp6,ipv6_src=%[1]s,ipv6_dst=%[2]s,nw_ttl=255,icmp_type=136,icmp_code=0,nd_target=%[1]s,nd_tll=%[3]s", src, dst, mac)
	}
	b := dst.As16()
	group := netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
	return fmt.Sprintf("ip6.src == %s && ip6.dst == %s && ip.ttl == 255 && icmp6.type == 135 && icmp6.code == 0 && nd.target == %s && nd.sll == %s", src, group, dst, mac),
		fmt.Sprintf("icmp6,ipv6_src=%s,ipv6_dst=%s,nw_ttl=255,icmp_type=135,icmp_code=0,nd_target=%s,nd_sll=%s", src, group, dst, mac)
}

// Arguments returns the arguments of ovn-trace for the packet, without the database.
func (p Packet) Arguments() []string {
	// Each stage of connection tracking takes one state. An unused one is no error.
	return append(strings.Split(strings.Repeat("--ct="+p.State+" ", 7)+"--ct="+p.State, " "), p.Switch, p.Match)
}
