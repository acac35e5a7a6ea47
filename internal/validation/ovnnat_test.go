// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

func TestSpecsOfRulesForExternalAddresses(t *testing.T) {
	fip := func(change func(*kubeovnv1.OvnFipSpec)) func() (NAT, *Problem) {
		spec := kubeovnv1.OvnFipSpec{OvnEip: "eip", IPName: "web.shop"}
		change(&spec)
		return func() (NAT, *Problem) { return OvnFip(&spec) }
	}
	snat := func(spec kubeovnv1.OvnSnatRuleSpec) func() (NAT, *Problem) {
		return func() (NAT, *Problem) { return OvnSnatRule(&spec) }
	}
	dnat := func(change func(*kubeovnv1.OvnDnatRuleSpec)) func() (NAT, *Problem) {
		spec := kubeovnv1.OvnDnatRuleSpec{OvnEip: "eip", IPName: "web.shop", Protocol: "tcp", ExternalPort: "80", InternalPort: "8080"}
		change(&spec)
		return func() (NAT, *Problem) { return OvnDnatRule(&spec) }
	}
	for name, tt := range map[string]struct {
		parse   func() (NAT, *Problem)
		problem string // "" is valid
	}{
		"a pod":                     {fip(func(*kubeovnv1.OvnFipSpec) {}), ""},
		"no OvnEip":                 {fip(func(s *kubeovnv1.OvnFipSpec) { s.OvnEip = "" }), "ovnEip is empty"},
		"a Vip":                     {fip(func(s *kubeovnv1.OvnFipSpec) { s.IPType = "vip" }), ""},
		"an unknown ipType":         {fip(func(s *kubeovnv1.OvnFipSpec) { s.IPType = "pod" }), `ipType "pod"`},
		"distributed":               {fip(func(s *kubeovnv1.OvnFipSpec) { s.Type = "distributed" }), ""},
		"distributed for a Vip":     {fip(func(s *kubeovnv1.OvnFipSpec) { s.Type, s.IPType = "distributed", "vip" }), "distributed needs ipName"},
		"an unknown type":           {fip(func(s *kubeovnv1.OvnFipSpec) { s.Type = "both" }), `type "both"`},
		"nothing":                   {fip(func(s *kubeovnv1.OvnFipSpec) { s.IPName = "" }), "nothing to translate"},
		"addresses without a VPC":   {fip(func(s *kubeovnv1.OvnFipSpec) { s.IPName, s.V4IP = "", "10.0.0.5" }), "vpc is empty"},
		"addresses":                 {fip(func(s *kubeovnv1.OvnFipSpec) { s.IPName, s.Vpc, s.V4IP, s.V6IP = "", "blue", "10.0.0.5", "fd00::5" }), ""},
		"an address of the other":   {fip(func(s *kubeovnv1.OvnFipSpec) { s.IPName, s.Vpc, s.V4IP = "", "blue", "fd00::5" }), "v4Ip"},
		"a multicast address":       {fip(func(s *kubeovnv1.OvnFipSpec) { s.IPName, s.Vpc, s.V6IP = "", "blue", "ff02::1" }), "v6Ip"},
		"a subnet":                  {snat(kubeovnv1.OvnSnatRuleSpec{OvnEip: "eip", VpcSubnet: "net", IPName: "ignored"}), ""},
		"CIDRs":                     {snat(kubeovnv1.OvnSnatRuleSpec{OvnEip: "eip", Vpc: "blue", V4IPCIDR: "10.0.0.0/24", V6IPCIDR: "fd00::/64"}), ""},
		"a CIDR of the other":       {snat(kubeovnv1.OvnSnatRuleSpec{OvnEip: "eip", Vpc: "blue", V6IPCIDR: "10.0.0.0/24"}), "v6IpCidr"},
		"CIDRs without a VPC":       {snat(kubeovnv1.OvnSnatRuleSpec{OvnEip: "eip", V4IPCIDR: "10.0.0.0/24"}), "vpc is empty"},
		"no source":                 {snat(kubeovnv1.OvnSnatRuleSpec{OvnEip: "eip"}), "nothing to translate"},
		"a port":                    {dnat(func(*kubeovnv1.OvnDnatRuleSpec) {}), ""},
		"a protocol in capitals":    {dnat(func(s *kubeovnv1.OvnDnatRuleSpec) { s.Protocol = "UDP" }), ""},
		"an unknown protocol":       {dnat(func(s *kubeovnv1.OvnDnatRuleSpec) { s.Protocol = "icmp" }), "protocol"},
		"no external port":          {dnat(func(s *kubeovnv1.OvnDnatRuleSpec) { s.ExternalPort = "" }), "externalPort"},
		"a range of external ports": {dnat(func(s *kubeovnv1.OvnDnatRuleSpec) { s.ExternalPort = "80-90" }), "externalPort"},
		"internal port 0":           {dnat(func(s *kubeovnv1.OvnDnatRuleSpec) { s.InternalPort = "0" }), "internalPort"},
		"a large internal port":     {dnat(func(s *kubeovnv1.OvnDnatRuleSpec) { s.InternalPort = "65536" }), "internalPort"},
	} {
		_, problem := tt.parse()
		switch {
		case problem == nil && tt.problem != "":
			t.Errorf("%s: there is no problem, want %q", name, tt.problem)
		case problem != nil && (tt.problem == "" || !strings.Contains(problem.Message, tt.problem)):
			t.Errorf("%s: %q, want %q", name, problem.Message, tt.problem)
		}
	}
}

