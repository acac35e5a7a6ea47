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

// HasRows reports whether a set has rows in the database. The pods with the addresses of an OvnEip have a rule each; in the default VPC, the packets of the others are dropped.
func (s Selector) HasRows() bool { return s.Eip == "" || s.Vpc == kubeovnv1.DefaultVpc }

// EgressOf returns the set of Egress that a port is in, of the owner that has it. While the owner replaces its set, a set with an OvnEip precedes: the pod has its rule before, or
// keeps it until, the rows of the other set decide.
func (m Membership) EgressOf() (found Selector, ok bool) {
	for _, part := range m.Parts {
		if part.Role == Egress && NameOf(part.Owner) == m.winner && (!ok || found.Eip == "" && part.Eip != "") {
			found, ok = part.Selector, true
		}
	}
	return found, ok
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
// have the pod. The object of the owner may be another one of the same name. Until the database leads the packets of one of these sets, the pod keeps the sets that it had.
func (x *Index) elect(c *delta, p *pod) {
	if x.loading {
		return
	}
	p.winner = ""
	for s := range p.in {
		if s.Role == Egress && !s.leaving && (p.winner == "" || s.Owner < p.winner) {
			p.winner = s.Owner
		}
	}
	led := false
	var lost []*set
	for s := range p.in {
		if s.Role != Egress {
			continue
		}
		_, held := s.held[p]
		wanted := s.Owner == p.winner || s.leaving && NameOf(s.Owner) == NameOf(p.winner)
		led = led || wanted && (s.led || !s.HasRows())
		if wanted {
			delete(p.kept, s)
		}
		switch {
		case wanted == held:
			continue
		case wanted:
			s.held[p], s.pending[p] = struct{}{}, struct{}{}
		default:
			delete(s.held, p)
			s.pending[p] = struct{}{}
			lost = append(lost, s)
		}
		c.egress[p] = struct{}{}
		s.counted(c)
	}
	for _, s := range lost {
		p.kept = with(p.kept, s)
	}
	if p.winner == "" || led || !p.connected {
		x.drop(c, p)
	}
}

// drop removes a pod from the sets of Egress that it kept. The database may still have the pod in them; without another set its packets leave with another source anyway.
func (x *Index) drop(c *delta, p *pod) {
	for s := range p.kept {
		delete(p.kept, s)
		p.revision++
		c.pods[p], c.egress[p] = struct{}{}, struct{}{}
		if _, in := p.in[s]; p.winner == "" {
			x.arrived(c, s, p)
		} else if !in {
			p.left = with(p.left, s)
		}
	}
}

func with(sets map[*set]struct{}, s *set) map[*set]struct{} {
	if sets == nil {
		sets = map[*set]struct{}{}
	}
	sets[s] = struct{}{}
	return sets
}

// Lead reports that the database leads the packets of the pods in these sets of Egress.
func (x *Index) Lead(selectors []Selector) {
	x.change(func(c *delta) {
		for _, selector := range selectors {
			s := x.sets[selector]
			if s == nil || s.led {
				continue
			}
			s.led = true
			for p := range s.members {
				x.elect(c, p)
			}
		}
	})
}

// Stored reports that the database has the rows of a set.
func (x *Index) Stored(selector Selector) {
	x.change(func(c *delta) {
		s := x.sets[selector]
		if s == nil || s.Role != Egress || s.stored {
			return
		}
		s.stored = true
		s.notify(c)
	})
}

// Stall reports that the rows of a port cannot be committed, until Applied.
func (x *Index) Stall(key Key) {
	x.change(func(c *delta) {
		p := x.pods[key]
		if p == nil || p.stalled {
			return
		}
		p.stalled = true
		for _, sets := range []map[*set]struct{}{p.kept, p.left} {
			for s := range sets {
				s.notify(c)
			}
		}
		for s := range p.in {
			if _, pending := s.pending[p]; pending && s.Role == Egress {
				s.notify(c)
			}
		}
	})
}

// Stalled reports whether a user waits only for ports whose rows cannot be committed.
func (x *Index) Stalled(owner desired.Owner) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	u := x.users[owner]
	if u == nil || x.complete(u) {
		return false
	}
	for _, selectors := range []map[Selector]struct{}{u.current, u.next} {
		for s := range selectors {
			if s.Role == Egress && !x.sets[s].stalled() {
				return false
			}
		}
	}
	return true
}

// stalled reports whether all pending ports of a set are.
func (s *set) stalled() bool {
	for p := range s.pending {
		if !p.stalled {
			return false
		}
	}
	return true
}

// notify notifies the users of a set of Egress.
func (s *set) notify(c *delta) {
	for u := range s.users {
		c.users[u.owner], c.complete[u.owner] = struct{}{}, struct{}{}
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

// left records that the port may still be in a set of Egress that it is no longer in.
func (x *Index) left(c *delta, s *set, p *pod) {
	if _, pending := s.pending[p]; !pending || x.loading {
		return
	}
	delete(p.left, s)
	p.kept = with(p.kept, s)
	if p.winner == "" || x.isLed(p) || !p.connected {
		x.drop(c, p)
	}
}

// isLed reports whether the database leads the packets of one of the sets that has a pod.
func (x *Index) isLed(p *pod) bool {
	for s := range p.in {
		if _, held := s.held[p]; held && (s.led || !s.HasRows()) {
			return true
		}
	}
	return false
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
