// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

func TestExplainSaysWhatToChange(t *testing.T) {
	a := netip.MustParseAddr("10.16.0.9")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"full": {
			fmt.Errorf("allocate: %w", &ipam.ExhaustedError{}),
			"subnet s1 is full, it has no free IPv4 address: delete pods, enlarge its cidrBlock or shorten its excludeIps",
		},
		"all ports": {
			fmt.Errorf("allocate: %w", &ipam.PortsError{Limit: 2047}),
			"subnet s1 is full: the switch has all 2047 ports that it can have: delete pods, or serve the namespace with another subnet",
		},
		"taken": {
			fmt.Errorf("allocate: %w", &ipam.TakenError{Address: a, By: "web.shop"}),
			"AddressConflict: address 10.16.0.9 is taken by web.shop: ask for another one",
		},
		"no family": {
			fmt.Errorf("allocate: %w", ipam.ErrNoFamily),
			"subnet s1 has no CIDR of the family in annotation ovn.kubernetes.io/ip_family: correct the annotation, or name another subnet",
		},
		"outside": {
			&ipam.OutsideError{Address: a, Subnet: "s1", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.17.0.0/16")}},
			"address 10.16.0.9 is not one that a port of subnet s1 (10.17.0.0/16) can have: ask for one inside",
		},
		"a failure": {errors.New("connection refused"), ""},
	} {
		if got, _ := explain("s1", c.err); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	full, _ := explain("s1", &ipam.PortsError{Limit: 2047})
	mistakes.Sees(t, 28, full)
}
