// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import (
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/validation"
)

// OwnerOf returns the text of an object for Selector.Owner: an older object is before a younger one.
func OwnerOf(o metav1.Object) string {
	return o.GetCreationTimestamp().UTC().Format(time.RFC3339) + "/" + o.GetName()
}

// NameOf returns the name of the object of OwnerOf.
func NameOf(owner string) string {
	_, name, _ := strings.Cut(owner, "/")
	return name
}

// OfEgress returns the selector of the pods of an EgressAddress by a valid spec.
func OfEgress(o metav1.Object, spec *kubeovnv1.EgressAddressSpec) Selector {
	parsed, _ := validation.EgressAddress(spec)
	return Selector{
		Role: Egress, Namespaces: parsed.Namespaces.String(), Pods: parsed.Pods.String(), Owner: OwnerOf(o), Vpc: spec.Vpc, Eip: spec.OvnEip,
	}
}

// HasRows reports whether a set has rows in the database. The pods with the addresses of an OvnEip have a rule each instead.
func (s Selector) HasRows() bool { return s.Eip == "" }

// EgressOf returns the set of Egress that a port is in, of the owner that has it.
func (m Membership) EgressOf() (Selector, bool) {
	for _, part := range m.Parts {
		if part.Role == Egress {
			return part.Selector, true
		}
	}
	return Selector{}, false
}

// Egress returns the number of pods that the owner of a set of Egress has, and how many each earlier owner has instead, by name.
func (x *Index) Egress(s Selector) (held int, others map[string]int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := x.sets[s]
	if of == nil {
		return 0, nil
	}
	if len(of.held) == len(of.members) {
		return len(of.held), nil
	}
	others = map[string]int{}
	for p := range of.members {
		if _, held := of.held[p]; !held {
			others[NameOf(p.winner)]++
		}
	}
	return len(of.held), others
}

// elect gives a pod to the first owner of the sets of Egress that it is in, except those that are leaving. While this owner replaces one of its sets by another, both
// have the pod. The object of the owner may be another one of the same name.
func (x *Index) elect(c *delta, p *pod) {
	p.winner = ""
	for s := range p.in {
		if s.Role == Egress && !s.leaving && (p.winner == "" || s.Owner < p.winner) {
			p.winner = s.Owner
		}
	}
	for s := range p.in {
		if s.Role != Egress {
			continue
		}
		_, held := s.held[p]
		switch wanted := s.Owner == p.winner || s.leaving && NameOf(s.Owner) == NameOf(p.winner); {
		case wanted == held:
			continue
		case wanted:
			s.held[p], s.pending[p] = struct{}{}, struct{}{}
		default:
			delete(s.held, p)
			s.pending[p] = struct{}{}
			if p.winner == "" { // it leaves with another source anyway
				x.arrived(c, s, p)
			}
		}
		c.egress[p] = struct{}{}
		s.counted(c)
	}
}

// replace keeps the sets of Egress that a user requested before until Settle, and elects for their members without them.
func (x *Index) replace(c *delta, u *user, before map[Selector]struct{}) {
	if u.current == nil {
		u.current = map[Selector]struct{}{}
	}
	for selector := range before {
		if selector.Role == Egress {
			u.current[selector] = struct{}{}
		}
	}
	for _, selectors := range []map[Selector]struct{}{u.current, u.next} {
		for selector := range selectors {
			s := x.sets[selector]
			if selector.Role != Egress || s.leaving == s.leaves() {
				continue
			}
			s.leaving = !s.leaving
			for p := range s.members {
				x.elect(c, p)
				p.revision++
				c.pods[p] = struct{}{}
			}
		}
	}
}

// leaves reports whether no user requests a set.
func (s *set) leaves() bool {
	for u := range s.users {
		if _, next := u.next[s.Selector]; next {
			return false
		}
	}
	return true
}

// left records that the port may still be in a set of Egress that it is no longer in. Without another set its packets leave with another source anyway.
func (x *Index) left(c *delta, s *set, p *pod) {
	if _, pending := s.pending[p]; !pending {
		return
	}
	if p.winner == "" {
		x.arrived(c, s, p)
		return
	}
	if p.left == nil {
		p.left = map[*set]struct{}{}
	}
	p.left[s] = struct{}{}
}

// forget records that the database has a port in no set that it left.
func (x *Index) forget(c *delta, p *pod) {
	for s := range p.left {
		if _, in := p.in[s]; !in {
			x.arrived(c, s, p)
		}
	}
	p.left = nil
}

// UsedBy returns the selectors of the sets of an owner: the sets in the database, and the sets that it requested last.
func (x *Index) UsedBy(owner desired.Owner) []Selector {
	x.mu.Lock()
	defer x.mu.Unlock()
	u := x.users[owner]
	if u == nil {
		return nil
	}
	all := maps.Clone(u.next)
	maps.Copy(all, u.current)
	return slices.Collect(maps.Keys(all))
}
