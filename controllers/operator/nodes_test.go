// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

func TestAnInvalidNetworkChangesNothing(t *testing.T) {
	s := installed(t)
	g := newG(t)
	before := s.stable(t)
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) {
		spec.Image = "kiln.local/kiln:never"
		spec.Network.ServiceCIDRs = []string{"192.0.2.0/24"}
	})
	g.Eventually(s.condition(t, "Degraded")).Should(Equal(
		"True InvalidNetwork: network.serviceCIDRs 192.0.2.0/24 holds 192.0.2.1, the address of node control-plane-1: " +
			"choose a CIDR that no node is in"))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"), "running workloads continue")
	after := s.stable(t)
	delete(before, "OVNCluster")
	delete(after, "OVNCluster")
	g.Expect(after).To(Equal(before))
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) {
		spec.Image = ""
		spec.Network.ServiceCIDRs = nil
	})
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
}

// TestAnInvalidAddressAffectsOneNode adds nodes with an address in the network and with the address of another node.
func TestAnInvalidAddressAffectsOneNode(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s, w := working(t)
	g := newG(t)
	s.addNode(t, "inside", "10.16.3.4", nil)
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(HavePrefix("True NodeAddresses: node inside gets no network"),
		ContainSubstring("its address 10.16.3.4 lies in network.podCIDRs 10.16.0.0/16; give the node an address outside")))
	mistakes.Sees(t, 11, s.condition(t, "Degraded")())
	g.Eventually(func() []string { return s.nodeEvents(t, "inside") }).Should(ContainElement("Warning AddressInNetwork"))
	s.seenHeld(t, "inside", true)
	s.deserted(t, "inside") // its pods, created before it was held
	s.settledOn(t, s.cluster(t).Spec.Image)
	w.forget()
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Agent.Resources = requests("20m") })
	g.Eventually(w.history).Should(Equal(forward[:4]), "the other nodes are not affected")
	s.settledOn(t, s.cluster(t).Spec.Image)
	s.stable(t)
	g.Expect(s.condition(t, "Degraded")()).To(HavePrefix("True NodeAddresses"))

	controller := &appsv1.Deployment{}
	g.Expect(s.exists(t, controller, render.ControllerName)()).To(Succeed())
	g.Expect(s.admin.Delete(t.Context(), controller)).To(Succeed())
	g.Eventually(func() bool {
		again := &appsv1.Deployment{}
		return s.exists(t, again, render.ControllerName)() == nil && again.UID != controller.UID
	}).Should(BeTrue(), "the node does not prevent that the controller is created again")
	s.settledOn(t, s.cluster(t).Spec.Image)

	s.addNode(t, "twin", "192.0.2.11", map[string]string{v1alpha1.ControlPlaneLabel: ""})
	g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring("nodes twin and worker-1 have one InternalIP, 192.0.2.11: give each its own"))
	g.Eventually(func() []string { return s.nodeEvents(t, "twin") }).Should(ContainElement("Warning AddressShared"))
	for _, name := range []string{"inside", "twin"} {
		g.Expect(s.admin.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	}
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
	s.seenHeld(t, "inside", false)  // also in stale caches
	s.deserted(t, "inside", "twin") // no controller deletes pods of deleted nodes here
	w.forget()
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Agent.Resources = corev1.ResourceRequirements{} })
	g.Eventually(w.history).Should(Equal(forward[:4]))
	s.settledOn(t, s.cluster(t).Spec.Image)
}

// seenHeld waits until the DaemonSets exclude a node, or include it, and the DaemonSet controller has observed that.
func (s *scenario) seenHeld(t *testing.T, name string, held bool) {
	t.Helper()
	g := newG(t)
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	for _, of := range []string{render.OpenVSwitch, render.AgentName} {
		g.Eventually(func() bool {
			set := &appsv1.DaemonSet{}
			g.Expect(s.exists(t, set, of)()).To(Succeed())
			return eligible(set.Spec.Template.Spec, n) != held && set.Status.ObservedGeneration == set.Generation
		}).Should(BeTrue(), of)
	}
}

