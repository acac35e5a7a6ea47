// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/raft"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// nodeAddresses is a step of TestOneInstallation: a wrong address of one node does not affect the other nodes.
func (s *scenario) nodeAddresses(t *testing.T) {
	g := newG(t)
	w := s.atWork(t)
	s.addNode(t, "inside", "10.16.3.4", nil)
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(HavePrefix("True NodeAddresses: node inside gets no network"),
		ContainSubstring("its address 10.16.3.4 lies in network.podCIDRs 10.16.0.0/16; give the node an address outside")))
	g.Eventually(func() []string { return s.nodeEvents(t, "inside") }).Should(ContainElement("Warning AddressInNetwork"))
	s.seenHeld(t, "inside", true)
	s.deserted(t, "inside") // its pods, created before it was held
	s.settledOn(t, s.cluster(t).Spec.Image)
	w.forget()
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Agent.LogLevel = 2 })
	g.Eventually(w.history).Should(Equal(forward[:4]), "the other nodes are not affected")
	s.settledOn(t, s.cluster(t).Spec.Image)
	s.stable(t)
	g.Expect(s.condition(t, "Degraded")()).To(HavePrefix("True NodeAddresses"))

	s.addNode(t, "twin", "192.0.2.11", map[string]string{render.ControlPlaneLabel: ""})
	g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring("nodes twin and worker-1 have one InternalIP, 192.0.2.11: give each its own"))
	g.Eventually(func() []string { return s.nodeEvents(t, "twin") }).Should(ContainElement("Warning AddressShared"))
	for _, name := range []string{"inside", "twin"} {
		g.Expect(s.admin.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	}
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
	s.seenHeld(t, "inside", false)  // also in stale caches
	s.deserted(t, "inside", "twin") // no controller deletes pods of deleted nodes here
	w.forget()
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Agent.LogLevel = 0 })
	g.Eventually(w.history).Should(Equal(forward[:4]))
	s.settledOn(t, s.cluster(t).Spec.Image)
}

// memberCutOff adds a member that is ready and has a leader but that the operator cannot reach. Phases that do not need
// it continue.
func (s *scenario) memberCutOff(t *testing.T) {
	g := newG(t)
	w := s.atWork(t)
	set := &appsv1.StatefulSet{}
	g.Expect(s.exists(t, set, render.NorthboundName)()).To(Succeed())
	s.world.members.mu.Lock()
	s.world.members.cutOff = netip.MustParseAddr("192.0.2.99")
	s.world.members.mu.Unlock()
	pod := s.addPod(t, "ovn-central-nb-1", render.NorthboundName, node, "192.0.2.99", revisionOf(set))
	s.setReady(t, pod, true)
	g.Eventually(s.condition(t, "Progressing")).Should(ContainSubstring("is ready but does not answer on its admin endpoint, port 6651"))
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Agent.LogLevel = 3 })
	g.Eventually(w.history).Should(Equal(forward[:4]))
	g.Expect(s.admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0))).To(Succeed())
	s.settledOn(t, s.cluster(t).Spec.Image) // the last replaced pod exists again, and its template is not the next one
	w.forget()
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Agent.LogLevel = 0 })
	g.Eventually(w.history).Should(Equal(forward[:4]))
	s.settledOn(t, s.cluster(t).Spec.Image)
}

// joinerSilent silences the node of a member that has not joined yet. Another node gets the member, and the operator
// deletes the pod, because the silent node's kubelet does not.
func (s *scenario) joinerSilent(t *testing.T) {
	g := newG(t)
	s.setNode(t, "worker-1", func(n *corev1.Node) { n.Labels[render.ControlPlaneLabel] = "" })
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Central.Replicas = 3 })
	recorded := func() (nodes []string) {
		for _, m := range s.cluster(t).Status.Northbound.Members {
			nodes = append(nodes, m.Node)
		}
		return nodes
	}
	g.Eventually(recorded).Should(Equal([]string{node, "worker-1"}))
	s.addPod(t, "ovn-central-nb-1", render.NorthboundName, "worker-1", "192.0.2.99", "") // the operator cannot reach this address
	s.setNode(t, "worker-1", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
	g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring("node worker-1, whose member has yet to join, does not answer, and there is no other node"))
	s.addNode(t, "control-plane-3", "192.0.2.3", map[string]string{render.ControlPlaneLabel: ""})
	g.Eventually(recorded).Should(Equal([]string{node, "control-plane-3"}))
	g.Eventually(s.absent(t, &corev1.Pod{}, "ovn-central-nb-1")).Should(BeTrue())

	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Central.Replicas = 1 })
	g.Eventually(recorded).Should(Equal([]string{node}))
	g.Expect(s.admin.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "control-plane-3"}})).To(Succeed())
	s.setNode(t, "worker-1", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
	s.setNode(t, "worker-1", func(n *corev1.Node) { delete(n.Labels, render.ControlPlaneLabel) })
	s.atWork(t)
}

