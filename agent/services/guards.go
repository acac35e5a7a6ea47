// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
)

// guard is the list of allowed clients of a front, in one family. Fronts with the same list share a chain, so that a list costs its length once: a set of
// pairs of a front and a range costs the square of the number of pairs, since nftables copies it for each pair that it adds.
type guard struct {
	chain   chain
	allowed []netip.Prefix // disjoint and sorted
}

// guardOf reads the clients that may use the load balancer's addresses; nil for all. The API takes them with blanks around them.
func guardOf(s *corev1.Service, f family) *guard {
	if len(s.Spec.LoadBalancerSourceRanges) == 0 {
		return nil
	}
	var b netipx.IPSetBuilder
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && p.Addr().Is6() == f.v6 {
			b.AddPrefix(p)
		}
	}
	set, err := b.IPSet()
	if err != nil { // a builder reports prefixes that are not valid
		return &guard{}
	}
	g := &guard{allowed: set.Prefixes()}
	sum := sha256.Sum256([]byte(g.text()))
	g.chain = chain{kindGuard + f.suffix, int(binary.BigEndian.Uint64(sum[:]) >> 1)}
	return g
}

// verdict returns the verdict of the fronts of a guard: drop all, or jump to the chain, which returns the packets of allowed clients and
// drops the others.
func (g *guard) verdict() string {
	if len(g.allowed) == 0 {
		return verdictDrop
	}
	return verdictJump + g.chain.name()
}

func (g *guard) text() string {
	parts := make([]string, 0, len(g.allowed))
	for _, p := range g.allowed {
		parts = append(parts, p.String())
	}
	return strings.Join(parts, ", ")
}

func (g *guard) rules() []string {
	for _, f := range families {
		if g.chain.kind == kindGuard+f.suffix {
			return []string{f.key + " saddr { " + g.text() + " } return", "drop"}
		}
	}
	return nil
}
