// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"strings"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// A manifest of Kube-OVN may have such rules. They must not stop the rest of the subnet, and users must see that they have no effect.
func TestNATRulesWithoutEffect(t *testing.T) {
	tests := []struct{ name, cidr, sources, destinations, want string }{
		{"any packet", "10.16.0.0/16", "", "", ""},
		{"sources of the subnet", "10.16.0.0/16", "10.16.1.0/24,10.16.0.5", "192.0.2.0/24,2001:db8::/32", ""},
		{"more sources than the subnet has", "10.16.0.0/16", "10.0.0.0/8", "", ""},
		{"sources elsewhere", "10.16.0.0/16", "10.16.0.5,10.17.0.0/24", "", "natOutgoingPolicyRules[0].match.srcIPs 10.17.0.0/24, which is outside of cidrBlock"},
		{"sources of the other family", "10.16.0.0/16,fd00::/64", "fd01::1", "", "natOutgoingPolicyRules[0].match.srcIPs fd01::1/128, which is outside of cidrBlock"},
		{"families that never meet", "10.16.0.0/16", "10.16.0.1", "2001:db8::1", "natOutgoingPolicyRules[0], whose srcIPs and dstIPs have no family of cidrBlock in common"},
		{"destinations of a family that the subnet does not have", "10.16.0.0/16", "", "2001:db8::1", "natOutgoingPolicyRules[0], whose srcIPs and dstIPs have no family of cidrBlock in common"},
		{"a subnet that is invalid", "10.16", "10.17.0.1", "", ""},
		{"a rule that is invalid", "10.16.0.0/16", "here", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := kubeovnv1.SubnetSpec{CIDRBlock: tt.cidr, NATOutgoing: true, NATOutgoingPolicyRules: []kubeovnv1.NATOutgoingPolicyRule{{
				Action: kubeovnv1.NATOutgoingPolicyNAT, Match: kubeovnv1.NATOutgoingPolicyMatch{SrcIPs: tt.sources, DstIPs: tt.destinations},
			}}}
			if got := strings.Join(IgnoredSubnetFields("web", &spec), "; "); got != tt.want {
				t.Errorf("without effect: %q, want %q", got, tt.want)
			}
		})
	}
}
