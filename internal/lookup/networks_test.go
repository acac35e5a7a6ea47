// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/seed"
)

// addressIndex is a fake of the cache's index of addresses.
type addressIndex map[string][]netip.Prefix

func (x addressIndex) add(p netip.Prefix) {
	for _, key := range keysOf("vpc", []netip.Prefix{p}) {
		x[key] = append(x[key], p)
	}
}

// around returns the prefixes that overlap with p, and the number of prefixes that it looked at.
func (x addressIndex) around(p netip.Prefix) (found []netip.Prefix, looked int) {
	for _, key := range keysAround("vpc", []netip.Prefix{p}) {
		for _, other := range x[key] {
			looked++
			if other.Overlaps(p) && !slices.Contains(found, other) {
				found = append(found, other)
			}
		}
	}
	return found, looked
}

func randomPrefix(random *rand.Rand) netip.Prefix {
	if random.IntN(2) == 0 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(random.IntN(2)), byte(random.IntN(8)), byte(random.IntN(256))}), random.IntN(33)).Masked()
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, byte(random.IntN(2)), byte(random.IntN(4)), 15: byte(random.IntN(256))}), random.IntN(129)).Masked()
}

func TestAddressesAreFoundByWhateverOverlaps(t *testing.T) {
	random := seed.Rand(seed.New(t), 1)
	x := addressIndex{}
	var all []netip.Prefix
	for range 400 {
		p := randomPrefix(random)
		if !slices.Contains(all, p) {
			all = append(all, p)
			x.add(p)
		}
	}
	for range 400 {
		p := randomPrefix(random)
		found, _ := x.around(p)
		for _, other := range all {
			if other.Overlaps(p) != slices.Contains(found, other) {
				t.Fatalf("%s and %s overlap: %t; found: %t", p, other, other.Overlaps(p), slices.Contains(found, other))
			}
		}
	}
}

func TestTheCostOfALookUpDoesNotGrow(t *testing.T) {
	x := addressIndex{}
	for i := range 4000 {
		for _, cidr := range []string{fmt.Sprintf("10.%d.%d.0/24", i/250, i%250), fmt.Sprintf("fd00:10:%x::/64", i)} {
			p := netip.MustParsePrefix(cidr)
			if found, looked := x.around(p); len(found) > 0 || looked > 16 {
				t.Fatalf("with %d subnets there, %s took a look at %d of them and overlaps with %v", i, p, looked, found)
			}
			x.add(p)
		}
	}
	host := netip.MustParsePrefix("10.3.7.9/32")
	if found, looked := x.around(host); len(found) != 1 || looked > 16 {
		t.Errorf("%s took a look at %d subnets and is in %v", host, looked, found)
	}
}
