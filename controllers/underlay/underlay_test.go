// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/underlay"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/validation"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

type world struct{ *controllertest.World }

// newWorld starts both controllers. A ProviderNetwork is requested at most once in every because of reports of nodes.
func newWorld(t *testing.T, every time.Duration, changes ...func(*underlay.ProviderReconciler)) world {
	w := world{controllertest.New(t)}
	w.Nodes = nil
	w.Start(controllertest.Steps{Setup: func(ctx context.Context, p *controllertest.Process) error {
		providers := &underlay.ProviderReconciler{Client: p.Client, Recorder: p.Recorder, Gate: p.Gate, ReportDelay: time.Millisecond, ReportEvery: every}
		for _, change := range changes {
			change(providers)
		}
		return p.Run(ctx, &underlay.VlanReconciler{Client: p.Client, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate}, providers)
	}})
	return w
}

func provider(name string, change ...func(*kubeovnv1.ProviderNetworkSpec)) *kubeovnv1.ProviderNetwork {
	pn := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}
	for _, f := range change {
		f(&pn.Spec)
	}
	return pn
}

func vlan(name, provider string, id int) *kubeovnv1.Vlan {
	return &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VlanSpec{Provider: provider, ID: id}}
}

// reports writes what an agent reports on its node.
func (w world) reports(node *corev1.Node, labels, annotations map[string]string) {
	w.Helper()
	w.Get(node)
	base := node.DeepCopy()
	node.Labels, node.Annotations = labels, annotations
	w.Must(w.Client.Patch(w.Context(), node, client.MergeFrom(base)))
}

// status waits until a ProviderNetwork has a status that check accepts.
func (w world) status(pn *kubeovnv1.ProviderNetwork, check func(kubeovnv1.ProviderNetworkStatus) string) {
	w.Helper()
	w.Eventually(func() string {
		w.Get(pn)
		return check(pn.Status)
	})
}

