// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// Key identifies the port of a pod on the network of a provider. It names the pod and not the owner of the port (kubeovnv1.Port): two pods run a virtual
// machine that migrates, and each has its own labels.
type Key struct {
	types.NamespacedName

	Provider string
}

// KeyOf returns the key of the port of a pod on the network of a provider.
func KeyOf(pod metav1.Object, provider string) Key {
	return Key{types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetName()}, provider}
}

// Pod holds the properties of a pod that decide which sets its port on one network is in. Its maps and slices must not change.
type Pod struct {
	Key

	UID    types.UID
	Labels map[string]string
	Node   string
	// HostNetwork pods have the addresses of their node. They are only peers, never subjects.
	HostNetwork bool
	// Mirror pods on the pod network are subjects, never peers: each node can create them, with any labels.
	Mirror bool
	// Ports are the named ports.
	Ports []Port
	// Groups are the sorted names of the port's security groups.
	Groups []string
	// Vpc of the port; empty while it is not known.
	Vpc string
}

// Port is a named port of a pod.
type Port struct {
	Name     string
	Protocol string
	Number   int32
}

// Part is a set. For a set with a port name, it is the members with one port number; otherwise the number is 0.
type Part struct {
	Selector

	Number int32
}

// Membership lists the parts of sets that a pod's port is in.
type Membership struct {
	Parts []Part
	// Grouped is true if the port has security groups. First is true if groups of the first tier decide for it: one of its groups
	// is in that tier, or is not known.
	Grouped, First bool
	// winner is the name of the owner of sets of Egress that has the pod.
	winner string
	// Revision is an argument of Applied.
	Revision int
}

// Changes are the effects of an event that observers have to handle.
type Changes struct {
	// Ports are the ports whose membership changed.
	Ports []Key
	// Sets were added or removed, have other port numbers, or have host-network pods on other nodes.
	Sets []Selector
	// Users are the users of sets with other port numbers or, for Egress, with other pods, and users whose sets are now complete.
	Users []desired.Owner
	// Complete are the users whose sets are now complete. For Egress also when a new set is in the database, and when only ports that cannot be committed are missing.
	Complete []desired.Owner
	// Egress are the ports of which another set of Egress has the pod, or none.
	Egress []Key
	// Grouped is true when the first pod names a security group, or the last one stops naming any.
	Grouped bool
}

// Index holds pods, namespaces, and the sets that are in use. It is safe for concurrent use. The cost of an event depends on the
// objects involved: for a pod, the sets of its namespace and those over its namespace's labels; for a new set, the pods of its
// namespaces.
type Index struct {
	mu         sync.Mutex
	namespaces map[string]*namespace
	pods       map[Key]*pod
	sets       map[Selector]*set
	names      map[string]Selector
	scopes     map[string]*scope // by Selector.Namespaces
	groups     map[string]*group
	grouped    int // number of ports with groups
	users      map[desired.Owner]*user
	observers  []func(Changes)
	loading    bool // Load elects at its end
}

type namespace struct {
	labels map[string]string
	known  bool // labels are known; pods may be known earlier
	pods   map[*pod]struct{}
	sets   map[*set]struct{}   // sets of this namespace
	scopes map[*scope]struct{} // scopes that match it
}

// scope holds all sets over the namespaces of one selector.
type scope struct {
	selector   labels.Selector
	sets       map[*set]struct{}
	namespaces map[*namespace]struct{}
}

type pod struct {
	Pod

	in        map[*set]int32 // the value is the number of the port
	revision  int
	connected bool   // it has a port in the database
	winner    string // the owner of the sets of Egress that has the pod
	stalled   bool   // its rows cannot be committed
	// left are sets of Egress that the port may still be in, in the database. It stays in those of kept until one of the winner's sets is led.
	left, kept map[*set]struct{}
}

type set struct {
	Selector

	selector labels.Selector
	members  map[*pod]int32
	numbers  map[int32]int // members per port number
	pending  map[*pod]struct{}
	users    map[*user]struct{}
	// held are, for Egress, the members that no earlier owner has. pending also has former ones, until the database does not. A set that its owner replaces or
	// deletes is leaving: others can have its members. stored and led: the database has its rows, and leads the packets of its pods.
	held        map[*pod]struct{}
	leaving     bool
	stored, led bool
}

type user struct {
	owner   desired.Owner
	current map[Selector]struct{} // in the database
	next    map[Selector]struct{} // requested by the last Use
	waiting bool
}

// New returns an empty index.
func New() *Index {
	return &Index{
		namespaces: map[string]*namespace{}, pods: map[Key]*pod{}, sets: map[Selector]*set{}, names: map[string]Selector{},
		scopes: map[string]*scope{}, groups: map[string]*group{}, users: map[desired.Owner]*user{},
	}
}

// Observe registers f for all later changes. f must not block.
func (x *Index) Observe(f func(Changes)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.observers = append(x.observers, f)
}