func TestOneOwnerPerExternalAddress(t *testing.T) {
	at := time.Unix(1000, 0)
	source := func(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
	front := func(p corev1.Protocol, n uint16) []Front { return []Front{{p, n}} }
	claim := func(kind, name string, change ...func(*ExternalClaim)) ExternalClaim {
		c := ExternalClaim{Kind: kind, Name: name, Created: at, Eip: "e", Subnet: "ext", Vpc: "blue"}
		for _, f := range change {
			f(&c)
		}
		return c
	}
	fip := func(name string, change ...func(*ExternalClaim)) ExternalClaim {
		return claim("OvnFip", name, append([]func(*ExternalClaim){func(c *ExternalClaim) { c.Whole, c.Sources = true, source("10.0.0.5/32") }}, change...)...)
	}
	snat := func(name, of string, change ...func(*ExternalClaim)) ExternalClaim {
		return claim("OvnSnatRule", name, append([]func(*ExternalClaim){func(c *ExternalClaim) { c.Sources = source(of) }}, change...)...)
	}
	dnat := func(name string, p corev1.Protocol, n uint16, change ...func(*ExternalClaim)) ExternalClaim {
		return claim("OvnDnatRule", name, append([]func(*ExternalClaim){func(c *ExternalClaim) { c.Fronts = front(p, n) }}, change...)...)
	}
	lb := func(name string, n uint16) ExternalClaim {
		return claim("RouterLBRule", name, func(c *ExternalClaim) { c.Fronts = front(corev1.ProtocolTCP, n) })
	}
	younger := func(c *ExternalClaim) { c.Created = at.Add(time.Second) }
	last := func(c *ExternalClaim) { c.Last = true }
	eip := func(name string) func(*ExternalClaim) { return func(c *ExternalClaim) { c.Eip = name } }
	vpc := func(name string) func(*ExternalClaim) { return func(c *ExternalClaim) { c.Vpc = name } }
	subnet := func(name string) func(*ExternalClaim) { return func(c *ExternalClaim) { c.Subnet = name } }
	for name, tt := range map[string]struct {
		first, second ExternalClaim
		loser         string // the words of its problem; "" if both apply
	}{
		"two floating addresses":                          {fip("a"), fip("b", younger, func(c *ExternalClaim) { c.Sources = source("10.0.0.6/32") }), "the older OvnFip a has the addresses"},
		"a floating address and a source":                 {fip("a"), snat("b", "10.0.1.0/24", younger), "the older OvnFip a has the addresses"},
		"a source and a floating address":                 {snat("a", "10.0.1.0/24"), fip("b", younger), "needs the whole address"},
		"a floating address and a port":                   {fip("a"), dnat("b", corev1.ProtocolTCP, 80, younger), "the older OvnFip a has the addresses"},
		"a load balancer and a floating address":          {lb("a", 80), fip("b", younger), "RouterLBRule a uses OvnEip e"},
		"two sources":                                     {snat("a", "10.0.1.0/24"), snat("b", "10.0.2.0/24", younger), ""},
		"a source and a part of it":                       {snat("a", "10.0.1.0/24"), snat("b", "10.0.1.9/32", younger, eip("f")), ""},
		"one source by two addresses":                     {snat("a", "10.0.1.0/24"), snat("b", "10.0.1.0/24", younger, eip("f")), "by the older OvnSnatRule a"},
		"one source by two external subnets":              {snat("a", "10.0.1.0/24"), snat("b", "10.0.1.0/24", younger, eip("f"), subnet("ext2")), ""},
		"one source in two VPCs":                          {snat("a", "10.0.1.0/24"), snat("b", "10.0.1.0/24", younger, eip("f"), vpc("red")), ""},
		"a source that has a floating address":            {fip("a"), snat("b", "10.0.0.5/32", younger, eip("f")), "10.0.0.5 of VPC blue has an address"},
		"a source and a port":                             {snat("a", "10.0.1.0/24"), dnat("b", corev1.ProtocolTCP, 80, younger), ""},
		"a port and a load balancer at another port":      {dnat("a", corev1.ProtocolTCP, 80), lb("b", 81), ""},
		"a port and a load balancer":                      {dnat("a", corev1.ProtocolTCP, 80), lb("b", 80), "has port 80/TCP"},
		"one port of two protocols":                       {dnat("a", corev1.ProtocolTCP, 53), dnat("b", corev1.ProtocolUDP, 53, younger), ""},
		"one address in two VPCs":                         {dnat("a", corev1.ProtocolTCP, 80), dnat("b", corev1.ProtocolTCP, 81, younger, vpc("red")), "uses OvnEip e for VPC blue"},
		"the last valid spec precedes an older rule":      {dnat("b", corev1.ProtocolTCP, 80, younger, last), dnat("a", corev1.ProtocolTCP, 80), "OvnDnatRule b has port 80/TCP"},
		"of the same age, the name decides":               {dnat("a", corev1.ProtocolTCP, 80), dnat("b", corev1.ProtocolTCP, 80), "OvnDnatRule a has port 80/TCP"},
		"of the same age and name, the kind decides":      {fip("a"), snat("a", "10.0.1.0/24"), "OvnFip a has the addresses"},
		"a claim of the same rule by its last valid spec": {dnat("a", corev1.ProtocolTCP, 80, last), dnat("a", corev1.ProtocolTCP, 80), ""},
	} {
		if problem := ExternalConflict(tt.first, []ExternalClaim{tt.second}); problem != nil {
			t.Errorf("%s: the first has problem %q", name, problem.Message)
		}
		problem := ExternalConflict(tt.second, []ExternalClaim{tt.first})
		switch {
		case problem == nil && tt.loser != "":
			t.Errorf("%s: both apply", name)
		case problem != nil && (tt.loser == "" || !strings.Contains(problem.Message, tt.loser)):
			t.Errorf("%s: the second has problem %q, want %q", name, problem.Message, tt.loser)
		}
	}
}

func TestConnectionsNeedAnswersByTheirExternalSubnet(t *testing.T) {
	at := time.Unix(1000, 0)
	v4, v6 := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")
	both := []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6}
	claim := func(kind, name, subnet string, change ...func(*ExternalClaim)) ExternalClaim {
		c := ExternalClaim{Kind: kind, Name: name, Created: at, Eip: "of-" + subnet, Subnet: subnet, Vpc: "blue", Families: both}
		for _, f := range change {
			f(&c)
		}
		return c
	}
	port := func(name, subnet string, p corev1.Protocol, n uint16, change ...func(*ExternalClaim)) ExternalClaim {
		return claim("OvnDnatRule", name, subnet, append(change, func(c *ExternalClaim) {
			c.Ports = []InternalPort{{p, netip.AddrPortFrom(v4, n)}, {p, netip.AddrPortFrom(v6, n)}}
		})...)
	}
	fip := func(name, subnet string, change ...func(*ExternalClaim)) ExternalClaim {
		return claim("OvnFip", name, subnet, append(change, func(c *ExternalClaim) { c.Whole, c.Sources = true, ipfamily.Hosts([]netip.Addr{v4, v6}) })...)
	}
	snat := func(name, subnet, source string, change ...func(*ExternalClaim)) ExternalClaim {
		return claim("OvnSnatRule", name, subnet, append(change, func(c *ExternalClaim) { c.Sources = []netip.Prefix{netip.MustParsePrefix(source)} })...)
	}
	younger := func(c *ExternalClaim) { c.Created = at.Add(time.Second) }
	families := func(f ...ipfamily.Family) func(*ExternalClaim) { return func(c *ExternalClaim) { c.Families = f } }
	const tcp, udp = corev1.ProtocolTCP, corev1.ProtocolUDP
	// The VPC has the external subnets one and two, with routes of the user to these routers in them.
	type routers map[string][]string
	for name, tt := range map[string]struct {
		older, younger ExternalClaim
		routes         routers
		loses          string // the words of the younger one's problem; "" if both apply
	}{
		"one port":                              {port("a", "one", tcp, 80), port("b", "two", tcp, 80, younger), nil, "from port 80/TCP of 10.0.0.5 leave VPC blue by external subnet one only, and the older OvnDnatRule a"},
		"one port, the older one in the second": {port("a", "two", tcp, 80), port("b", "one", tcp, 80, younger), nil, "behind the router of subnet two"},
		"two ports":                             {port("a", "one", tcp, 80), port("b", "two", tcp, 81, younger), nil, ""},
		"two protocols":                         {port("a", "one", tcp, 53), port("b", "two", udp, 53, younger), nil, ""},
		"two VPCs":                              {port("a", "one", tcp, 80), port("b", "two", tcp, 80, younger, func(c *ExternalClaim) { c.Vpc = "red" }), nil, ""},
		"one external subnet":                   {port("a", "two", tcp, 80), port("b", "two", tcp, 80, younger), nil, ""},
		"a subnet without a port of the router": {port("a", "three", tcp, 80), port("b", "one", tcp, 80, younger), nil, ""},
		"two families":                          {port("a", "one", tcp, 80, families(ipfamily.IPv4)), port("b", "two", tcp, 80, younger, families(ipfamily.IPv6)), nil, ""},
		"a common family":                       {port("a", "one", tcp, 80, families(ipfamily.IPv6)), port("b", "two", tcp, 80, younger), nil, "80/TCP of fd00::5"},
		"routes by the second":                  {port("a", "one", tcp, 80), port("b", "two", tcp, 80, younger), routers{"two": {"192.0.3.1", "2001:db8:3::1"}}, ""},
		"a route of one family by the second":   {port("a", "one", tcp, 80), port("b", "two", tcp, 80, younger), routers{"two": {"192.0.3.1"}}, "80/TCP of fd00::5"},
		"routes by the first":                   {port("a", "one", tcp, 80), port("b", "two", tcp, 80, younger), routers{"one": {"192.0.2.1", "2001:db8:2::1"}}, "80/TCP"},
		"two floating addresses":                {fip("a", "one"), fip("b", "two", younger), nil, "packets from 10.0.0.5 leave VPC blue by external subnet one only, and the older OvnFip a"},
		"a source by the first":                 {fip("a", "two"), snat("b", "one", "10.0.0.5/32", younger), nil, "the older OvnFip a"},
		"a source by the second":                {fip("a", "one"), snat("b", "two", "10.0.0.5/32", younger), nil, ""},
		"a wider source by the first":           {fip("a", "two"), snat("b", "one", "10.0.0.0/24", younger), nil, ""},
		"two sources":                           {snat("a", "one", "10.0.0.5/32"), snat("b", "two", "10.0.0.5/32", younger), nil, ""},
		"a port and a floating address":         {port("a", "one", tcp, 80), fip("b", "two", younger), nil, ""},
		"a floating address and a port":         {fip("a", "one"), port("b", "two", tcp, 80, younger), nil, ""},
	} {
		for _, subnet := range []string{"one", "two"} {
			exit := Exit{Subnet: subnet}
			for _, hop := range tt.routes[subnet] {
				exit.Hops = append(exit.Hops, netip.MustParseAddr(hop))
			}
			tt.older.Exits, tt.younger.Exits = append(tt.older.Exits, exit), append(tt.younger.Exits, exit)
		}
		if problem := ExternalConflict(tt.older, []ExternalClaim{tt.younger}); problem != nil {
			t.Errorf("%s: the older one has problem %q", name, problem.Message)
		}
		problem := ExternalConflict(tt.younger, []ExternalClaim{tt.older})
		switch {
		case problem == nil && tt.loses != "":
			t.Errorf("%s: both apply", name)
		case problem != nil && (tt.loses == "" || !strings.Contains(problem.Message, tt.loses) || problem.Reason != ReasonAddressesInUse):
			t.Errorf("%s: the younger one has problem %s: %q, want %q", name, problem.Reason, problem.Message, tt.loses)
		}
	}
}

