// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestSubnetFeatures(t *testing.T) {
	rule := func(direction, match, action string) kubeovnv1.SubnetSpec {
		return kubeovnv1.SubnetSpec{ACLs: []kubeovnv1.ACL{{Direction: direction, Priority: 1, Match: match, Action: action}}}
	}
	tests := []struct {
		name            string
		spec            kubeovnv1.SubnetSpec
		want            string
		reason, message string
	}{
		{name: "nothing", want: "[] map[IPv4:map[] IPv6:map[]] map[] []"},
		{name: "allowed subnets", spec: kubeovnv1.SubnetSpec{AllowSubnets: []string{"10.1.0.5/16", "fd00::/64"}}, want: "[10.1.0.0/16 fd00::/64] map[IPv4:map[] IPv6:map[]] map[] []"},
		{name: "a rule", spec: rule("from-lport", `inport == "a" && ip4`, "allow-related"), want: "[] map[IPv4:map[] IPv6:map[]] map[] []"},
		{name: "addresses that ports share", spec: kubeovnv1.SubnetSpec{Vips: []string{"10.16.0.9", "fd00:10:16::9", "10.16.0.9"}}, want: "[] map[IPv4:map[] IPv6:map[]] map[] [10.16.0.9 fd00:10:16::9]"},

		{name: "a wrong match", spec: rule("to-lport", "ip4.src = 10.0.0.1", "drop"), reason: ReasonACLInvalid,
			message: "acls[0]: match \"ip4.src = 10.0.0.1\" is wrong at character 9, `=`: write == to compare"},
		{name: "an empty match", spec: rule("to-lport", "", "drop"), reason: ReasonACLInvalid, message: "at its end"},
		{name: "no direction", spec: rule("", "ip4", "drop"), reason: ReasonACLInvalid, message: "must be from-lport or to-lport"},
		{name: "another action", spec: rule("to-lport", "ip4", "deny"), reason: ReasonACLInvalid, message: "must be one of allow, allow-related"},
		{name: "outport before it is known", spec: rule("from-lport", `outport == "a"`, "drop"), reason: ReasonACLInvalid, message: "take direction to-lport"},
		{name: "an allowed subnet that is none", spec: kubeovnv1.SubnetSpec{AllowSubnets: []string{"10.1.0.5"}}, reason: ReasonACLInvalid, message: "allowSubnets[0]"},
		{name: "DHCPv4", spec: kubeovnv1.SubnetSpec{DHCPV4Options: "x=y"}, reason: ReasonDHCPInvalid, message: "dhcpV4Options: there is no option x"},
		{name: "DHCPv6", spec: kubeovnv1.SubnetSpec{DHCPV6Options: "router=fd00::1"}, reason: ReasonDHCPInvalid, message: "dhcpV6Options: there is no option router"},
		{name: "advertisements", spec: kubeovnv1.SubnetSpec{IPv6RAConfigs: "mtu=1000"}, reason: ReasonRAInvalid, message: "ipv6RAConfigs: option mtu"},
		{name: "a shared address outside", spec: kubeovnv1.SubnetSpec{Vips: []string{"10.17.0.9"}}, reason: ReasonVipsInvalid, message: "10.17.0.9 is outside of 10.16.0.0/16"},
		{name: "a limit that cannot be read", spec: kubeovnv1.SubnetSpec{PodLimits: &kubeovnv1.PodLimits{EgressRate: "1P"}}, reason: ReasonFieldInvalid, message: "podLimits.egressRate"},
		{name: "a burst without its rate", spec: kubeovnv1.SubnetSpec{PodLimits: &kubeovnv1.PodLimits{EgressRate: "1M", IngressBurst: "1M"}}, reason: ReasonFieldInvalid, message: "a burst needs the rate"},
		{name: "the gateway shared", spec: kubeovnv1.SubnetSpec{Vips: []string{"10.16.0.1"}}, reason: ReasonVipsInvalid, message: "is the gateway"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.spec.CIDRBlock = "10.16.0.0/16,fd00:10:16::/64"
			network, p := Subnet("s", &tt.spec)
			expect(t, p, "", "")
			features, p := SubnetFeatures(&tt.spec, network)
			expect(t, p, tt.reason, tt.message)
			if got := fmt.Sprint(features.AllowSubnets, features.DHCPOptions, features.RouterAdvertisements, features.Vips); p == nil && got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