// change runs f under the lock and then notifies the observers of the changes.
func (x *Index) change(f func(c *delta)) {
	x.mu.Lock()
	c := newDelta()
	f(c)
	changes := Changes{
		Sets: slices.Collect(maps.Keys(c.sets)), Users: slices.Collect(maps.Keys(c.users)), Complete: slices.Collect(maps.Keys(c.complete)), Grouped: c.grouped,
	}
	for p := range c.pods {
		changes.Ports = append(changes.Ports, p.Key)
	}
	for p := range c.egress {
		changes.Egress = append(changes.Egress, p.Key)
	}
	observers := x.observers
	x.mu.Unlock()
	if len(changes.Ports)+len(changes.Sets)+len(changes.Users)+len(changes.Egress) == 0 && !changes.Grouped {
		return
	}
	for _, observe := range observers {
		observe(changes)
	}
}

// SetPod sets the state of a port whose pod is on a node and not finished, or of a pod on the host network.
func (x *Index) SetPod(p Pod) {
	x.change(func(c *delta) { x.setPod(c, p) })
}

// DeletePod removes a port whose pod was deleted or has finished. The port of a different pod of the same name, by UID, stays.
func (x *Index) DeletePod(key Key, uid types.UID) {
	x.change(func(c *delta) {
		if p := x.pods[key]; p != nil && (uid == "" || p.UID == uid) {
			x.deletePod(c, p)
			delete(c.pods, p) // the caller removes the pod's port itself
		}
	})
}

// SetNamespace sets the labels of a namespace.
func (x *Index) SetNamespace(name string, labels map[string]string) {
	x.change(func(c *delta) { x.setNamespace(c, name, labels) })
}

// DeleteNamespace removes a namespace that was deleted.
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

// Use declares the sets that a user needs from now on. The sets of its earlier calls stay until Settle.
func (x *Index) Use(owner desired.Owner, selectors []Selector) {
	x.change(func(c *delta) { x.use(c, owner, selectors) })
}

// Settle reports that the user's rows no longer refer to sets that are not in its last Use.
func (x *Index) Settle(owner desired.Owner) {
	x.change(func(c *delta) { x.settle(c, owner) })
}

// Complete reports whether all members of a user's sets are in the database, and for Egress, whether pods that left its former sets are in the database without
// them. If not, a later Changes names the user once they are.
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

// Membership returns the sorted membership of a port. It is empty for an unknown port and for a pod on the host network.
func (x *Index) Membership(key Key) Membership {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.pods[key]
	if p == nil {
		return Membership{}
	}
	m := Membership{Revision: p.revision, winner: NameOf(p.winner)}
	if p.HostNetwork || len(p.in)+len(p.Groups) == 0 {
		return m
	}
	m.Parts, m.Grouped = make([]Part, 0, len(p.in)), len(p.Groups) > 0
	m.First = slices.ContainsFunc(p.Groups, func(name string) bool { return x.sets[Selector{Role: Subjects, Group: name, Last: true}] == nil })
	for s, number := range p.in {
		if _, held := s.held[p]; held || s.Role != Egress {
			m.Parts = append(m.Parts, Part{Selector: s.Selector, Number: number})
		}
	}
	for s := range p.kept {
		m.Parts = append(m.Parts, Part{Selector: s.Selector})
	}
	slices.SortFunc(m.Parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Namespaces, b.Namespaces),
			cmp.Compare(a.Pods, b.Pods), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Group, b.Group), cmp.Compare(strconv.FormatBool(a.Last), strconv.FormatBool(b.Last)),
			cmp.Compare(strconv.FormatBool(a.Ungrouped), strconv.FormatBool(b.Ungrouped)), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Vpc, b.Vpc), cmp.Compare(a.Eip, b.Eip), cmp.Compare(a.Former, b.Former))
	})
	return m
}

// Applied reports that the database contains a port's membership of this revision.
func (x *Index) Applied(key Key, revision int) {
	x.change(func(c *delta) {
		p := x.pods[key]
		if p == nil {
			return
		}
		p.connected, p.stalled = true, false
		if p.revision != revision {
			return
		}
		for s := range p.in {
			if _, kept := p.kept[s]; !kept {
				x.arrived(c, s, p)
			}
		}
		x.forget(c, p)
	})
}

// Lookup returns the set with a name; false if it is not in use.
func (x *Index) Lookup(name string) (Selector, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.names[name]
	return s, ok
}

// InUse returns the sets that have users.
func (x *Index) InUse() []Selector {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.sets))
}

// Numbers returns the sorted port numbers that members of a set have for its port name.
func (x *Index) Numbers(s Selector) []int32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s.Port == "" || x.sets[s] == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(x.sets[s].numbers))
}

// HostNodes returns, by port number, the sorted nodes whose host-network pods are in a set.
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

// SetsOnNode returns the sets that contain host-network pods of a node.
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

// Stats are the sizes of an index. Grouped is the number of ports with security groups.
type Stats struct{ Sets, Members, Users, Grouped int }

// Stats returns the sizes of the index.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	stats := Stats{Sets: len(x.sets), Users: len(x.users), Grouped: x.grouped}
	for _, s := range x.sets {
		stats.Members += len(s.members)
	}
	return stats
}