// setNode changes a node and its status.
func (s *scenario) setNode(t *testing.T, name string, change func(*corev1.Node)) {
	t.Helper()
	n := &corev1.Node{}
	if err := s.admin.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
		t.Fatal(err)
	}
	before := n.DeepCopy()
	change(n)
	changed := n.DeepCopy()
	if err := s.admin.Patch(t.Context(), n, client.StrategicMergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	if err := s.admin.Status().Patch(t.Context(), changed, client.StrategicMergeFrom(before)); err != nil {
		t.Fatal(err)
	}
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
		g.Expect(s.admin.List(t.Context(), &pods, client.HasLabels{render.ComponentLabel})).To(Succeed())
		var on []string
		for _, p := range pods.Items {
			on = append(on, p.Spec.NodeName)
		}
		return on
	}).ShouldNot(ContainElement(BeElementOf(nodes)))
}

func (s *scenario) nodeEvents(t *testing.T, node string) (all []string) {
	var list eventsv1.EventList
	if err := s.admin.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Kind == "Node" && e.Regarding.Name == node {
			all = append(all, e.Type+" "+e.Reason)
		}
	}
	return all
}

func addressed(name, address string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{render.ControlPlaneLabel: ""}},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func TestANodeThatHasItsNetworkKeepsIt(t *testing.T) {
	if !slices.Equal(networkReasons, []string{host.ReasonServing, host.ReasonNotServing}) {
		t.Errorf("agents say %q and %q", host.ReasonServing, host.ReasonNotServing)
	}
	fresh, served, foreign := addressed("fresh", "10.16.0.5"), addressed("served", "10.16.0.6"), addressed("foreign", "10.16.0.7")
	served.Status.Conditions = append(served.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Reason: host.ReasonNotServing})
	p := &pass{cluster: &v1alpha1.OVNCluster{}, nodes: []corev1.Node{fresh, served}}
	for _, n := range []corev1.Node{fresh, served, foreign} {
		p.holdNode(&n, "why")
	}
	if !slices.Equal(p.config.HeldNodes, []string{"fresh"}) {
		t.Errorf("held: %v", p.config.HeldNodes)
	}
	if chosen := p.chooseNode(nil); chosen != nil {
		t.Errorf("a member goes to %s, which the others cannot reach", chosen.Name)
	}
}

func TestNoTwoMembersHaveOneAddress(t *testing.T) {
	p := &pass{cluster: &v1alpha1.OVNCluster{}, nodes: []corev1.Node{addressed("a", "192.0.2.1"), addressed("b", "192.0.2.1")}}
	status := &p.cluster.Status.Northbound
	*status = v1alpha1.DatabaseStatus{ClusterID: "c", Leader: "a", Members: []v1alpha1.DatabaseMember{{Node: "a", Address: "192.0.2.1", ServerID: "s100"}}}
	p.config.Spec.Central.Replicas = 3
	const raftAddress = "ssl:192.0.2.1:6643"
	m := p.membership(render.Northbound, map[string]adminapi.Status{"a": {
		ClusterID: "c", ServerID: "s100", Address: raftAddress, Role: adminapi.RoleLeader, Connected: true,
		Members: []adminapi.Member{{ServerID: "s100", Address: raftAddress}},
	}})
	if m.Free != nil {
		t.Errorf("a second member at its address goes to %s", m.Free.Name)
	}
	if at := m.Nodes[netip.MustParseAddr("192.0.2.1")]; at != "a" {
		t.Errorf("the member on a counts as the member of %s", at)
	}
	if step := m.Next(); step.Action != raft.ActionNone || !step.Stuck {
		t.Errorf("the next step: %+v", step)
	}
	p.nodes = p.nodes[1:] // a was b's former name
	if m = p.membership(render.Northbound, nil); m.Free == nil || m.Free.Name != "b" {
		t.Errorf("with a gone b is not free: %v", m.Free)
	}
}
