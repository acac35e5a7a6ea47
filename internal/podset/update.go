// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import (
	"iter"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// delta collects the changes of one event.
type delta struct {
	pods  map[*pod]struct{}
	sets  map[Selector]struct{}
	users map[desired.Owner]struct{}

	egress   map[*pod]struct{}
	complete map[desired.Owner]struct{}
	grouped  bool
}

func newDelta() *delta {
	return &delta{
		pods: map[*pod]struct{}{}, sets: map[Selector]struct{}{}, users: map[desired.Owner]struct{}{}, egress: map[*pod]struct{}{}, complete: map[desired.Owner]struct{}{},
	}
}

func (x *Index) namespace(name string) *namespace {
	ns := x.namespaces[name]
	if ns == nil {
		ns = &namespace{pods: map[*pod]struct{}{}, sets: map[*set]struct{}{}, scopes: map[*scope]struct{}{}}
		x.namespaces[name] = ns
	}
	return ns
}

func (x *Index) setNamespace(c *delta, name string, labels map[string]string) {
	ns := x.namespace(name)
	if ns.known && maps.Equal(ns.labels, labels) {
		return
	}
	ns.labels, ns.known = labels, true
	for _, s := range x.scopes {
		x.rescope(c, s, ns)
	}
}

func (x *Index) use(c *delta, owner desired.Owner, selectors []Selector) {
	u := x.users[owner]
	if u == nil {
		u = &user{owner: owner}
		x.users[owner] = u
	}
	before := u.next
	u.next = map[Selector]struct{}{}
	for _, s := range selectors {
		u.next[s] = struct{}{}
		x.join(c, s, u)
	}
	x.replace(c, u, before)
	for s := range before {
		if _, stays := u.current[s]; !stays {
			x.leave(c, s, u)
		}
	}
}

func (x *Index) settle(c *delta, owner desired.Owner) {
	u := x.users[owner]
	if u == nil {
		return
	}
	before := u.current
	u.current, u.waiting = u.next, false
	for s := range before {
		x.leave(c, s, u)
	}
	if len(u.current) == 0 {
		delete(x.users, owner)
	}
}

// prune removes a namespace that has no known labels, no pods and no sets.
func (x *Index) prune(name string) {
	if ns := x.namespaces[name]; ns != nil && !ns.known && len(ns.pods)+len(ns.sets) == 0 {
		delete(x.namespaces, name)
	}
}

func (x *Index) setPod(c *delta, want Pod) {
	p := x.pods[want.Key]
	if p != nil && (p.UID != want.UID || p.HostNetwork != want.HostNetwork || p.Node != want.Node) {
		x.deletePod(c, p)
		p = nil
	}
	ns := x.namespace(want.Namespace)
	if p == nil {
		p = &pod{Pod: want, in: map[*set]int32{}}
		x.pods[want.Key] = p
		ns.pods[p] = struct{}{}
		x.regroup(c, p, nil, want.Groups)
	} else if maps.Equal(p.Labels, want.Labels) && slices.Equal(p.Ports, want.Ports) && slices.Equal(p.Groups, want.Groups) && p.Vpc == want.Vpc {
		return
	} else {
		x.regroup(c, p, p.Groups, want.Groups)
	}
	p.Pod = want
	for s := range ns.sets {
		x.place(c, s, p, true)
	}
	for scope := range ns.scopes {
		for s := range scope.sets {
			x.place(c, s, p, true)
		}
	}
}

func (x *Index) deletePod(c *delta, p *pod) {
	x.regroup(c, p, p.Groups, nil)
	for s := range p.in {
		x.remove(c, s, p)
	}
	x.forget(c, p)
	delete(x.pods, p.Key)
	delete(x.namespaces[p.Namespace].pods, p)
	x.prune(p.Namespace)
}

