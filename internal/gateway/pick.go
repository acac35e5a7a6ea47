// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"hash/fnv"
	"slices"
)

// Pair is the active node of a VPC and its standby. Both renew Leases. So the standby is known to work, and the silence of one
// node is distinguishable from the silence of all.
type Pair struct{ Active, Standby string }

// Has reports whether a node is the active or the standby node.
func (p Pair) Has(node string) bool { return node != "" && (node == p.Active || node == p.Standby) }

// Nodes returns the active node and the standby, as far as there are any.
func (p Pair) Nodes() []string {
	return slices.DeleteFunc([]string{p.Active, p.Standby}, func(node string) bool { return node == "" })
}

// Fits reports whether both nodes exist and no failure of them is known. Pick then changes nothing, whatever other nodes exist.
func (p Pair) Fits(state func(node string) State) bool {
	for _, node := range []string{p.Active, p.Standby} {
		if node == "" || tier(state(node), true) > 0 {
			return false
		}
	}
	return true
}

// Pick chooses the pair of a VPC. Working nodes of the current pair stay, and the standby replaces a failed active node; a node
// that joins or returns changes nothing. New nodes are chosen by rendezvous hashing of VPC and node, which spreads the VPCs. If
// all nodes are down, the active one stays: a gateway that may work is better than none.
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

// best returns the fittest candidate except the node but. Among equally fit ones it prefers the first in preferred, then the
// greatest weight.
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

// tier returns the fitness of a node; a lower value is fitter. An unproven node of the current pair counts as serving.
func tier(s State, incumbent bool) int {
	if s == Unproven && incumbent {
		return int(Serving)
	}
	return int(s)
}

// weight returns the weight of a node for a VPC (rendezvous hashing).
func weight(vpc, node string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(vpc + "\x00" + node)) // never fails
	// FNV's upper bits hardly depend on the last bytes, in which node names differ: mix them (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
