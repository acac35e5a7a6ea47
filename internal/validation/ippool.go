// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// IPPool parses the addresses of a pool in a subnet with these CIDRs.
func IPPool(pool *kubeovnv1.IPPool, cidrBlock string) ([]ipfamily.Range, *Problem) {
	ranges, err := ipfamily.ParseRanges(pool.Spec.IPs)
	if err != nil {
		return nil, Problemf(ReasonIPsInvalid, "ips: %v", err)
	}
	cidrs, err := ipfamily.ParseCIDRs(cidrBlock)
	if err != nil {
		return nil, Problemf(ReasonIPsInvalid, "the cidrBlock of subnet %s cannot be read: %v", pool.Spec.Subnet, err)
	}
	var spans []ipfamily.Range
	for _, cidr := range cidrs {
		spans = append(spans, ipfamily.RangeOf(cidr))
	}
	for _, r := range ranges {
		if !slices.ContainsFunc(spans, func(s ipfamily.Range) bool { return s.Contains(r.From) && s.Contains(r.To) }) {
			return nil, Problemf(ReasonIPsInvalid, "ips: %s is outside of subnet %s (%s): change it", r, pool.Spec.Subnet, cidrBlock)
		}
	}
	return ranges, nil
}

// SameSet is the problem of a pool whose address set has the same name as an older pool's.
func SameSet(set, older string) *Problem {
	return Problemf(ReasonNameConflict, "address set %s, whose name is the pool's with dots for dashes, belongs to the older IPPool %s: "+
		"create this one under another name, or set enableAddressSet to false", set, older)
}
