// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

const keyAddresses = "addresses"

// IPPoolOwner owns the address set of a pool.
func IPPoolOwner(name string) desired.Owner { return desired.Owner{Kind: KindIPPool, Name: name} }

// PoolSet is the name of a pool's address set: the pool's name with dots instead of dashes, which names in matches cannot
// contain (ovn-sb(5), Logical_Flow.match). Two pools may have the same address set name.
func PoolSet(pool string) string { return strings.ReplaceAll(pool, "-", ".") }

// IPPool returns the address set of a pool, or nil if the pool does not enable it or its ips cannot be parsed.
func IPPool(pool *kubeovnv1.IPPool) []desired.Row {
	ranges, err := ipfamily.ParseRanges(pool.Spec.IPs)
	if err != nil || !pool.Spec.EnableAddressSet {
		return nil
	}
	ref := desired.Ref{Owner: IPPoolOwner(pool.Name), Key: keyAddresses}
	row := desired.Row{Key: keyAddresses, Model: &nb.AddressSet{Name: PoolSet(pool.Name)}}
	for _, r := range ranges {
		for _, prefix := range prefixes(r) {
			row.Elements = append(row.Elements, desired.Element{Of: desired.SetAddresses(ref), Value: prefix})
		}
	}
	return []desired.Row{row}
}

// prefixes returns the smallest list of addresses and CIDRs that exactly covers a range.
func prefixes(r ipfamily.Range) []string {
	var out []string
	for from := r.From; from.IsValid() && !r.To.Less(from); {
		bits := from.BitLen()
		for bits > 0 {
			wider := netip.PrefixFrom(from, bits-1)
			if wider.Masked().Addr() != from || r.To.Less(ipfamily.LastAddr(wider)) {
				break
			}
			bits--
		}
		prefix := netip.PrefixFrom(from, bits)
		if bits == from.BitLen() {
			out = append(out, from.String())
		} else {
			out = append(out, prefix.String())
		}
		from = ipfamily.LastAddr(prefix).Next()
	}
	return out
}