// deserted waits until no pod of a component is on one of the nodes.
func (s *scenario) deserted(t *testing.T, nodes ...string) {
	t.Helper()
	g := newG(t)
	g.Eventually(func() []string {
		var pods corev1.PodList
		g.Expect(s.admin.List(t.Context(), &pods, client.HasLabels{v1alpha1.ComponentLabel})).To(Succeed())
		var on []string
		for _, p := range pods.Items {
			on = append(on, p.Spec.NodeName)
		}
		return on
	}).ShouldNot(ContainElement(BeElementOf(nodes)))
}

func addressed(name, address string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.ControlPlaneLabel: ""}},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// seeing returns a pass that sees these nodes.
func seeing(now time.Time, nodes ...corev1.Node) *pass {
	return &pass{Report: status.NewReport(&observed.Cluster{Now: now, Nodes: nodes}), cluster: &v1alpha1.OVNCluster{}}
}

// TestEventsAboutAddressesOfNodesAreBounded: a kubelet can change the addresses of its Node many times a second.
func TestEventsAboutAddressesOfNodesAreBounded(t *testing.T) {
	recorder := events.NewFakeRecorder(100)
	r, began := &Reconciler{Recorder: recorder}, time.Now()
	report := func(after time.Duration, texts ...string) int {
		p := seeing(began.Add(after), addressed("other", "192.0.2.1"), addressed("stolen", "10.16.0.5"))
		for _, text := range texts {
			p.NodeTroubles = append(p.NodeTroubles, status.NodeTrouble{Nodes: []string{"stolen"}, Reason: "AddressInNetwork", Text: text})
		}
		before := len(recorder.Events)
		r.reportNodeTroubles(p)
		return len(recorder.Events) - before
	}
	for i, step := range []struct {
		after time.Duration
		text  string
		sent  int
	}{
		{0, "a", 1}, {time.Second, "a", 0}, {2 * time.Second, "b", 0}, {3 * time.Second, "c", 0}, {time.Minute, "d", 1}, {2 * time.Hour, "d", 0},
	} {
		if sent := report(step.after, step.text); sent != step.sent {
			t.Errorf("step %d: %d events, want %d", i, sent, step.sent)
		}
	}
	report(3 * time.Hour) // solved
	if sent := report(3*time.Hour+time.Second, "d"); sent != 1 {
		t.Errorf("the same trouble again: %d events", sent)
	}
}

func TestANodeThatHasItsNetworkKeepsIt(t *testing.T) {
	if !slices.Equal(networkReasons, []string{host.ReasonServing, host.ReasonNotServing}) {
		t.Errorf("agents say %q and %q", host.ReasonServing, host.ReasonNotServing)
	}
	fresh, served, foreign := addressed("fresh", "10.16.0.5"), addressed("served", "10.16.0.6"), addressed("foreign", "10.16.0.7")
	served.Status.Conditions = append(served.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Reason: host.ReasonNotServing})
	p := seeing(time.Time{}, fresh, served)
	for _, n := range []corev1.Node{fresh, served, foreign} {
		p.holdNode(&n, "why")
	}
	if !slices.Equal(p.config.HeldNodes, []string{"fresh"}) {
		t.Errorf("held: %v", p.config.HeldNodes)
	}
	if want := []string{"fresh", "served", "foreign"}; !slices.Equal(p.unfit, want) {
		t.Errorf("a member may go to another node than %v: %v", want, p.unfit)
	}
}

func TestTheEndOfAKubeProxyConflictEnqueuesTheOVNCluster(t *testing.T) {
	node := func(status corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: v1alpha1.NodeConditionKubeProxy, Status: status, Message: "remove it"}}}}
	}
	if !nodeChanged().Update(event.UpdateEvent{ObjectOld: node(corev1.ConditionTrue), ObjectNew: node(corev1.ConditionFalse)}) {
		t.Error("the removal of kube-proxy's rules does not enqueue the OVNCluster")
	}
}