// place adds a pod to a set, removes it, or changes its number. inScope is true if the set is over the pod's namespace or group.
func (x *Index) place(c *delta, s *set, p *pod, inScope bool) {
	number, matches := s.holds(p)
	was, member := p.in[s]
	switch {
	case !inScope || !matches:
		if member {
			x.remove(c, s, p)
		}
	case !member:
		x.add(c, s, p, number)
	case was != number:
		x.remove(c, s, p)
		x.add(c, s, p, number)
	}
}

// holds reports whether a pod in the scope of the set is a member, and with which port number.
func (s *set) holds(p *pod) (number int32, ok bool) {
	if p.HostNetwork && s.Role != Peers || p.Mirror && s.Role != Subjects || s.Ungrouped && len(p.Groups) > 0 || !s.selector.Matches(labels.Set(p.Labels)) {
		return 0, false
	}
	if s.Role == Egress && (p.Provider != kubeovnv1.ProviderOVN || p.Vpc != s.Vpc) {
		return 0, false
	}
	if s.Port == "" {
		return 0, true
	}
	for _, port := range p.Ports {
		if port.Name == s.Port && port.Protocol == s.Protocol {
			return port.Number, true
		}
	}
	return 0, false
}

func (x *Index) add(c *delta, s *set, p *pod, number int32) {
	p.in[s], s.members[p] = number, number
	if s.numbers[number]++; s.numbers[number] == 1 && s.Port != "" {
		s.renumbered(c)
	}
	if p.HostNetwork {
		c.sets[s.Selector] = struct{}{}
		return
	}
	if s.Role == Egress {
		s.counted(c)
		x.elect(c, p)
	} else if p.connected {
		s.pending[p] = struct{}{}
	}
	p.revision++
	c.pods[p] = struct{}{}
}

func (x *Index) remove(c *delta, s *set, p *pod) {
	number := s.members[p]
	delete(p.in, s)
	delete(s.members, p)
	if s.numbers[number]--; s.numbers[number] == 0 {
		delete(s.numbers, number)
		if s.Port != "" {
			s.renumbered(c)
		}
	}
	if p.HostNetwork {
		c.sets[s.Selector] = struct{}{}
		return
	}
	if s.Role == Egress {
		if _, held := s.held[p]; held {
			delete(s.held, p)
			s.pending[p] = struct{}{}
			c.egress[p] = struct{}{}
		}
		s.counted(c)
		x.elect(c, p)
		x.left(c, s, p)
	} else {
		x.arrived(c, s, p)
	}
	p.revision++
	c.pods[p] = struct{}{}
}

// renumbered records that the set's members use a new port number, or that a number is no longer used.
func (s *set) renumbered(c *delta) {
	c.sets[s.Selector] = struct{}{}
	s.counted(c)
}

// counted records that the users of a set depend on a change of its members.
func (s *set) counted(c *delta) {
	for u := range s.users {
		c.users[u.owner] = struct{}{}
	}
}

// arrived marks a pod's membership in a set as present in the database. It notifies the users that waited only for this pod.
func (x *Index) arrived(c *delta, s *set, p *pod) {
	if _, pending := s.pending[p]; !pending {
		return
	}
	delete(s.pending, p)
	stalled := len(s.pending) > 0 && s.Role == Egress && s.stalled()
	if len(s.pending) > 0 && !stalled {
		return
	}
	for u := range s.users {
		if u.waiting && (stalled || x.complete(u)) {
			u.waiting = false
			c.users[u.owner], c.complete[u.owner] = struct{}{}, struct{}{}
		}
	}
}

func (x *Index) complete(u *user) bool {
	for s := range u.next {
		if len(x.sets[s].pending) > 0 {
			return false
		}
	}
	for s := range u.current {
		if s.Role == Egress && len(x.sets[s].pending) > 0 {
			return false
		}
	}
	return true
}