func TestTheStatusOfAProviderNetworkFollowsNodes(t *testing.T) {
	w := newWorld(t, time.Millisecond)
	nodes := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}}, {ObjectMeta: metav1.ObjectMeta{Name: "c"}}}
	w.Create(nodes[0], nodes[1], nodes[2])
	pn := provider("net1", func(s *kubeovnv1.ProviderNetworkSpec) { s.ExcludeNodes, s.ExchangeLinkName = []string{"c"}, true })
	w.Create(pn)
	w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
		if s.Ready || !slices.Equal(s.NotReadyNodes, []string{"a", "b"}) || len(s.ReadyNodes) > 0 {
			return "before any report, the status is wrong"
		}
		return ""
	})
	ready := map[string]string{kubeovnv1.ProviderKey("net1", kubeovnv1.ProviderReady): "true"}
	w.reports(nodes[0], ready, nil)
	w.reports(nodes[1], nil, map[string]string{kubeovnv1.ProviderKey("net1", kubeovnv1.ProviderError): "InterfaceNotFound: there is no interface eth1"})
	w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
		i := slices.IndexFunc(s.Conditions, func(c kubeovnv1.ProviderNetworkCondition) bool { return c.Node == "b" })
		switch {
		case s.Ready || !slices.Equal(s.ReadyNodes, []string{"a"}) || !slices.Equal(s.NotReadyNodes, []string{"b"}):
			return "the nodes are wrong"
		case i < 0 || s.Conditions[i].Reason != "InterfaceNotFound" || s.Conditions[i].Message != "there is no interface eth1":
			return "the cause of node b is missing"
		case !slices.ContainsFunc(s.OwnConditions(), func(c metav1.Condition) bool {
			return strings.Contains(c.Message, "node b: there is no interface eth1")
		}):
			return "the network's condition does not have the cause"
		case !slices.ContainsFunc(s.OwnConditions(), func(c metav1.Condition) bool {
			return c.Type == kubeovnv1.ConditionFieldsSupported && strings.Contains(c.Message, "exchangeLinkName")
		}):
			return "the ignored field is not reported"
		}
		return ""
	})
	w.Measures(1, "kiln_provider_network_ready_nodes", "provider_network", "net1")
	w.Measures(1, "kiln_provider_network_not_ready_nodes", "provider_network", "net1")
	w.event("node b is not ready: there is no interface eth1")
	stranded := map[string]string{kubeovnv1.ProviderKey("net1", kubeovnv1.ProviderError): "AddressNotReached: eth1 has got fd00::1"}
	w.reports(nodes[0], ready, stranded)
	w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
		i := slices.IndexFunc(s.Conditions, func(c kubeovnv1.ProviderNetworkCondition) bool { return c.Node == "a" })
		switch {
		case !slices.Equal(s.ReadyNodes, []string{"a"}):
			return "a node with a warning is not ready"
		case i < 0 || s.Conditions[i].Type != kubeovnv1.ConditionAddressesReached || s.Conditions[i].Status != metav1.ConditionFalse ||
			s.Conditions[i].Reason != "AddressNotReached" || s.Conditions[i].Message != "eth1 has got fd00::1":
			return "the warning of node a is missing"
		}
		return ""
	})
	w.event("node a: eth1 has got fd00::1")
	withoutWarning := func(s kubeovnv1.ProviderNetworkStatus) string {
		if slices.ContainsFunc(s.Conditions, func(c kubeovnv1.ProviderNetworkCondition) bool { return c.Node == "a" }) || !slices.Equal(s.ReadyNodes, []string{"a"}) {
			return "node a is not ready, or has a warning"
		}
		return ""
	}
	w.reports(nodes[0], ready, nil)
	w.status(pn, withoutWarning)
	w.reports(nodes[0], ready, map[string]string{kubeovnv1.ProviderKey("net1", kubeovnv1.ProviderError): "Error: a ready node has no other warning"})
	w.status(pn, withoutWarning)
	w.reports(nodes[0], ready, stranded)
	w.reports(nodes[0], nil, nil)
	w.event("node a is not ready: the agent of the node has reported nothing yet")
	w.reports(nodes[0], ready, nil)
	w.reports(nodes[1], ready, nil)
	w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
		if !s.Ready || len(s.NotReadyNodes) > 0 || slices.ContainsFunc(s.Conditions, func(c kubeovnv1.ProviderNetworkCondition) bool { return c.Node != "" }) {
			return "the network is not ready, or a condition of a node remains"
		}
		return ""
	})
	// Agents keep their bridges while the spec is not valid.
	w.Change(pn, func() { pn.Spec.DefaultInterface = "eth1:0" })
	w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
		invalid := slices.ContainsFunc(s.OwnConditions(), func(c metav1.Condition) bool {
			return c.Type == kubeovnv1.ConditionValidated && c.Status == metav1.ConditionFalse && c.ObservedGeneration == pn.Generation
		})
		if !invalid || s.Ready || !slices.Equal(s.ReadyNodes, []string{"a", "b"}) {
			return fmt.Sprintf("with an interface name that is not valid, the ready nodes are %q", s.ReadyNodes)
		}
		return ""
	})
}

// event waits for an event about net1.
func (w world) event(note string) {
	w.Helper()
	w.Eventually(func() string {
		var list eventsv1.EventList
		w.Must(w.Client.List(w.Context(), &list))
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool { return e.Regarding.Name == "net1" && strings.HasPrefix(e.Note, note) }) {
			return "there is no event: " + note
		}
		return ""
	})
}

func TestReportsOfNodesAreBatchedAndBounded(t *testing.T) {
	gate.Skip(t, gate.Long)
	const every, controller = time.Second, "providernetwork"
	w := newWorld(t, every)
	nodes := make([]*corev1.Node, controllertest.Size(150, 1000))
	for i := range nodes {
		nodes[i] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%04d", i)}}
		w.Create(nodes[i])
	}
	pn := provider("net1")
	w.Create(pn)
	all := func(s kubeovnv1.ProviderNetworkStatus) string {
		if len(s.NotReadyNodes) != len(nodes) {
			return fmt.Sprintf("%d nodes are listed", len(s.NotReadyNodes))
		}
		return ""
	}
	w.status(pn, all)
	before, begin := w.Reconciles(controller), time.Now()
	hostile := "Error: \u202e\n" + strings.Repeat("é", 100_000)
	for _, node := range nodes {
		w.reports(node, nil, map[string]string{kubeovnv1.ProviderKey("net1", kubeovnv1.ProviderError): hostile})
	}
	w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
		causes := 0
		for _, c := range s.Conditions {
			if c.Node == "" || c.Reason != "Error" {
				continue
			}
			if causes++; len(c.Message) > 300 || !strings.HasPrefix(c.Message, "éé") || strings.ContainsFunc(c.Message, func(r rune) bool { return !unicode.IsPrint(r) }) {
				w.Fatalf("the message of a node is %q", c.Message)
			}
		}
		if causes != 100 {
			return fmt.Sprintf("%d nodes have a cause", causes)
		}
		return all(s)
	})
	passes, most := w.Reconciles(controller)-before, int(time.Since(begin)/every)+2
	status, err := json.Marshal(pn.Status)
	w.Must(err)
	w.Logf("%d reports caused %d passes, at most one write each; the status has %d bytes", len(nodes), passes, len(status))
	if passes > most {
		w.Errorf("%d reports caused %d passes, more than %d", len(nodes), passes, most)
	}
	if limit := 100*700 + len(nodes)*20 + 4000; len(status) > limit {
		w.Errorf("the status has %d bytes, more than %d", len(status), limit)
	}
}

