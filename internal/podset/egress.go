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

// elect gives a pod to the first owner of the sets of Egress that it is in. While this owner replaces one of its sets by another, both have the pod.
func (x *Index) elect(c *delta, p *pod) {
	p.winner = ""
	for s := range p.in {
		if s.Role == Egress && (p.winner == "" || s.Owner < p.winner) {
			p.winner = s.Owner
		}
	}
	for s := range p.in {
		if s.Role != Egress {
			continue
		}
		_, held := s.held[p]
		switch wanted := s.Owner == p.winner; {
		case wanted == held:
			continue
		case wanted:
			s.held[p] = struct{}{}
		default:
			delete(s.held, p)
		}
		c.egress[p] = struct{}{}
		s.counted(c)
	}
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