// join makes u a user of a selector's set, and creates the set if needed.
func (x *Index) join(c *delta, selector Selector, u *user) {
	s := x.sets[selector]
	if s == nil {
		s = &set{
			Selector: selector, selector: parse(selector.Pods),
			members: map[*pod]int32{}, numbers: map[int32]int{}, pending: map[*pod]struct{}{}, users: map[*user]struct{}{}, held: map[*pod]struct{}{},
		}
		x.sets[selector], x.names[selector.Name()] = s, selector
		c.sets[selector] = struct{}{}
		x.fill(c, s)
	}
	s.users[u] = struct{}{}
}

// fill adds the matching pods to a new set.
func (x *Index) fill(c *delta, s *set) {
	if s.Former != "" {
		return
	}
	if s.Group != "" {
		g := x.group(s.Group)
		g.sets[s] = struct{}{}
		for p := range g.pods {
			x.place(c, s, p, true)
		}
		return
	}
	if s.Namespace != "" {
		ns := x.namespace(s.Namespace)
		ns.sets[s] = struct{}{}
		for p := range ns.pods {
			x.place(c, s, p, true)
		}
		return
	}
	sc := x.scopes[s.Namespaces]
	if sc == nil {
		sc = &scope{selector: parse(s.Namespaces), sets: map[*set]struct{}{}, namespaces: map[*namespace]struct{}{}}
		x.scopes[s.Namespaces] = sc
		for _, ns := range x.namespaces {
			x.rescope(c, sc, ns)
		}
	}
	sc.sets[s] = struct{}{}
	for ns := range sc.namespaces {
		for p := range ns.pods {
			x.place(c, s, p, true)
		}
	}
}

// rescope updates whether a namespace is in a scope, and places its pods if that changed.
func (x *Index) rescope(c *delta, sc *scope, ns *namespace) {
	_, had := sc.namespaces[ns]
	has := ns.known && sc.selector.Matches(labels.Set(ns.labels))
	if has == had {
		return
	}
	if has {
		sc.namespaces[ns], ns.scopes[sc] = struct{}{}, struct{}{}
	} else {
		delete(sc.namespaces, ns)
		delete(ns.scopes, sc)
	}
	for s := range sc.sets {
		for p := range ns.pods {
			x.place(c, s, p, has)
		}
	}
}

// leave removes u from the users of a set, unless u still uses it. The last user to leave removes the set.
func (x *Index) leave(c *delta, selector Selector, u *user) {
	_, current := u.current[selector]
	_, next := u.next[selector]
	s := x.sets[selector]
	if current || next || s == nil {
		return
	}
	if delete(s.users, u); len(s.users) > 0 {
		return
	}
	for p := range s.members {
		x.remove(c, s, p)
	}
	for p := range s.pending {
		if _, kept := p.kept[s]; kept {
			p.revision++
			c.pods[p] = struct{}{}
		}
		delete(p.kept, s)
		delete(p.left, s)
	}
	c.sets[selector] = struct{}{}
	delete(x.sets, selector)
	delete(x.names, selector.Name())
	if s.Former != "" {
		return
	}
	if s.Group != "" {
		delete(x.group(s.Group).sets, s)
		x.pruneGroup(s.Group)
		return
	}
	if s.Namespace != "" {
		delete(x.namespaces[s.Namespace].sets, s)
		x.prune(s.Namespace)
		return
	}
	sc := x.scopes[s.Namespaces]
	if delete(sc.sets, s); len(sc.sets) > 0 {
		return
	}
	for ns := range sc.namespaces {
		delete(ns.scopes, sc)
	}
	delete(x.scopes, s.Namespaces)
}

// hostPods yields the host-network pods of a node. It visits all pods: its callers handle address changes of nodes, which are
// rare.
func (x *Index) hostPods(node string) iter.Seq[*pod] {
	return func(yield func(*pod) bool) {
		for _, p := range x.pods {
			if p.HostNetwork && p.Node == node && !yield(p) {
				return
			}
		}
	}
}