func TestNamesOfBridgesAreChecked(t *testing.T) {
	w := newWorld(t, time.Millisecond)
	for _, name := range []string{"thirteen-char", "a.b"} {
		pn := provider(name)
		w.Create(pn)
		w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
			if !slices.ContainsFunc(s.OwnConditions(), func(c metav1.Condition) bool {
				return c.Type == kubeovnv1.ConditionValidated && c.Reason == validation.ReasonNameInvalid
			}) {
				return "the name is not reported"
			}
			return ""
		})
	}
}

func TestVlansConflictAndBlockDeletion(t *testing.T) {
	w := newWorld(t, time.Millisecond)
	first := vlan("first", "net1", 10)
	w.Create(first)
	w.Says(first, kubeovnv1.ConditionReady, metav1.ConditionFalse, "ProviderNetwork net1 does not exist")
	pn := provider("net1")
	w.Create(pn)
	w.Ready(first)
	second := vlan("second", "net1", 0)
	second.Spec.VlanID = 10
	w.Create(second, vlan("elsewhere", "net2", 10))
	w.Says(second, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "Vlan first has id 10")
	if w.Get(second); !second.Status.Conflict {
		t.Error("status.conflict is false")
	}
	w.Get(first)
	w.Change(first, func() { first.Spec.ID = 12 })
	w.Ready(second)
	w.Get(second)
	if second.Status.Conflict {
		t.Error("status.conflict stays true")
	}
	// The older one does not take the id from the one that works with it, and keeps its own.
	w.Change(first, func() { first.Spec.ID = 10 })
	w.Says(first, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "Vlan second has id 10")
	w.Says(first, kubeovnv1.ConditionReady, metav1.ConditionFalse, "the last valid id, 12, stays applied")
	w.Rests("vlan")
	w.Ready(second)
	third := vlan("third", "net1", 12)
	w.Create(third)
	w.Says(third, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "Vlan first has id 12")
	w.Change(second, func() { second.Spec.ID = 11 })
	w.Ready(first, second, third)
	third.Spec.ID = 11
	w.Must(w.Client.Update(w.Context(), third))
	w.Says(third, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "Vlan second has id 11")
	w.Get(third)
	third.Status.ValidatedID = &third.Spec.ID // as if both were checked at the same time
	w.Must(w.Client.Status().Update(w.Context(), third))
	w.Eventually(func() string {
		if w.Get(third); third.Status.ValidatedID != nil {
			return "two Vlans work with one id"
		}
		return ""
	})
	w.Ready(second)
	w.Delete(third)
	w.Gone(third)
	if err := w.Client.Patch(w.Context(), second, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"provider":"net2"}}`))); err == nil {
		t.Error("the provider of a Vlan changed")
	}

	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "lab"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.30.0.0/24", Vlan: "first"}}
	w.Create(s)
	w.Eventually(func() string {
		if w.Get(first); !slices.Equal(first.Status.Subnets, []string{"lab"}) {
			return "status.subnets is wrong"
		}
		return ""
	})
	w.Delete(first, pn)
	w.Says(first, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no subnet uses it: lab")
	w.status(pn, func(st kubeovnv1.ProviderNetworkStatus) string {
		if !slices.ContainsFunc(st.OwnConditions(), func(c metav1.Condition) bool { return strings.Contains(c.Message, "no Vlan uses it: first, second") }) {
			return "the deletion of a used ProviderNetwork is not explained"
		}
		return ""
	})
	// A refused change of the subnet leaves its pods on the Vlan.
	s.Status.ValidatedSpec = s.Spec.DeepCopy()
	w.Must(w.Client.Status().Update(w.Context(), s))
	w.Change(s, func() { s.Spec.Vlan = "elsewhere" })
	w.Eventually(func() string {
		elsewhere := vlan("elsewhere", "net2", 0)
		if w.Get(elsewhere); !slices.Equal(elsewhere.Status.Subnets, []string{"lab"}) {
			return "status.subnets is wrong"
		}
		return ""
	})
	w.Rests("vlan")
	w.Says(first, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no subnet uses it: lab")
	s.Status.ValidatedSpec = s.Spec.DeepCopy()
	w.Must(w.Client.Status().Update(w.Context(), s))
	w.Gone(first)
	w.Delete(second)
	w.Gone(second, pn)
	w.Eventually(func() string {
		if _, found := w.Metric("kiln_provider_network_ready_nodes", "provider_network", "net1"); found {
			return "the series of a deleted ProviderNetwork exists"
		}
		return ""
	})
}

// says reports "ready", or why a node is not ready for a network.
func (w world) says(node *corev1.Node, network, report string) {
	w.Helper()
	if report == "ready" {
		w.reports(node, map[string]string{kubeovnv1.ProviderKey(network, kubeovnv1.ProviderReady): "true"}, nil)
		return
	}
	w.reports(node, nil, map[string]string{kubeovnv1.ProviderKey(network, kubeovnv1.ProviderError): report})
}

// turn waits until a node has its turn, or no node if it is empty.
func (w world) turn(pn *kubeovnv1.ProviderNetwork, node string, failed bool) {
	w.Helper()
	w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
		switch {
		case node == "" && s.Turn != nil:
			return "node " + s.Turn.Node + " has its turn"
		case node != "" && (s.Turn == nil || s.Turn.Node != node || s.Turn.Failed != failed || !pn.HasTurn(node)):
			return fmt.Sprintf("it is not the turn of node %s: %+v", node, s.Turn)
		}
		return ""
	})
}

// TestInterfacesWithAddressesMoveNodeByNode lets nodes of two networks wait for their turn, and a move fail.
func TestInterfacesWithAddressesMoveNodeByNode(t *testing.T) {
	w := newWorld(t, time.Millisecond)
	nodes := map[string]*corev1.Node{}
	for _, name := range []string{"a", "b", "c"} {
		nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.Create(nodes[name])
	}
	only := func(name string) func(*kubeovnv1.ProviderNetworkSpec) {
		return func(s *kubeovnv1.ProviderNetworkSpec) {
			for other := range nodes {
				if (name == "c") != (other == "c") {
					s.ExcludeNodes = append(s.ExcludeNodes, other)
				}
			}
		}
	}
	net1, net2 := provider("net1", only("a")), provider("net2", only("c"))
	w.Create(net1)
	says := func(node, network, report string) { w.says(nodes[node], network, report) }
	turn := w.turn
	says("b", "net1", "AwaitingTurn: it waits")
	turn(net1, "b", false)
	says("a", "net1", "AwaitingTurn: it waits")
	says("c", "net2", "AwaitingTurn: it waits")
	w.Create(net2)
	w.status(net2, func(s kubeovnv1.ProviderNetworkStatus) string {
		if !slices.ContainsFunc(s.Conditions, func(c kubeovnv1.ProviderNetworkCondition) bool { return c.Reason == "AwaitingTurn" }) {
			return "node c does not wait"
		}
		return ""
	})
	says("b", "net1", "Moving: it moves")
	turn(net1, "b", false)
	turn(net2, "", false)
	says("b", "net1", "RolledBack: it has its addresses back")
	turn(net1, "b", true)
	says("b", "net1", "GatewayUnreachable: it cannot begin again")
	turn(net1, "b", true)
	turn(net2, "", false)

	w.Change(net1, func() { net1.Spec.ExcludeNodes = append(net1.Spec.ExcludeNodes, "b") }) // then the others go on
	turn(net1, "a", false)
	says("a", "net1", "NoCarrier: its cable was removed") // nothing has moved
	turn(net1, "", false)
	turn(net2, "c", false)
	says("a", "net1", "AwaitingTurn: it waits")
	says("c", "net2", "ready")
	turn(net2, "", false)
	turn(net1, "a", false)
	says("a", "net1", "RolledBack: it has its addresses back")
	turn(net1, "a", true)
	w.Change(net1, func() { net1.Spec.DefaultInterface = "eth2" })
	turn(net1, "", false)
	says("a", "net1", "AwaitingTurn: it waits")
	turn(net1, "a", false)
	says("a", "net1", "ready")
	turn(net1, "", false)
}

func TestATurnPassesFromANodeThatDoesNotBegin(t *testing.T) {
	const turn = 2 * time.Second
	w := newWorld(t, time.Millisecond, func(r *underlay.ProviderReconciler) { r.TurnTime, r.TurnPause = turn, turn })
	nodes := map[string]*corev1.Node{}
	up := func(name string, status corev1.ConditionStatus) {
		t.Helper()
		w.Get(nodes[name])
		nodes[name].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		w.Must(w.Client.Status().Update(w.Context(), nodes[name]))
	}
	for _, name := range []string{"a", "b", "c"} {
		nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.Create(nodes[name])
		w.says(nodes[name], "net1", "AwaitingTurn: it waits")
	}
	up("a", corev1.ConditionUnknown) // switched off
	up("b", corev1.ConditionFalse)   // waits for its network
	pn := provider("net1")
	w.Create(pn)
	withdrawn := func(node string) {
		t.Helper()
		w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
			if s.Turn == nil || s.Turn.Node != node || !s.Turn.Withdrawn || pn.HasTurn(node) {
				return fmt.Sprintf("node %s has its turn: %+v", node, s.Turn)
			}
			return ""
		})
	}
	skipsA := func() { // no node that is switched off has the turn before b
		t.Helper()
		w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
			if s.Turn != nil && s.Turn.Node == "a" {
				t.Fatal("a node that is switched off has its turn")
			}
			if s.Turn == nil || s.Turn.Node != "b" {
				return "node b has no turn"
			}
			return ""
		})
	}
	skipsA()
	w.turn(pn, "b", false)
	withdrawn("b")
	w.event("node b has its turn and does not begin")
	w.turn(pn, "c", false)
	w.says(nodes["c"], "net1", "Moving: it moves")
	time.Sleep(turn + turn/2)
	w.turn(pn, "c", false)
	w.says(nodes["c"], "net1", "ready")
	skipsA()
	w.turn(pn, "b", false)
	withdrawn("b")
	w.says(nodes["b"], "net1", "Moving: it moves") // it began in the last moment
	w.turn(pn, "b", false)
	w.says(nodes["b"], "net1", "RolledBack: it has its addresses back")
	w.turn(pn, "b", true)
	up("a", corev1.ConditionTrue)
	time.Sleep(turn + turn/2)
	w.turn(pn, "b", true)
	w.Change(pn, func() { pn.Spec.DefaultInterface = "eth2" })
	w.says(nodes["b"], "net1", "NamedByRules: a rule names the interface")
	w.turn(pn, "a", false)
	w.says(nodes["a"], "net1", "NamedByRules: a rule names the interface")
	w.says(nodes["b"], "net1", "AwaitingTurn: it waits")
	w.turn(pn, "b", false)
}

// TestANewSpecificationWaitsForTheMoveOfTheFormerOne changes a ProviderNetwork while a node moves its interface: no second node may move at that time.
func TestANewSpecificationWaitsForTheMoveOfTheFormerOne(t *testing.T) {
	const pause = 2 * time.Second
	w := newWorld(t, time.Millisecond, func(r *underlay.ProviderReconciler) { r.TurnPause = pause })
	nodes := map[string]*corev1.Node{}
	for _, name := range []string{"a", "b"} {
		nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.Create(nodes[name])
		w.says(nodes[name], "net1", "AwaitingTurn: it waits")
	}
	pn := provider("net1")
	w.Create(pn)
	ends := func(node string) {
		t.Helper()
		w.status(pn, func(s kubeovnv1.ProviderNetworkStatus) string {
			if s.Turn != nil && s.Turn.Node != node {
				t.Fatalf("node %s has its turn while node %s moves", s.Turn.Node, node)
			}
			if s.Turn == nil || !s.Turn.Withdrawn || s.Turn.Generation == pn.Generation || pn.HasTurn(node) {
				return fmt.Sprintf("the turn does not end: %+v", s.Turn)
			}
			return ""
		})
	}
	w.turn(pn, "a", false)
	w.says(nodes["a"], "net1", "Moving: it moves")
	w.Change(pn, func() { pn.Spec.DefaultInterface = "eth2" })
	ends("a")
	w.says(nodes["a"], "net1", "RolledBack: it has its addresses back") // the next node does not wait for the pause
	w.turn(pn, "b", false)
	w.says(nodes["b"], "net1", "Moving: it moves")
	w.says(nodes["a"], "net1", "AwaitingTurn: it waits")
	w.Change(pn, func() { pn.Spec.DefaultInterface = "eth3" })
	ends("b")
	w.turn(pn, "a", false) // b is dead and reports nothing more
}