// A Service keeps the ports that no other user of its OvnEip has.
func TestPortsOfAService(t *testing.T) {
	at := time.Unix(1000, 0)
	claim := func(kind, name string, age int, change func(*ExternalClaim)) ExternalClaim {
		c := ExternalClaim{Kind: kind, Name: name, Created: at.Add(-time.Duration(age) * time.Second), Eip: "e", Vpc: "blue"}
		change(&c)
		return c
	}
	ports := func(numbers ...uint16) func(*ExternalClaim) {
		return func(c *ExternalClaim) {
			for _, n := range numbers {
				c.Fronts = append(c.Fronts, Front{corev1.ProtocolTCP, n})
			}
		}
	}
	udp := func(c *ExternalClaim) { c.Fronts = []Front{{corev1.ProtocolUDP, 80}} }
	whole := func(c *ExternalClaim) { c.Whole = true }
	red := func(c *ExternalClaim) { c.Vpc = "red" }
	last := func(f func(*ExternalClaim)) func(*ExternalClaim) {
		return func(c *ExternalClaim) { f(c); c.Last = true }
	}
	const older, younger = 1, -1
	for name, tt := range map[string]struct {
		others  []ExternalClaim
		free    string
		problem string
	}{
		"alone": {nil, "80/TCP 443/TCP", ""},
		"an older rule with a port": {[]ExternalClaim{claim("OvnDnatRule", "a", older, ports(80))}, "443/TCP",
			"annotation ovn.kubernetes.io/ip_address: the older OvnDnatRule a has port 80/TCP of OvnEip e: choose another port, or request an address of another OvnEip"},
		"a younger rule with a port":          {[]ExternalClaim{claim("OvnDnatRule", "a", younger, ports(80))}, "80/TCP 443/TCP", ""},
		"an applied younger rule with a port": {[]ExternalClaim{claim("OvnDnatRule", "a", younger, last(ports(80)))}, "443/TCP", "OvnDnatRule a has port 80/TCP"},
		"another protocol":                    {[]ExternalClaim{claim("OvnDnatRule", "a", older, udp)}, "80/TCP 443/TCP", ""},
		"two others": {[]ExternalClaim{claim("Service", "shop/b", older, ports(443, 444)), claim("RouterLBRule", "a", older, ports(80, 81))}, "",
			"the older RouterLBRule a has port 80/TCP"},
		"an OvnFip":                      {[]ExternalClaim{claim("OvnFip", "a", older, whole)}, "", "the older OvnFip a has the addresses of OvnEip e: request an address of another OvnEip"},
		"a younger OvnFip":               {[]ExternalClaim{claim("OvnFip", "a", younger, whole)}, "80/TCP 443/TCP", ""},
		"a source":                       {[]ExternalClaim{claim("OvnSnatRule", "a", older, func(*ExternalClaim) {})}, "80/TCP 443/TCP", ""},
		"another VPC":                    {[]ExternalClaim{claim("OvnSnatRule", "a", older, red)}, "", "the older OvnSnatRule a uses OvnEip e for VPC red"},
		"another OvnEip":                 {[]ExternalClaim{claim("OvnFip", "a", older, func(c *ExternalClaim) { whole(c); c.Eip = "f" })}, "80/TCP 443/TCP", ""},
		"another claim of the same one":  {[]ExternalClaim{claim("Service", "shop/web", older, last(ports(80)))}, "80/TCP 443/TCP", ""},
		"an equal name of another kind":  {[]ExternalClaim{claim("OvnFip", "shop/web", older, whole)}, "", "OvnFip shop/web"},
		"of the same age, a lesser name": {[]ExternalClaim{claim("Service", "shop/a", 0, ports(80))}, "443/TCP", "Service shop/a has port 80/TCP"},
	} {
		free, problem := ExternalFronts(claim("Service", "shop/web", 0, ports(80, 443)), tt.others)
		var texts []string
		for _, f := range free {
			texts = append(texts, f.String())
		}
		if got := strings.Join(texts, " "); got != tt.free {
			t.Errorf("%s: the ports are %q, want %q", name, got, tt.free)
		}
		if (problem == nil) != (tt.problem == "") || problem != nil && !strings.Contains(problem.Message, tt.problem) {
			t.Errorf("%s: the problem is %v, want %q", name, problem, tt.problem)
		}
	}
}
