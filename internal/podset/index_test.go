// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// model computes the results from all objects each time.
type model struct {
	namespaces map[string]map[string]string
	pods       map[Key]Pod
	used       map[desired.Owner][]Selector // by the last Use
	held       map[desired.Owner][]Selector // by the last Settle, and of Egress by each later Use
}

func (m *model) inUse() map[Selector]bool {
	all := map[Selector]bool{}
	for _, uses := range []map[desired.Owner][]Selector{m.used, m.held} {
		for _, selectors := range uses {
			for _, s := range selectors {
				all[s] = true
			}
		}
	}
	return all
}

func (m *model) membership(p Pod) []string {
	var parts []string
	first := m.first(p)
	for s := range m.inUse() {
		if number, ok := m.holds(s, p); ok && (s.Role != Egress || m.has(first, s)) {
			parts = append(parts, fmt.Sprintf("%s %s %d", s, s.Eip, number))
		}
	}
	if len(p.Groups) > 0 {
		decided := func(name string) bool { return m.inUse()[Selector{Role: Subjects, Group: name, Last: true}] }
		parts = append(parts, fmt.Sprint("grouped, first ", slices.ContainsFunc(p.Groups, func(g string) bool { return !decided(g) })))
	}
	slices.Sort(parts)
	return parts
}

func (m *model) grouped() bool {
	for _, p := range m.pods {
		if len(p.Groups) > 0 && !p.HostNetwork {
			return true
		}
	}
	return false
}

