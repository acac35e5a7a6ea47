// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"hash/fnv"
)

// Pair is the node that carries the traffic of a VPC, and the one that takes its place. Both renew Leases, so that the second is known to
// serve, and that one of two which falls silent is not taken for silence of all.
type Pair struct{ Active, Standby string }

// Has reports whether a node is one of the two.
func (p Pair) Has(node string) bool { return node != "" && (node == p.Active || node == p.Standby) }

// Fits reports whether both are there and serve as far as is known: then Pick changes nothing, whatever other nodes there are.
func (p Pair) Fits(state func(node string) State) bool {
	for _, node := range []string{p.Active, p.Standby} {
		if node == "" || tier(state(node), true) > 0 {
			return false
		}
	}
	return true
}

// Pick chooses the pair of a VPC. Those of the present one stay while they serve, and the second follows the first: a node that joins, or comes
// back, moves nothing. Others are chosen by rendezvous of VPC and node, which spreads the VPCs. When no node is left that is not down the
// first stays where it is: one that may be there is better than none.
func Pick(vpc string, candidates []Candidate, current Pair) Pair {
	var next Pair
	next.Active = best(vpc, candidates, "", current, []string{current.Active, current.Standby})
	next.Standby = best(vpc, candidates, next.Active, current, []string{current.Standby})
	for _, c := range candidates {
		if c.State != Down {
			continue
		}
		if c.Name == next.Standby {
			next.Standby = ""
		}
		if c.Name == next.Active && c.Name != current.Active {
			next.Active = ""
		}
	}
	return next
}

// best is the fittest candidate but one; of those that are as fit, the first of those preferred, or the one of the greatest weight.
func best(vpc string, candidates []Candidate, but string, current Pair, preferred []string) string {
	rank := func(node string) int {
		for i, p := range preferred {
			if p == node {
				return i
			}
		}
		return len(preferred)
	}
	found, foundTier, foundRank, foundWeight := "", 0, 0, uint64(0)
	for _, c := range candidates {
		if c.Name == but {
			continue
		}
		t, r, w := tier(c.State, current.Has(c.Name)), rank(c.Name), weight(vpc, c.Name)
		if found == "" || t < foundTier || t == foundTier && (r < foundRank || r == foundRank && w > foundWeight) {
			found, foundTier, foundRank, foundWeight = c.Name, t, r, w
		}
	}
	return found
}

// tier of a node: the lower, the fitter. One of the present pair of which nothing was heard yet is not given up for that.
func tier(s State, incumbent bool) int {
	if s == Unproven && incumbent {
		return int(Serving)
	}
	return int(s)
}

// weight of a node for a VPC (rendezvous hashing).
func weight(vpc, node string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(vpc + "\x00" + node)) // never fails
	// FNV's upper bits hardly depend on the last bytes, by which names of nodes differ: mix them (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
