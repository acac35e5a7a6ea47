// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// Pod is what decides which sets a pod is in. Its maps and slices must not change.
type Pod struct {
	types.NamespacedName

	UID    types.UID
	Labels map[string]string
	Node   string
	// HostNetwork pods have the addresses of their node. They are peers, never subjects.
	HostNetwork bool
	// Ports are those with a name.
	Ports []Port
	// Groups are the names of the pod's security groups, in order.
	Groups []string
}

// Port is a named port of a pod.
type Port struct {
	Name     string
	Protocol string
	Number   int32
}

// Part is a set or, of a set with a port name, the pods with one number for it; the number is 0 otherwise.
type Part struct {
	Selector

	Number int32
}

// Membership is what a pod's port is in.
type Membership struct {
	Parts []Part
	// Grouped says that the pod names security groups, First that groups of the first tier decide for it: any of its groups is of that
	// tier, or not known.
	Grouped, First bool
	// Revision is for Applied.
	Revision int
}

// Changes are what an event means for others.
type Changes struct {
	// Pods are those whose membership changed.
	Pods []types.NamespacedName
	// Sets came, went, have other numbers or are on other nodes with host-network pods.
	Sets []Selector
	// Users are those of sets with other numbers, and those that waited for their sets to be complete.
	Users []desired.Owner
	// Grouped says that the first pod names a security group, or that none does any more.
	Grouped bool
}

// Index holds pods, namespaces, and the sets that are in use. All methods may be called at any time by any goroutine. An event costs
// what it touches: a pod the sets of its namespace and those over its namespaces' labels, a new set the pods of its namespaces.
type Index struct {
	mu         sync.Mutex
	namespaces map[string]*namespace
	pods       map[types.NamespacedName]*pod
	sets       map[Selector]*set
	names      map[string]Selector
	scopes     map[string]*scope // by Selector.Namespaces
	groups     map[string]*group
	grouped    int // how many pods with ports name groups
	users      map[desired.Owner]*user
	observers  []func(Changes)
}

type namespace struct {
	labels map[string]string
	known  bool // its labels are; it may have pods before
	pods   map[*pod]struct{}
	sets   map[*set]struct{}   // of this namespace
	scopes map[*scope]struct{} // that it matches
}

// scope is all sets over the namespaces of one selector.
type scope struct {
	selector   labels.Selector
	sets       map[*set]struct{}
	namespaces map[*namespace]struct{}
}

type pod struct {
	Pod

	in        map[*set]int32 // with the number of the port
	revision  int
	connected bool // it has a port in the database
}

type set struct {
	Selector

	selector labels.Selector
	members  map[*pod]int32
	numbers  map[int32]int // how many members have them
	pending  map[*pod]struct{}
	users    map[*user]struct{}
}

type user struct {
	owner   desired.Owner
	current map[Selector]struct{} // in the database
	next    map[Selector]struct{} // wanted
	waiting bool
}

// New returns an empty index.
func New() *Index {
	return &Index{
		namespaces: map[string]*namespace{}, pods: map[types.NamespacedName]*pod{}, sets: map[Selector]*set{}, names: map[string]Selector{},
		scopes: map[string]*scope{}, groups: map[string]*group{}, users: map[desired.Owner]*user{},
	}
}

// Observe has f called with every change from now on. f must not block.
func (x *Index) Observe(f func(Changes)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.observers = append(x.observers, f)
}

// change runs f under the lock and tells observers what came of it.
func (x *Index) change(f func(c *delta)) {
	x.mu.Lock()
	c := newDelta()
	f(c)
	changes, observers := c.changes(), x.observers
	x.mu.Unlock()
	if len(changes.Pods)+len(changes.Sets)+len(changes.Users) == 0 && !changes.Grouped {
		return
	}
	for _, observe := range observers {
		observe(changes)
	}
}

// SetPod says what a pod is like now. It is for pods that are on a node and not finished.
func (x *Index) SetPod(p Pod) {
	x.change(func(c *delta) { x.setPod(c, p) })
}

// DeletePod says that a pod is gone, or finished; another pod of its name stays.
func (x *Index) DeletePod(key types.NamespacedName, uid types.UID) {
	x.change(func(c *delta) {
		if p := x.pods[key]; p != nil && (uid == "" || p.UID == uid) {
			x.deletePod(c, p)
			delete(c.pods, p) // whoever says that it is gone takes it away
		}
	})
}

