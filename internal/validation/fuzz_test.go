// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/json"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/testing/fuzzedit"
	"github.com/kiln-net/kiln/internal/validation/match"
)

// These targets also check specs that the API server rejects. FuzzObjects in cmd/kiln uses a real API server and a real
// database, and is slower by orders of magnitude.

// edit decodes a spec from JSON with edits applied. It returns false if the result is not a spec.
func edit[T any](t *testing.T, spec, edits string) (edited T, ok bool) {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(spec), &object); err != nil {
		t.Fatal(err)
	}
	object, err := fuzzedit.Apply(object, edits)
	if err != nil {
		return edited, false
	}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return edited, json.Unmarshal(text, &edited) == nil
}

// isText reports whether OVSDB can hold a text: UTF-8 without a null character (RFC 7047, section 3.1).
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func isPlain(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }

const subnetSpec = `{"cidrBlock":"10.33.0.0/24,fd00:10:33::/64","gateway":"10.33.0.1","excludeIps":["10.33.0.5..10.33.0.9"],"mtu":1400,
	"allowSubnets":["10.40.0.0/24"],"acls":[{"direction":"to-lport","priority":1000,"match":"ip4 && tcp.dst == 80","action":"drop"}],
	"vips":["10.33.0.20"],"dhcpV4Options":"lease_time=600,dns_server={10.96.0.10,10.96.0.11}","dhcpV6Options":"dns_server=fd00::a",
	"ipv6RAConfigs":"address_mode=slaac,max_interval=30","natOutgoingPolicyRules":[{"match":{"srcIPs":"10.33.0.0/25"},"action":"nat"}]}`

// FuzzSubnet edits the spec of a subnet. An accepted spec has one CIDR per family, a gateway inside each of them, shared
// addresses inside them, and rules and options that OVSDB can store. There must be no panic.
func FuzzSubnet(f *testing.F) {
	f.Add("")
	f.Add("/cidrBlock=10.33.0.1/32\n/gateway\n/vips\n/natOutgoingPolicyRules")
	f.Add("/acls/0/match=inport == \"a\\u0000\"\n/dhcpV4Options=domain_name=\"a\\u0000\"")
	f.Add("/gatewayType=centralized\n/gatewayNode=a:10.0.0.1,b\n/externalEgressGateway=192.0.2.1\n/policyRoutingTableID=1")
	f.Add("/cidrBlock=::fffe:0:0/95\n/gateway\n/vips\n/natOutgoingPolicyRules")
	f.Add("/namespaceSelectors/0/matchExpressions/0/operator=In\n/vlan=v\n/provider=a.b")
	f.Fuzz(func(t *testing.T, edits string) {
		spec, ok := edit[kubeovnv1.SubnetSpec](t, subnetSpec, edits)
		if !ok {
			return
		}
		network, problem := Subnet("fuzzed", &spec)
		if problem != nil {
			return
		}
		checkNetwork(t, network)
		features, problem := SubnetFeatures(&spec, network)
		if problem != nil {
			return
		}
		for _, options := range []map[string]string{features.DHCPOptions["IPv4"], features.DHCPOptions["IPv6"], features.RouterAdvertisements} {
			for key, value := range options {
				if !isText(key) || !isText(value) {
					t.Errorf("option %q=%q", key, value)
				}
			}
		}
		for _, rule := range spec.ACLs {
			if !isText(rule.Match) || rule.Priority < 0 || rule.Priority > maxACLPriority {
				t.Errorf("rule %+v", rule)
			}
		}
		for _, vip := range features.Vips {
			if !slices.ContainsFunc(network.CIDRs, func(c netip.Prefix) bool { return c.Contains(vip) }) || slices.Contains(network.Gateways, vip) {
				t.Errorf("shared address %s of %v", vip, network)
			}
		}
	})
}

// mapped is the range of IPv4-mapped IPv6 addresses.
var mapped = netip.PrefixFrom(netip.MustParseAddr("::ffff:0:0"), 96)

func checkNetwork(t *testing.T, network Network) {
	t.Helper()
	if len(network.CIDRs) != len(network.Gateways) || len(network.CIDRs) > 2 {
		t.Fatalf("network %v", network)
	}
	for i, cidr := range network.CIDRs {
		gateway := network.Gateways[i]
		if cidr != cidr.Masked() || cidr.Overlaps(mapped) || !cidr.Contains(gateway) || !isPlain(gateway) || reserved(gateway, cidr) {
			t.Errorf("gateway %s of %s", gateway, cidr)
		}
	}
	for _, r := range network.Exclude {
		if !r.Contains(r.From) || !r.Contains(r.To) {
			t.Errorf("range %v", r)
		}
	}
}

const vpcSpec = `{"staticRoutes":[{"cidr":"10.50.0.0/16","nextHopIP":"169.254.9.1","policy":"policyDst","routeTable":"t"}],
	"policyRoutes":[{"priority":10,"match":"ip4.src == 10.33.0.0/24","action":"reroute","nextHopIP":"169.254.9.1,fd00::1"}],
	"vpcPeerings":[{"remoteVpc":"blue","localConnectIP":"169.254.9.2/30,fd00:9::2/126"}]}`

