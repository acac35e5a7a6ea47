// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// expect checks a problem's reason and a part of its message. An empty reason means that there must be no problem.
func expect(t *testing.T, p *Problem, reason, message string) {
	t.Helper()
	switch {
	case p == nil && reason != "":
		t.Fatalf("no problem, want %s", reason)
	case p != nil && p.Reason != reason:
		t.Fatalf("got %+v, want reason %q", *p, reason)
	case p != nil && !strings.Contains(p.Message, message):
		t.Fatalf("message %q lacks %q", p.Message, message)
	}
}

func TestSubnet(t *testing.T) {
	tests := []struct {
		name            string
		spec            kubeovnv1.SubnetSpec
		gateways        string
		exclude         string
		reason, message string
	}{
		{name: "the gateway is the first address by default", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16"}, gateways: "10.16.0.1"},
		{name: "host bits are dropped", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.3.4/16"}, gateways: "10.16.0.1"},
		{name: "gateways come in the order of the CIDRs", spec: kubeovnv1.SubnetSpec{CIDRBlock: "fd00::/64,10.16.0.0/16", Gateway: "10.16.255.254,fd00::5"},
			gateways: "fd00::5,10.16.255.254"},
		{name: "one gateway of two may be left out", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16,fd00::/64", Gateway: "fd00::5"}, gateways: "10.16.0.1,fd00::5"},
		{name: "a /32 is its own gateway", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.9/32"}, gateways: "10.16.0.9"},
		{name: "a /31 has no network address", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.8/31"}, gateways: "10.16.0.8"},
		{name: "excluded addresses and ranges", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", ExcludeIPs: []string{"10.16.0.1..10.16.0.9", "10.99.0.1"}},
			gateways: "10.16.0.1", exclude: "10.16.0.1-10.16.0.9,10.99.0.1"},
		{name: "an underlay subnet may have no CIDR", spec: kubeovnv1.SubnetSpec{Vlan: "vlan1"}},
		{name: "an attachment network of another CNI may have none", spec: kubeovnv1.SubnetSpec{Provider: "macvlan.default"}},

		{name: "gateway nodes with addresses", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", GatewayNode: "a:192.0.2.1, a:2001:db8::1, b"}, gateways: "10.16.0.1"},
		{name: "rules of translated addresses", spec: natRule("nat", "10.16.1.0/24,10.16.0.5", "192.0.2.0/24,2001:db8::/32"), gateways: "10.16.0.1"},
		{name: "an external gateway", spec: external("192.0.2.1", 1000, 1000, false), gateways: "10.16.0.1"},
		{name: "gateway nodes that cannot be read", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", GatewayNode: "a:b"}, reason: ReasonFieldInvalid, message: "gatewayNode: egress address of node a"},
		{name: "another action", spec: natRule("drop", "", ""), reason: ReasonFieldInvalid, message: "must be nat or forward"},
		{name: "a rule that cannot be read", spec: natRule("nat", "10.16.0.0/33", ""), reason: ReasonFieldInvalid, message: "natOutgoingPolicyRules[0].match.srcIPs"},
		{name: "a rule for other sources", spec: natRule("nat", "10.17.0.1", ""), gateways: "10.16.0.1"},
		{name: "a rule for more sources", spec: natRule("nat", "10.0.0.0/8", ""), gateways: "10.16.0.1"},
		{name: "a rule that matches nothing", spec: natRule("nat", "10.16.0.1", "2001:db8::1"), gateways: "10.16.0.1"},
		{name: "an external gateway that is no address", spec: external("gw", 1000, 1000, false), reason: ReasonFieldInvalid, message: "externalEgressGateway"},
		{name: "an external gateway and NAT", spec: external("192.0.2.1", 1000, 1000, true), reason: ReasonFieldInvalid, message: "exclude each other"},
		{name: "an external gateway without priority", spec: external("192.0.2.1", 0, 1000, false), reason: ReasonFieldInvalid, message: "policyRoutingPriority 0"},
		{name: "an external gateway after main", spec: external("192.0.2.1", 32766, 1000, false), reason: ReasonFieldInvalid, message: "from 1 to 32765"},
		{name: "an external gateway in main", spec: external("192.0.2.1", 1000, 254, false), reason: ReasonFieldInvalid, message: "policyRoutingTableID 254"},
		{name: "an external gateway inside", spec: external("10.16.0.9", 1000, 1000, false), reason: ReasonFieldInvalid, message: "inside of cidrBlock"},
		{name: "an external gateway of another family", spec: external("192.0.2.1,2001:db8::1", 1000, 1000, false), reason: ReasonFieldInvalid, message: "2001:db8::1 is of a family"},

		{name: "no CIDR", reason: ReasonCIDRInvalid, message: "cidrBlock is empty: write one CIDR"},
		{name: "no CIDR at all", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0"}, reason: ReasonCIDRInvalid, message: `"10.16.0.0" is not a CIDR`},
		{name: "two CIDRs of a family", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16,10.17.0.0/16"}, reason: ReasonCIDRInvalid, message: "more than one value of family IPv4"},
		{name: "link-local addresses", spec: kubeovnv1.SubnetSpec{CIDRBlock: "169.254.1.0/24"}, reason: ReasonCIDRInvalid, message: "of 169.254.0.0/16, which no port can have"},
		{name: "multicast addresses", spec: kubeovnv1.SubnetSpec{CIDRBlock: "ff02::/64"}, reason: ReasonCIDRInvalid, message: "ff00::/8"},
		{name: "everything", spec: kubeovnv1.SubnetSpec{CIDRBlock: "0.0.0.0/0"}, reason: ReasonCIDRInvalid, message: "0.0.0.0/8"},
		{name: "a gateway outside", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Gateway: "10.17.0.1"}, reason: ReasonGatewayInvalid, message: "gateway 10.17.0.1 is outside of 10.16.0.0/16: write"},
		{name: "a gateway of a family too many", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Gateway: "10.16.0.1,fd00::1"}, reason: ReasonGatewayInvalid, message: "fd00::1 is of a family that"},
		{name: "the network address as gateway", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Gateway: "10.16.0.0"}, reason: ReasonGatewayInvalid, message: "is the network, broadcast"},
		{name: "the broadcast address as gateway", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Gateway: "10.16.255.255"}, reason: ReasonGatewayInvalid, message: "is the network, broadcast"},
		{name: "no address as gateway", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Gateway: "gw"}, reason: ReasonGatewayInvalid, message: `"gw" is not an IP address`},
		{name: "a range backwards", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", ExcludeIPs: []string{"10.16.0.9..10.16.0.1"}}, reason: ReasonExcludeInvalid, message: "ends before it begins"},
		{name: "a small MTU with IPv6", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16,fd00::/64", MTU: 1279}, reason: ReasonFieldInvalid, message: "make it 1280 or more"},
		{name: "a small MTU", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", MTU: 67}, reason: ReasonFieldInvalid, message: "mtu 67: must be from 68"},
		{name: "an MTU above the longest packet", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", MTU: 65536}, reason: ReasonFieldInvalid, message: "to 65535"},
		{name: "a second default", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Default: true}, reason: ReasonFieldInvalid, message: "only subnet ovn-default"},
		{name: "the name of its VPC", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Vpc: "s"}, reason: ReasonNameConflict, message: "rename it"},
		{name: "another gateway type", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", GatewayType: "central"}, reason: ReasonFieldInvalid, message: "must be distributed or centralized"},
		{name: "a wrong selector", spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", NamespaceSelectors: []metav1.LabelSelector{{},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}}}, reason: ReasonFieldInvalid, message: "namespaceSelectors[1]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, p := Subnet("s", &tt.spec)
			expect(t, p, tt.reason, tt.message)
			if got := ipfamily.Join(n.Gateways); got != tt.gateways {
				t.Errorf("gateways %s, want %s", got, tt.gateways)
			}
			if got := ipfamily.Join(n.Exclude); got != tt.exclude {
				t.Errorf("excluded %s, want %s", got, tt.exclude)
			}
		})
	}
	if _, p := Subnet(kubeovnv1.DefaultSubnet, &kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Default: true, MTU: 1000}); p != nil {
		t.Errorf("the default subnet: %+v", *p)
	}
	_, p := Subnet(kubeovnv1.JoinSubnet, &kubeovnv1.SubnetSpec{CIDRBlock: "100.64.0.0/16", Vlan: "v"})
	expect(t, p, ReasonFieldInvalid, "vlan: subnet join connects the nodes with the overlay: remove it")
}

func natRule(action kubeovnv1.NATOutgoingPolicyAction, src, dst string) kubeovnv1.SubnetSpec {
	return kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", NATOutgoing: true, NATOutgoingPolicyRules: []kubeovnv1.NATOutgoingPolicyRule{
		{Action: action, Match: kubeovnv1.NATOutgoingPolicyMatch{SrcIPs: src, DstIPs: dst}},
	}}
}

func external(gateway string, priority, table uint32, nat bool) kubeovnv1.SubnetSpec {
	return kubeovnv1.SubnetSpec{
		CIDRBlock: "10.16.0.0/16", NATOutgoing: nat,
		ExternalEgressGateway: gateway, PolicyRoutingPriority: priority, PolicyRoutingTableID: table,
	}
}

func prefixes(t *testing.T, s string) []netip.Prefix {
	t.Helper()
	list, err := ipfamily.ParseCIDRs(s)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
