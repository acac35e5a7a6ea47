// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// TestTrafficThatAPrivateSubnetAllows checks with ovn-trace which packets pass.
func TestTrafficThatAPrivateSubnetAllows(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	subnet := func(name, v4, v6 string) translate.SubnetInputs {
		in := translate.SubnetInputs{Name: name, Vpc: "ovn-cluster", CIDRs: []netip.Prefix{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}}
		for _, cidr := range in.CIDRs {
			in.Gateways = append(in.Gateways, cidr.Addr().Next())
		}
		return in
	}
	secret, open, friend := subnet("secret", "10.30.0.0/24", "fd00:30::/64"), subnet("open", "10.31.0.0/24", "fd00:31::/64"), subnet("friend", "10.32.0.0/24", "fd00:32::/64")
	join := subnet("join", "100.64.0.0/16", "fd00:100:64::/112")
	secret.Private, secret.AllowSubnets, secret.NodeCIDRs = true, friend.CIDRs, join.CIDRs
	secret.DHCP, secret.IPv6RA = true, true
	e.apply(translate.ProtectionOwner("ovn-cluster"), translate.Protection("ovn-cluster", v1alpha1.ControlPlaneProtection{}))
	e.apply(translate.VpcOwner("ovn-cluster"), translate.Vpc(translate.VpcInputs{Name: "ovn-cluster"}))
	for _, s := range []translate.SubnetInputs{join, secret, open, friend} {
		e.apply(translate.SubnetOwner(s.Name), translate.Subnet(s))
	}
	type host struct {
		subnet   translate.SubnetInputs
		last     byte
		port     string
		hardware net.HardwareAddr
	}
	address := func(h host, family int) netip.Addr {
		a := h.subnet.CIDRs[family].Addr()
		for range h.last {
			a = a.Next()
		}
		return a
	}
	hosts := map[string]host{}
	for i, s := range []translate.SubnetInputs{secret, secret, open, friend} {
		h := host{subnet: s, last: byte(10 + i), port: fmt.Sprintf("p%d.ns", i), hardware: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}}
		hosts[[]string{"a", "b", "open", "friend"}[i]] = h
		e.apply(pod(fmt.Sprintf("p%d", i)), translate.Pod(translate.PodInputs{
			Namespace: "ns", Name: fmt.Sprintf("p%d", i), Vpc: "elsewhere", Subnet: s.Name, MAC: h.hardware,
			Addresses: []netip.Addr{address(h, 0), address(h, 1)}, DHCP: dhcpOf(s),
		}))
	}
	node := host{subnet: join, last: 20, port: "node-n1", hardware: net.HardwareAddr{2, 0, 0, 0, 1, 0}}
	hosts["node"] = node
	e.apply(translate.NodeOwner("n1"), translate.Node(translate.NodeInputs{
		Name: "n1", Vpc: "ovn-cluster", Switch: "join", MAC: node.hardware, Addresses: []netip.Addr{address(node, 0), address(node, 1)},
	}))
	northd.Await("the ports", func(sb *nbtest.Server) bool {
		return slices.Contains(portsOf(sb), "p3.ns") && slices.Contains(portsOf(sb), "node-n1")
	})

	router := func(s translate.SubnetInputs) string {
		for _, row := range server.Rows("Logical_Router_Port") {
			if row["name"] == "ovn-cluster-"+s.Name {
				return row["mac"].(string)
			}
		}
		return ""
	}
	packet := func(from, to host, family int, rest string) string {
		hardware := to.hardware.String()
		if from.subnet.Name != to.subnet.Name {
			hardware = router(from.subnet)
		}
		ip := []string{"ip4", "ip6"}[family]
		return fmt.Sprintf(`inport == "%s" && eth.src == %s && eth.dst == %s && %s.src == %s && %s.dst == %s && ip.ttl == 64 && %s`,
			from.port, from.hardware, hardware, ip, address(from, family), ip, address(to, family), rest)
	}
	for _, tt := range []struct {
		from, to string
		through  bool
	}{
		{"a", "b", true}, {"a", "open", false}, {"open", "a", false}, {"a", "friend", true}, {"friend", "a", true},
		{"node", "a", true}, {"a", "node", false}, {"open", "friend", true},
	} {
		for family := range 2 {
			from, to := hosts[tt.from], hosts[tt.to]
			out := northd.Trace(from.subnet.Name, packet(from, to, family, "tcp.dst == 80"), "--ct=new", "--ct=new")
			if got := strings.Contains(out, `output("`+to.port+`")`); got != tt.through {
				t.Errorf("a connection from %s to %s gets through: %t, in family %d\n%s", tt.from, tt.to, got, family, out)
			}
			back := northd.Trace(to.subnet.Name, packet(to, from, family, "tcp.src == 80"), "--ct=est,rpl", "--ct=est,rpl")
			if got := strings.Contains(back, `output("`+from.port+`")`); tt.through && !got {
				t.Errorf("an answer from %s to %s does not get through, in family %d\n%s", tt.to, tt.from, family, back)
			}
		}
	}
	a := hosts["a"]
	for what, packet := range map[string]string{
		"neighbour discovery": fmt.Sprintf(`inport == "%s" && eth.src == %s && eth.dst == 33:33:ff:00:00:63 && ip6.src == %s && ip6.dst == ff02::1:ff00:63 && ip.ttl == 255 && nd_ns && nd.target == fd00:30::63`,
			a.port, a.hardware, address(a, 1)),
		"a router solicitation": fmt.Sprintf(`inport == "%s" && eth.src == %s && eth.dst == 33:33:00:00:00:02 && ip6.src == fe80::1 && ip6.dst == ff02::2 && ip.ttl == 255 && nd_rs`, a.port, a.hardware),
	} {
		if out := northd.Trace("secret", packet); !strings.Contains(out, `output("`+hosts["b"].port+`")`) {
			t.Errorf("%s does not reach the other port\n%s", what, out)
		}
	}
	for what, packet := range map[string]string{
		"DHCPv4": fmt.Sprintf(`inport == "%s" && eth.src == %s && eth.dst == ff:ff:ff:ff:ff:ff && ip4.src == 0.0.0.0 && ip4.dst == 255.255.255.255 && ip.ttl == 64 && udp.src == 68 && udp.dst == 67`, a.port, a.hardware),
		"DHCPv6": fmt.Sprintf(`inport == "%s" && eth.src == %s && eth.dst == 33:33:00:01:00:02 && ip6.src == fe80::1 && ip6.dst == ff02::1:2 && ip.ttl == 64 && udp.src == 546 && udp.dst == 547`, a.port, a.hardware),
	} {
		if out := northd.Trace("secret", packet); !strings.Contains(out, `output("`+a.port+`")`) {
			t.Errorf("a request of %s is not answered\n%s", what, out)
		}
	}
}

func dhcpOf(s translate.SubnetInputs) []netip.Prefix {
	if s.DHCP {
		return s.CIDRs
	}
	return nil
}