// FuzzVpc edits the spec of a VPC. Each accepted static route has a next hop of its family. Each policy has a valid priority
// and match, and next hops if it reroutes. Each link has at most one address per family. There are no duplicates.
func FuzzVpc(f *testing.F) {
	f.Add("")
	f.Add("/staticRoutes/1/cidr=10.50.0.1/16\n/policyRoutes/1/action=drop\n/vpcPeerings/1/remoteVpc=red")
	f.Add("/staticRoutes/0/nextHopIP=fe80::1%a\n/staticRoutes/0/cidr=::ffff:10.0.0.0/104\n/policyRoutes/0/nextHopIP=,")
	f.Fuzz(func(t *testing.T, edits string) {
		spec, ok := edit[kubeovnv1.VpcSpec](t, vpcSpec, edits)
		if !ok || slices.Contains(spec.StaticRoutes, nil) || slices.Contains(spec.PolicyRoutes, nil) || slices.Contains(spec.VpcPeerings, nil) {
			return // the API server rejects null in lists
		}
		router, _ := Vpc("fuzzed", &spec)
		for i, route := range router.Routes {
			if !isPlain(route.NextHop) || ipfamily.Of(route.NextHop) != ipfamily.Of(route.Prefix.Addr()) || route.Prefix != route.Prefix.Masked() {
				t.Errorf("route %+v", route)
			}
			same := func(other StaticRoute) bool { other.Index = route.Index; return other == route }
			if slices.ContainsFunc(router.Routes[i+1:], same) {
				t.Errorf("two routes %+v", route)
			}
		}
		for _, policy := range router.Policies {
			_, err := match.Parse(policy.Match)
			if err != nil || !isText(policy.Match) || policy.Priority < 0 || policy.Priority > maxPolicyPriority ||
				(policy.Action == kubeovnv1.PolicyRouteReroute) != (len(policy.NextHops) > 0) {
				t.Errorf("policy %+v: %v", policy, err)
			}
		}
		for i, peering := range router.Peerings {
			if n := len(peering.Addresses); n < 1 || n > 2 || n == 2 && sameFamily(peering.Addresses[0], peering.Addresses[1]) {
				t.Errorf("link %+v", peering)
			}
			if slices.ContainsFunc(router.Peerings[i+1:], func(other Peering) bool { return other.Remote == peering.Remote }) {
				t.Errorf("two links %+v", peering)
			}
		}
	})
}

const ruleSpec = `{"vip":"10.16.0.230,fd00::1","vpc":"ovn-cluster","ovnEip":"front","namespace":"shop","selector":["app:web"],"endpoints":["10.16.0.3"],
	"sessionAffinity":"ClientIP","ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":8080}]}`

// FuzzLBRule edits the fields of a SwitchLBRule and of a RouterLBRule. Accepted VIPs and endpoints are unicast addresses, port
// names are unique, and the labels of the selector are valid. There must be no panic.
func FuzzLBRule(f *testing.F) {
	f.Add("/selector")
	f.Add("/endpoints\n/ports/1/port=81\n/selector/0=a/b/c:web")
	f.Add("/selector\n/ports/0/name\n/ports/1/port=81\n/ports/1/name") // two ports without names
	f.Add("/selector\n/vip=::ffff:127.0.0.1\n/endpoints/0=fe80::1%eth0")
	f.Fuzz(func(t *testing.T, edits string) {
		if spec, ok := edit[kubeovnv1.SwitchLBRuleSpec](t, ruleSpec, edits); ok {
			vips, problem := LBRuleVIPs(spec.VIP)
			if problem == nil && (len(vips) == 0 || slices.ContainsFunc(vips, func(a netip.Addr) bool { return !isPlain(a) || unreachable(a) })) {
				t.Errorf("VIPs %v", vips)
			}
		}
		spec, ok := edit[kubeovnv1.RouterLBRuleSpec](t, ruleSpec, edits)
		if !ok || RouterLBRule(&spec) != nil {
			return
		}
		for i, p := range spec.Ports {
			name := LBRulePortName(&p)
			if slices.ContainsFunc(spec.Ports[i+1:], func(other kubeovnv1.LBRulePort) bool { return LBRulePortName(&other) == name }) {
				t.Errorf("two ports named %q", name)
			}
		}
		for key, value := range LBRuleSelector(&spec.LBRuleBackends) {
			if !isText(key) || !isText(value) {
				t.Errorf("label %q=%q", key, value)
			}
		}
	})
}

// FuzzIPPool parses any text as the addresses of a pool, one element per line. Accepted addresses must be in the CIDRs of the
// subnet.
func FuzzIPPool(f *testing.F) {
	f.Add("10.16.0.0/16,fd00::/64", "10.16.0.2..10.16.0.9\nfd00::/126\n10.16.0.1")
	f.Add("10.16.0.0/16", "0.0.0.0/0\n10.15.255.255..10.16.0.1")
	f.Fuzz(func(t *testing.T, cidrBlock, ips string) {
		pool := &kubeovnv1.IPPool{Spec: kubeovnv1.IPPoolSpec{IPs: strings.Split(ips, "\n")}}
		ranges, problem := IPPool(pool, cidrBlock)
		if problem != nil {
			return
		}
		cidrs, err := ipfamily.ParseCIDRs(cidrBlock)
		if err != nil {
			t.Fatalf("%q was accepted: %v", cidrBlock, err)
		}
		for _, r := range ranges {
			if !slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(r.From) && c.Contains(r.To) }) {
				t.Errorf("%s is outside of %s", r, cidrBlock)
			}
		}
	})
}
