// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// peersOf compiles ipBlocks, and returns their networks and the problems.
func peersOf(blocks ...networkingv1.IPBlock) ([]netip.Prefix, []string) {
	c := &compiler{}
	var list []networkingv1.NetworkPolicyPeer
	for i := range blocks {
		list = append(list, networkingv1.NetworkPolicyPeer{IPBlock: &blocks[i]})
	}
	p := c.peers("rule 0", list)
	return p.networks, c.problems
}

func TestNetworksOfBlocks(t *testing.T) {
	for _, tt := range []struct {
		name, blocks, want string // blocks are separated by spaces; exceptions follow as in 10.0.0.0/8-10.1.0.0/16-10.2.0.0/16
	}{
		{"a block", "10.0.0.0/8", "10.0.0.0/8"},
		{"everything", "0.0.0.0/0 ::/0", "0.0.0.0/0 ::/0"},
		{"bits behind the prefix do not count", "10.1.2.3/8-10.200.0.1/9", "10.0.0.0/9"},
		{"a half", "10.0.0.0/8-10.0.0.0/9", "10.128.0.0/9"},
		{"the first address", "192.0.2.0/30-192.0.2.0/32", "192.0.2.1/32 192.0.2.2/31"},
		{"the last address", "192.0.2.0/30-192.0.2.3/32", "192.0.2.0/31 192.0.2.2/32"},
		{"the last address of all", "240.0.0.0/4-255.255.255.254/31", strings.Join([]string{
			"240.0.0.0/5 248.0.0.0/6 252.0.0.0/7 254.0.0.0/8 255.0.0.0/9 255.128.0.0/10 255.192.0.0/11 255.224.0.0/12 255.240.0.0/13",
			"255.248.0.0/14 255.252.0.0/15 255.254.0.0/16 255.255.0.0/17 255.255.128.0/18 255.255.192.0/19 255.255.224.0/20 255.255.240.0/21",
			"255.255.248.0/22 255.255.252.0/23 255.255.254.0/24 255.255.255.0/25 255.255.255.128/26 255.255.255.192/27 255.255.255.224/28",
			"255.255.255.240/29 255.255.255.248/30 255.255.255.252/31",
		}, " ")},
		{"exceptions that meet", "10.0.0.0/8-10.0.0.0/10-10.64.0.0/10", "10.128.0.0/9"},
		{"exceptions in exceptions", "10.0.0.0/8-10.1.0.0/16-10.0.0.0/9-10.1.2.3/32", "10.128.0.0/9"},
		{"all of it", "10.0.0.0/8-10.0.0.0/8", ""},
		{"all of it in parts", "10.0.0.0/8-10.0.0.0/9-10.128.0.0/9", ""},
		{"everything but everything", "0.0.0.0/0-0.0.0.0/0 ::/0-::/1-8000::/1", ""},
		{"another block", "10.0.0.0/8-10.0.0.0/8 192.0.2.0/24", "192.0.2.0/24"},
		{"an exception takes nothing from other blocks", "10.0.0.0/8-10.0.0.0/9 10.1.0.0/16", "10.1.0.0/16 10.128.0.0/9"},
		{"blocks that are everything together", "0.0.0.0/0-10.0.0.0/8 10.0.0.0/8", "0.0.0.0/0"},
		{"blocks in order", "2001:db8::/32 192.0.2.0/24 10.0.0.0/9 10.128.0.0/9", "10.0.0.0/8 192.0.2.0/24 2001:db8::/32"},
		{"IPv6", "2001:db8::/125-2001:db8::5/128", "2001:db8::/126 2001:db8::4/128 2001:db8::6/127"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var blocks []networkingv1.IPBlock
			for text := range strings.FieldsSeq(tt.blocks) {
				parts := strings.Split(text, "-")
				blocks = append(blocks, networkingv1.IPBlock{CIDR: parts[0], Except: parts[1:]})
			}
			networks, problems := peersOf(blocks...)
			if got := strings.ReplaceAll(ipfamily.Join(networks), ",", " "); got != tt.want || problems != nil {
				t.Errorf("got %q, want %q; problems %q", got, tt.want, problems)
			}
		})
	}
}

