// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation/match"
)

// model holds the rows of the northbound database that concern a question.
type model struct {
	// sets are the address sets and port groups by the names in matches.
	sets map[string]desired.Ref
	// members are the ports of port groups, and the addresses of address sets.
	members map[desired.Ref]map[string]bool
	acls    map[desired.Ref][]owned[*nb.ACL] // by switch or port group
	ports   map[desired.Ref][]owned[*nb.LogicalRouterPort]
	routes  map[desired.Ref][]owned[*nb.LogicalRouterStaticRoute]
	rules   map[desired.Ref][]owned[*nb.LogicalRouterPolicy]
	peers   map[string]string // the port of a switch to a router's port
	// vague are addresses of pods that the user may not read: they may be in any set.
	vague map[netip.Addr]bool
	// secured are the addresses from which a port may send, if it has port security.
	secured map[string][]string
	observe func(desired.Owner, []desired.Row)
}

// owned is a row with its owner and key.
type owned[T any] struct {
	desired.Ref

	row T
}

func newModel(s *Snapshot) *model {
	return &model{
		observe: s.observe, secured: map[string][]string{},
		sets: map[string]desired.Ref{}, members: map[desired.Ref]map[string]bool{}, acls: map[desired.Ref][]owned[*nb.ACL]{},
		ports: map[desired.Ref][]owned[*nb.LogicalRouterPort]{}, routes: map[desired.Ref][]owned[*nb.LogicalRouterStaticRoute]{},
		rules: map[desired.Ref][]owned[*nb.LogicalRouterPolicy]{}, peers: map[string]string{}, vague: map[netip.Addr]bool{},
	}
}

// clone returns a model to which rows can be added.
func (m *model) clone() *model {
	c := *m
	c.sets, c.peers, c.vague = maps.Clone(m.sets), maps.Clone(m.peers), maps.Clone(m.vague)
	c.acls, c.ports, c.routes, c.rules = clipped(m.acls), clipped(m.ports), clipped(m.routes), clipped(m.rules)
	c.members = make(map[desired.Ref]map[string]bool, len(m.members))
	for set, members := range m.members {
		c.members[set] = maps.Clone(members)
	}
	return &c
}

// clipped returns a map whose lists grow without a change of m.
func clipped[T any](m map[desired.Ref][]owned[T]) map[desired.Ref][]owned[T] {
	c := make(map[desired.Ref][]owned[T], len(m))
	for ref, list := range m {
		c[ref] = slices.Clip(list)
	}
	return c
}

// add adds the rows of an owner.
func (m *model) add(owner desired.Owner, rows []desired.Row) {
	if m.observe != nil {
		m.observe(owner, rows)
	}
	for _, row := range rows {
		ref := desired.Ref{Owner: owner, Key: row.Key}
		for _, e := range row.Elements {
			m.join(e.Of.Row, e.Value)
		}
		switch r := row.Model.(type) {
		case *nb.PortGroup:
			m.sets[r.Name] = ref
		case *nb.AddressSet:
			m.sets[r.Name] = ref
		case *nb.ACL:
			m.acls[row.Parent.Row] = append(m.acls[row.Parent.Row], owned[*nb.ACL]{ref, r})
		case *nb.LogicalRouterPort:
			m.ports[row.Parent.Row] = append(m.ports[row.Parent.Row], owned[*nb.LogicalRouterPort]{ref, r})
		case *nb.LogicalRouterStaticRoute:
			m.routes[row.Parent.Row] = append(m.routes[row.Parent.Row], owned[*nb.LogicalRouterStaticRoute]{ref, r})
		case *nb.LogicalRouterPolicy:
			m.rules[row.Parent.Row] = append(m.rules[row.Parent.Row], owned[*nb.LogicalRouterPolicy]{ref, r})
		case *nb.LogicalSwitchPort:
			for _, set := range row.Members {
				m.join(set.Row, r.Name)
			}
			if len(r.PortSecurity) > 0 {
				m.secured[r.Name] = strings.Fields(strings.Join(r.PortSecurity, " "))
			}
			if peer := r.Options["router-port"]; peer != "" {
				m.peers[peer] = r.Name
			}
		}
	}
}

func (m *model) join(set desired.Ref, member string) {
	if m.members[set] == nil {
		m.members[set] = map[string]bool{}
	}
	m.members[set][member] = true
}

// portGroups returns the port groups of a port.
func (m *model) portGroups(port string) []desired.Ref {
	var groups []desired.Ref
	for _, ref := range m.sets {
		if m.members[ref][port] {
			groups = append(groups, ref)
		}
	}
	return groups
}

// candidate is a rule that may decide about a packet.
type candidate struct {
	tier, priority int
	match          string
	// passes: the rule leaves the decision to the next tier.
	passes bool
	// opens: the packet passes.
	opens bool
	index int // of the caller
	// ofUser: users wrote the match.
	ofUser bool
}

// truth evaluates the match. The destination's hardware address is never one of OVN's monitors, and otherwise not known.
func (c *candidate) truth(p match.Packet) match.Truth {
	truth, err := match.Evaluate(c.match, p)
	if err != nil || c.ofUser && strings.Contains(c.match, "eth.dst") {
		return match.Unknown
	}
	return truth
}

// none is the index of the outcome that no rule matches.
const none = -1

// decide returns the candidates that may decide about a packet: one if it is certain, and otherwise several. The index none stands for no match.
func decide(list []candidate, packet match.Packet) []int {
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Or(a.tier-b.tier, b.priority-a.priority) })
	memo := map[int][]int{}
	var from func(at int) []int
	from = func(at int) []int {
		if at == len(list) {
			return []int{none}
		}
		if known, is := memo[at]; is {
			return known
		}
		c := &list[at]
		truth := c.truth(packet)
		var outcomes []int
		if truth != match.False {
			if c.passes {
				next := at
				for next < len(list) && list[next].tier == c.tier {
					next++
				}
				outcomes = from(next)
			} else {
				outcomes = []int{c.index}
			}
		}
		if truth != match.True || conflicts(list, at, packet) {
			outcomes = union(outcomes, from(at+1))
		}
		memo[at] = outcomes
		return outcomes
	}
	return from(0)
}

// conflicts reports whether the next rule has the same priority and may decide otherwise: the order of such rules is undefined.
func conflicts(list []candidate, at int, packet match.Packet) bool {
	for next := at + 1; next < len(list) && list[next].tier == list[at].tier && list[next].priority == list[at].priority; next++ {
		if list[next].passes == list[at].passes && list[next].opens == list[at].opens {
			continue
		}
		if list[next].truth(packet) != match.False {
			return true
		}
	}
	return false
}

func union(a, b []int) []int {
	for _, i := range b {
		if !slices.Contains(a, i) {
			a = append(a, i)
		}
	}
	return a
}

// userSet reports whether a set of a match is not one of Kiln's: users may name sets that they created by themselves.
func (m *model) userSet(name string) bool {
	_, ours := m.sets[name]
	return !ours && !strings.HasPrefix(name, "svc_monitor")
}