// SetNamespace says what labels a namespace has.
func (x *Index) SetNamespace(name string, labels map[string]string) {
	x.change(func(c *delta) { x.setNamespace(c, name, labels) })
}

// DeleteNamespace says that a namespace is gone.
func (x *Index) DeleteNamespace(name string) {
	x.change(func(c *delta) {
		ns := x.namespace(name)
		ns.labels, ns.known = nil, false
		for s := range ns.scopes {
			x.rescope(c, s, ns)
		}
		x.prune(name)
	})
}

// Use says which sets a user needs from now on. Those it has used stay until Settle.
func (x *Index) Use(owner desired.Owner, selectors []Selector) {
	x.change(func(c *delta) { x.use(c, owner, selectors) })
}

// Settle says that the user's rows no longer refer to sets that are not in its last Use.
func (x *Index) Settle(owner desired.Owner) {
	x.change(func(c *delta) { x.settle(c, owner) })
}

// Complete reports whether all members of a user's sets are in the database. When they are not, Changes name the user once they are.
func (x *Index) Complete(owner desired.Owner) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	u := x.users[owner]
	if u == nil {
		return true
	}
	u.waiting = !x.complete(u)
	return !u.waiting
}

// Membership returns what a pod's port is in, in order. A pod that the index does not know, or that has no port of its
// own, is in nothing.
func (x *Index) Membership(key types.NamespacedName) Membership {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.pods[key]
	if p == nil || p.HostNetwork || len(p.in)+len(p.Groups) == 0 {
		return Membership{Revision: revisionOf(p)}
	}
	m := Membership{
		Revision: p.revision, Parts: make([]Part, 0, len(p.in)), Grouped: len(p.Groups) > 0, First: x.undecided(p),
	}
	for s, number := range p.in {
		m.Parts = append(m.Parts, Part{Selector: s.Selector, Number: number})
	}
	slices.SortFunc(m.Parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Namespaces, b.Namespaces),
			cmp.Compare(a.Pods, b.Pods), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Group, b.Group), cmp.Compare(strconv.FormatBool(a.Last), strconv.FormatBool(b.Last)),
			cmp.Compare(strconv.FormatBool(a.Ungrouped), strconv.FormatBool(b.Ungrouped)))
	})
	return m
}

func revisionOf(p *pod) int {
	if p == nil {
		return 0
	}
	return p.revision
}

// Applied says that the database holds a pod's membership of this revision.
func (x *Index) Applied(key types.NamespacedName, revision int) {
	x.change(func(c *delta) {
		p := x.pods[key]
		if p == nil {
			return
		}
		p.connected = true
		if p.revision != revision {
			return
		}
		for s := range p.in {
			x.arrived(c, s, p)
		}
	})
}

// Lookup returns the set of a name; false when it is not in use.
func (x *Index) Lookup(name string) (Selector, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.names[name]
	return s, ok
}

// InUse are the sets that anyone uses.
func (x *Index) InUse() []Selector {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.sets))
}

// Numbers are those that members of a set have for its port, in order.
func (x *Index) Numbers(s Selector) []int32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s.Port == "" || x.sets[s] == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(x.sets[s].numbers))
}

// HostNodes are the nodes whose host-network pods are in a set, in order, by the number of the port.
func (x *Index) HostNodes(s Selector) map[int32][]string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sets[s] == nil {
		return nil
	}
	nodes := map[int32][]string{}
	for p, number := range x.sets[s].members {
		if p.HostNetwork {
			nodes[number] = append(nodes[number], p.Node)
		}
	}
	for number := range nodes {
		slices.Sort(nodes[number])
		nodes[number] = slices.Compact(nodes[number])
	}
	return nodes
}

// SetsOnNode are the sets that hold host-network pods of a node.
func (x *Index) SetsOnNode(node string) []Selector {
	x.mu.Lock()
	defer x.mu.Unlock()
	found := map[Selector]struct{}{}
	for p := range x.hostPods(node) {
		for s := range p.in {
			found[s.Selector] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(found))
}

// Stats are the sizes of an index. Grouped pods name security groups.
type Stats struct{ Sets, Members, Users, Grouped int }

// Stats counts what the index holds.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	stats := Stats{Sets: len(x.sets), Users: len(x.users), Grouped: x.grouped}
	for _, s := range x.sets {
		stats.Members += len(s.members)
	}
	return stats
}