// TestNetworksAreTheBlocksWithoutTheirExceptions compares random blocks with their networks, for addresses at all edges and random ones.
func TestNetworksAreTheBlocksWithoutTheirExceptions(t *testing.T) {
	seed.Histories(t, nil, 200, func(t *testing.T, _ uint64, random *rand.Rand) {
		var blocks []networkingv1.IPBlock
		var samples []netip.Addr
		most := 0 // networks
		for range 1 + random.IntN(3) {
			cidr := randomPrefix(random, netip.Prefix{})
			block := networkingv1.IPBlock{CIDR: cidr.String()}
			samples = append(samples, around(random, cidr)...)
			most++
			for range random.IntN(7) {
				except := randomPrefix(random, cidr)
				block.Except = append(block.Except, except.String())
				samples = append(samples, around(random, except)...)
				most += except.Bits() - cidr.Bits()
			}
			blocks = append(blocks, block)
		}
		networks, problems := peersOf(blocks...)
		if problems != nil {
			t.Fatalf("%v: problems %q", blocks, problems)
		}
		if len(networks) > most {
			t.Errorf("%v are %d networks, more than one for each bit that exceptions are longer: %v", blocks, len(networks), networks)
		}
		for i := 1; i < len(networks); i++ {
			a, b := networks[i-1], networks[i]
			parent := netip.PrefixFrom(a.Addr(), max(a.Bits()-1, 0)).Masked()
			if a.Overlaps(b) || a.Compare(b) >= 0 || a.Bits() == b.Bits() && parent.Contains(b.Addr()) {
				t.Errorf("%v: networks %s and %s are not the shortest list in order", blocks, a, b)
			}
		}
		for _, a := range samples {
			want := slices.ContainsFunc(blocks, func(b networkingv1.IPBlock) bool {
				in := func(s string) bool { return netip.MustParsePrefix(s).Contains(a) }
				return in(b.CIDR) && !slices.ContainsFunc(b.Except, in)
			})
			if got := slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) }); got != want {
				t.Errorf("%v: %s is in networks %v: %t, want %t", blocks, a, networks, got, want)
			}
		}
	})
}

// randomPrefix returns a random prefix of either family, or a part of another prefix. Its length is often close to that limit, where
// carries occur.
func randomPrefix(random *rand.Rand, of netip.Prefix) netip.Prefix {
	if !of.IsValid() {
		of = netip.MustParsePrefix("0.0.0.0/0")
		if random.IntN(2) == 0 {
			of = netip.MustParsePrefix("::/0")
		}
	}
	bits := of.Bits() + random.IntN(of.Addr().BitLen()-of.Bits()+1)
	if random.IntN(3) == 0 {
		bits = min(of.Bits()+random.IntN(4), of.Addr().BitLen())
	}
	return netip.PrefixFrom(randomAddr(random, of), bits).Masked()
}

func randomAddr(random *rand.Rand, in netip.Prefix) netip.Addr {
	bytes := in.Masked().Addr().AsSlice()
	for bit := in.Bits(); bit < len(bytes)*8; bit++ {
		if random.IntN(2) == 0 {
			bytes[bit/8] |= 0x80 >> (bit % 8)
		}
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// around returns the addresses at the edges of a prefix, on both sides, and one inside.
func around(random *rand.Rand, p netip.Prefix) []netip.Addr {
	first, last := p.Addr(), ipfamily.LastAddr(p)
	all := []netip.Addr{first, last, randomAddr(random, p)}
	for _, a := range []netip.Addr{first.Prev(), last.Next()} {
		if a.IsValid() {
			all = append(all, a)
		}
	}
	return all
}

func TestARuleHasABoundedNumberOfNetworks(t *testing.T) {
	except := func(n int) (list []string) {
		for i := range n { // every second address, so that none are adjacent
			list = append(list, netip.AddrFrom4([4]byte{10, 0, byte(i >> 7), byte(i << 1)}).String()+"/32")
		}
		return list
	}
	for _, tt := range []struct {
		name    string
		blocks  []networkingv1.IPBlock
		refused bool
	}{
		{"as many as may be", []networkingv1.IPBlock{{CIDR: "10.0.0.0/19", Except: except(4096)}}, false},
		{"one more", []networkingv1.IPBlock{{CIDR: "10.0.0.0/19", Except: except(4096)}, {CIDR: "192.0.2.0/24"}}, true},
		{"many more", []networkingv1.IPBlock{{CIDR: "0.0.0.0/0", Except: except(30000)}}, true},
		{"many exceptions that are one", []networkingv1.IPBlock{{CIDR: "10.0.0.0/8", Except: slices.Repeat([]string{"10.0.0.1/32"}, 30000)}}, false},
	} {
		networks, problems := peersOf(tt.blocks...)
		if refused := len(problems) == 1 && strings.Contains(problems[0], "rule 0: its ipBlocks are ignored: without their exceptions they are more than 4096 networks"); refused != tt.refused ||
			refused == (len(networks) > 0) || len(networks) > maxNetworks {
			t.Errorf("%s: %d networks, problems %q", tt.name, len(networks), problems)
		}
	}
}