func (m *model) holds(s Selector, p Pod) (int32, bool) {
	if p.Mirror && s.Role != Subjects {
		return 0, false
	}
	if s.Group != "" {
		return 0, slices.Contains(p.Groups, s.Group) && (s.Role == Peers || !p.HostNetwork)
	}
	if s.Role == Egress && (p.Provider != kubeovnv1.ProviderOVN || p.Vpc != s.Vpc) {
		return 0, false
	}
	if s.Namespace != "" && s.Namespace != p.Namespace || p.HostNetwork && s.Role != Peers {
		return 0, false
	}
	if s.Namespace == "" {
		ns, ok := m.namespaces[p.Namespace]
		if !ok || !mustParse(s.Namespaces).Matches(labels.Set(ns)) {
			return 0, false
		}
	}
	if !mustParse(s.Pods).Matches(labels.Set(p.Labels)) || s.Ungrouped && len(p.Groups) > 0 {
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

// first returns the first owner of the sets of Egress that hold a pod, without sets that are leaving.
func (m *model) first(p Pod) (owner string) {
	for s := range m.inUse() {
		if _, ok := m.holds(s, p); ok && !m.leaving(s) && s.Role == Egress && (owner == "" || s.Owner < owner) {
			owner = s.Owner
		}
	}
	return owner
}

// egress returns the number of pods that the owner of a set of Egress has, and the number that each earlier owner has.
func (m *model) egress(s Selector) (held int, others map[string]int) {
	for _, p := range m.pods {
		if _, ok := m.holds(s, p); !ok {
			continue
		}
		if first := m.first(p); m.has(first, s) {
			held++
		} else {
			if others == nil {
				others = map[string]int{}
			}
			others[NameOf(first)]++
		}
	}
	return held, others
}

func mustParse(s string) labels.Selector {
	parsed, err := labels.Parse(s)
	if err != nil {
		panic(err)
	}
	return parsed
}

func names(m Membership) []string {
	var parts []string
	for _, p := range m.Parts {
		parts = append(parts, fmt.Sprintf("%s %s %d", p.Selector, p.Eip, p.Number))
	}
	if m.Grouped {
		parts = append(parts, fmt.Sprint("grouped, first ", m.First))
	}
	slices.Sort(parts)
	return parts
}

// TestIndexAgreesWithTheModel makes random changes. It compares the index and the changes that it notified with a model that
// recomputes everything.
func TestIndexAgreesWithTheModel(t *testing.T) {
	seed.Histories(t, nil, 40, func(t *testing.T, _ uint64, random *rand.Rand) { walk(t, random) })
}

func walk(t *testing.T, random *rand.Rand) {
	x := New()
	m := &model{
		namespaces: map[string]map[string]string{}, pods: map[Key]Pod{},
		used: map[desired.Owner][]Selector{}, held: map[desired.Owner][]Selector{},
	}
	memberships := map[Key][]string{}                      // the membership that observers know
	sets, given := map[Selector]bool{}, map[Key]Selector{} // the sets of Egress that have pods
	grouped := false
	x.Observe(func(c Changes) {
		for _, key := range c.Egress {
			given[key], _ = x.Membership(key).EgressOf()
		}
		if c.Grouped {
			grouped = x.Grouped()
		}
		for _, key := range c.Ports {
			memberships[key] = names(x.Membership(key))
		}
		for _, s := range c.Sets {
			if _, ok := x.Lookup(s.Name()); ok {
				sets[s] = true
			} else {
				delete(sets, s)
			}
		}
	})
	for step := range 300 {
		what := change(random, x, m)
		maps.DeleteFunc(memberships, func(key Key, _ []string) bool { _, there := m.pods[key]; return !there })
		for key, p := range m.pods {
			want := m.membership(p)
			if p.HostNetwork {
				want = nil
			}
			if got := names(x.Membership(key)); !slices.Equal(got, want) {
				t.Fatalf("step %d, %s: pod %v is in %v, want %v", step, what, key, got, want)
			}
			if of, _ := x.Membership(key).EgressOf(); of != given[key] {
				t.Fatalf("step %d, %s: pod %v is in %v, and observers have %v", step, what, key, of, given[key])
			}
			if !p.HostNetwork && !slices.Equal(memberships[key], want) {
				t.Fatalf("step %d, %s: observers have pod %v in %v, want %v", step, what, key, memberships[key], want)
			}
		}
		for s := range m.inUse() {
			if !sets[s] {
				t.Fatalf("step %d, %s: no observer was notified of %v", step, what, s)
			}
			compareParts(t, x, m, s)
			if s.Role != Egress {
				continue
			}
			held, others := x.Egress(s)
			if wantHeld, wantOthers := m.egress(s); held != wantHeld || fmt.Sprint(others) != fmt.Sprint(wantOthers) {
				t.Fatalf("step %d, %s: %v has %d pods, and others have %v, want %d and %v", step, what, s, held, others, wantHeld, wantOthers)
			}
		}
		if grouped != m.grouped() {
			t.Fatalf("step %d, %s: according to the notifications pods name groups: %v", step, what, grouped)
		}
		if got, want := len(sets), len(m.inUse()); got != want {
			t.Fatalf("step %d, %s: %d sets are known, %d used", step, what, got, want)
		}
	}
	drain(t, x, m)
}

func compareParts(t *testing.T, x *Index, m *model, s Selector) {
	t.Helper()
	numbers, nodes := map[int32]bool{}, map[int32][]string{}
	for _, p := range m.pods {
		number, ok := m.holds(s, p)
		if ok {
			numbers[number] = true
		}
		if ok && p.HostNetwork && !slices.Contains(nodes[number], p.Node) {
			nodes[number] = append(nodes[number], p.Node)
			slices.Sort(nodes[number])
		}
	}
	if got := x.Numbers(s); s.Port != "" && len(got) != len(numbers) {
		t.Fatalf("%v has numbers %v, want %v", s, got, numbers)
	}
	if got := fmt.Sprint(x.HostNodes(s)); got != fmt.Sprint(nodes) {
		t.Fatalf("%v has host-network pods on %v, want %v", s, got, nodes)
	}
}

// drain removes everything; the index must be empty afterwards.
func drain(t *testing.T, x *Index, m *model) {
	t.Helper()
	for owner := range m.used {
		x.Use(owner, nil)
		x.Settle(owner)
	}
	for key := range m.pods {
		x.DeletePod(key, "")
	}
	for name := range m.namespaces {
		x.DeleteNamespace(name)
	}
	if n := len(x.pods) + len(x.namespaces) + len(x.sets) + len(x.names) + len(x.scopes) + len(x.users) + len(x.groups) + x.grouped; n != 0 {
		t.Errorf("%d entries are left: %+v", n, x)
	}
}

func change(random *rand.Rand, x *Index, m *model) string {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	set := func() map[string]string {
		out := map[string]string{}
		for _, key := range []string{"app", "tier"} {
			if v := pick("", "a", "b"); v != "" {
				out[key] = v
			}
		}
		return out
	}
	key := keyOf(pick("n1", "n2", "n3"), pick("p1", "p2", "p3", "p4"))
	key.Provider = pick(key.Provider, "net1.default.ovn")
	switch what := random.IntN(10); {
	case what < 4:
		p := Pod{Key: key, UID: types.UID(pick("1", "2")), Labels: set(), Node: pick("x", "y"), HostNetwork: random.IntN(4) == 0, Vpc: pick("", "v", "w")}
		p.Mirror = p.UID == "2" && !p.HostNetwork
		if random.IntN(2) == 0 {
			p.Ports = []Port{{Name: "http", Protocol: pick("TCP", "UDP"), Number: int32(8000 + random.IntN(2))}}
		}
		for _, name := range []string{"g1", "g2"} {
			if random.IntN(5) == 0 {
				p.Groups = append(p.Groups, name)
			}
		}
		m.pods[key] = p
		x.SetPod(p)
		return fmt.Sprintf("set %+v", p)
	case what == 4:
		delete(m.pods, key)
		x.DeletePod(key, "")
		return fmt.Sprint("delete ", key)
	case what == 5:
		m.namespaces[key.Namespace] = set()
		x.SetNamespace(key.Namespace, m.namespaces[key.Namespace])
		return fmt.Sprintf("set namespace %s %v", key.Namespace, m.namespaces[key.Namespace])
	case what == 6:
		delete(m.namespaces, key.Namespace)
		x.DeleteNamespace(key.Namespace)
		return "delete namespace " + key.Namespace
	case what == 7:
		owner := desired.Owner{Kind: "NetworkPolicy", Name: pick("u1", "u2", "u3")}
		m.held[owner] = m.used[owner]
		x.Settle(owner)
		return "settle " + owner.Name
	default:
		owner := desired.Owner{Kind: "NetworkPolicy", Name: pick("u1", "u2", "u3")}
		var uses []Selector
		for range random.IntN(4) {
			uses = append(uses, randomSelector(pick))
		}
		for _, s := range m.used[owner] {
			if s.Role == Egress {
				m.held[owner] = append(slices.Clip(m.held[owner]), s)
			}
		}
		m.used[owner] = uses
		x.Use(owner, uses)
		x.Lead(uses) // otherwise pods keep former sets, which the model does not know
		return fmt.Sprintf("%s uses %v", owner.Name, uses)
	}
}

func randomSelector(pick func(...string) string) Selector {
	if pick("yes", "no", "no") == "yes" {
		return Selector{Role: Role(pick("subjects", "pods")), Group: pick("g1", "g2"), Last: pick("yes", "no") == "yes"}
	}
	if pick("yes", "no", "no") == "yes" {
		return Selector{Role: Egress, Namespaces: pick("", "app=a"), Pods: pick("", "app=a"), Owner: pick("1/a", "1/b", "2/a"), Vpc: pick("v", "w"), Eip: pick("", "e")}
	}
	s := Selector{Role: Role(pick("subjects", "peers", "pods")), Namespace: pick("", "n1", "n2"), Pods: pick("", "app=a", "app in (a,b)", "!tier")}
	if s.Namespace == "" {
		s.Namespaces = pick("", "app=a", "tier!=b")
	}
	if s.Role != Subjects && pick("yes", "no") == "yes" {
		s.Port, s.Protocol = "http", pick("TCP", "UDP")
	}
	s.Ungrouped = pick("yes", "no", "no", "no") == "yes"
	return s
}

// TestUsersWaitForTheirSets checks that a waiting user is notified once all members that have a port are in the database.
func TestUsersWaitForTheirSets(t *testing.T) {
	x := New()
	owner := desired.Owner{Kind: "NetworkPolicy", Namespace: "n", Name: "u"}
	var notified []desired.Owner
	x.Observe(func(c Changes) { notified = append(notified, c.Users...) })
	connected, unborn := keyOf("n", "connected"), keyOf("n", "unborn")
	for _, key := range []Key{connected, unborn} {
		x.SetPod(Pod{Key: key})
	}
	x.Applied(connected, x.Membership(connected).Revision)
	old := x.Membership(connected).Revision
	x.Use(owner, []Selector{{Role: Peers, Namespace: "n"}})
	if x.Complete(owner) {
		t.Error("complete before the pod is in")
	}
	x.Applied(connected, old) // a stale revision
	if x.Complete(owner) {
		t.Error("complete after an older revision was applied")
	}
	x.Applied(connected, x.Membership(connected).Revision)
	if !x.Complete(owner) || len(notified) != 1 || notified[0] != owner {
		t.Errorf("not complete, or %v was notified", notified)
	}
	x.Settle(owner)
	x.SetPod(Pod{Key: connected, Labels: map[string]string{"a": "b"}})
	if len(notified) != 1 {
		t.Errorf("%v was notified of a label that changes nothing", notified)
	}
	x.Use(owner, []Selector{{Role: Peers, Namespace: "n", Pods: "a"}})
	if x.Complete(owner) {
		t.Error("complete before the pod is in the second set")
	}
	x.DeletePod(connected, "") // a deleted pod is not waited for
	if !x.Complete(owner) || len(notified) != 2 {
		t.Errorf("not complete after the pod was deleted, or %v was notified", notified)
	}
}

// The ports of a pod are in sets each by itself: with the groups of its network, and once the database has its addresses.
func TestPortsOfAPodAreInSetsByThemselves(t *testing.T) {
	x := New()
	policy, group := desired.Owner{Kind: "NetworkPolicy", Namespace: "n", Name: "u"}, desired.Owner{Kind: "SecurityGroup", Name: "g"}
	peers, subjects := Selector{Role: Peers, Namespace: "n"}, Selector{Role: Subjects, Group: "g"}
	first, second := keyOf("n", "p"), keyOf("n", "p")
	second.Provider = "net1.default.ovn"
	for _, p := range []Pod{{Key: first, UID: "1", Groups: []string{"g"}}, {Key: second, UID: "1"}} {
		x.SetPod(p)
		x.Applied(p.Key, x.Membership(p.Key).Revision)
	}
	x.Use(policy, []Selector{peers})
	x.Use(group, []Selector{subjects})
	if got, want := x.Stats(), (Stats{Sets: 2, Members: 3, Users: 2, Grouped: 1}); got != want {
		t.Errorf("the index has %+v, want %+v", got, want)
	}
	for key, want := range map[Key]int{first: 2, second: 1} {
		if m := x.Membership(key); len(m.Parts) != want || m.Grouped != (key == first) {
			t.Errorf("port %s has membership %+v", key, m)
		}
	}
	x.Applied(first, x.Membership(first).Revision)
	if x.Complete(policy) || !x.Complete(group) {
		t.Error("the set of the policy is complete without the second port, or the set of the group waits for that port")
	}
	x.Applied(second, x.Membership(second).Revision)
	if !x.Complete(policy) {
		t.Error("the set is not complete with both ports")
	}
	x.DeletePod(second, "1")
	if m := x.Membership(first); len(m.Parts) != 2 {
		t.Errorf("without the second port, the first one has membership %+v", m)
	}
}

func keyOf(namespace, name string) Key {
	return Key{types.NamespacedName{Namespace: namespace, Name: name}, kubeovnv1.ProviderOVN}
}

// BenchmarkLabelChange changes a label of one pod of 10,000 under 500 policies of its namespace and 500 of others.
func BenchmarkLabelChange(b *testing.B) {
	for _, policies := range []int{0, 500} {
		b.Run(fmt.Sprint(policies, " policies"), func(b *testing.B) {
			x := New()
			for i := range 10000 {
				x.SetPod(Pod{Key: keyOf(fmt.Sprint("n", i%10), fmt.Sprint(i)), Labels: map[string]string{"app": fmt.Sprint(i % 100)}})
			}
			for i := range policies {
				for _, ns := range []string{"n0", "n1"} {
					app := fmt.Sprint("app=", i)
					x.Use(desired.Owner{Kind: "NetworkPolicy", Namespace: ns, Name: fmt.Sprint(i)}, []Selector{
						{Role: Subjects, Namespace: ns, Pods: app}, {Role: Peers, Namespace: ns, Pods: app},
					})
				}
			}
			pod := Pod{Key: keyOf("n0", "0")}
			both := []map[string]string{{"app": "1"}, {"app": "2"}}
			for i := 0; b.Loop(); i++ {
				pod.Labels = both[i%2]
				x.SetPod(pod)
			}
		})
	}
}
