// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

func TestSecurityGroup(t *testing.T) {
	type rule struct {
		SecurityGroupRule

		IP string // of the family
	}
	rowsOf(t, "securitygroup-", func(in struct {
		SecurityGroupInputs

		Rules []rule
	}) []desired.Row {
		for _, r := range in.Rules {
			r.Family = map[string]ipfamily.Family{"ip4": ipfamily.IPv4, "ip6": ipfamily.IPv6}[r.IP]
			in.SecurityGroupInputs.Rules = append(in.SecurityGroupInputs.Rules, r.SecurityGroupRule)
		}
		return SecurityGroup(in.SecurityGroupInputs)
	})
}
