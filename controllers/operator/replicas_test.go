// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

func numbers(central, northd, controller int32) v1alpha1.EffectiveReplicas {
	return v1alpha1.EffectiveReplicas{Central: central, Northd: northd, Controller: controller}
}

// TestReplicasAreDerivedFromNodes has nodes in the states that decide about replicas.
func TestReplicasAreDerivedFromNodes(t *testing.T) {
	silence := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
	cordon := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	taint := func(key string, effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: key, Effect: effect}} }
	}
	unlabel := func(n *corev1.Node) { n.Labels = nil }
	shared := func(n *corev1.Node) { n.Status.Addresses[0].Address = "192.0.2.1" }
	for _, tt := range []struct {
		name string
		// changes of nodes, one each.
		nodes   []func(*corev1.Node)
		spec    v1alpha1.EffectiveReplicas
		before  v1alpha1.EffectiveReplicas
		members int
		want    v1alpha1.EffectiveReplicas
	}{
		{name: "without nodes", want: numbers(1, 1, 1)},
		{name: "with one node", nodes: []func(*corev1.Node){nil}, want: numbers(1, 1, 1)},
		{name: "with two nodes", nodes: []func(*corev1.Node){nil, nil}, want: numbers(1, 2, 2)},
		{name: "with three nodes", nodes: []func(*corev1.Node){nil, nil, nil}, want: numbers(3, 2, 2)},
		{name: "with five nodes", nodes: []func(*corev1.Node){nil, nil, nil, nil, nil}, want: numbers(3, 2, 2)},
		{name: "with three nodes, one of them silent", nodes: []func(*corev1.Node){nil, nil, silence}, want: numbers(1, 2, 2)},
		{name: "with three nodes, one of them cordoned", nodes: []func(*corev1.Node){nil, nil, cordon}, want: numbers(1, 2, 2)},
		{name: "with three nodes, one without the label", nodes: []func(*corev1.Node){nil, nil, unlabel}, want: numbers(1, 2, 2)},
		{name: "with three nodes, two of them with the same address", nodes: []func(*corev1.Node){nil, nil, shared}, want: numbers(1, 2, 2)},
		{
			name: "with three nodes, one with a taint of the user", want: numbers(1, 2, 2),
			nodes: []func(*corev1.Node){nil, nil, taint("dedicated", corev1.TaintEffectNoSchedule)},
		},
		{
			name: "with taints that Kiln tolerates", want: numbers(3, 2, 2),
			nodes: []func(*corev1.Node){
				taint(v1alpha1.ControlPlaneLabel, corev1.TaintEffectNoSchedule), taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule),
				taint("dedicated", corev1.TaintEffectPreferNoSchedule),
			},
		},
		{
			name: "with nodes from which taints evict pods without data", want: numbers(3, 1, 1),
			nodes: []func(*corev1.Node){
				nil, taint("repair", corev1.TaintEffectNoExecute), taint("repair", corev1.TaintEffectNoExecute),
			},
		},
		{name: "that the spec sets", nodes: []func(*corev1.Node){nil, nil, nil}, spec: numbers(1, 1, 1), members: 3, before: numbers(3, 2, 2), want: numbers(1, 1, 1)},
		{name: "that the spec sets above the nodes", nodes: []func(*corev1.Node){nil}, spec: numbers(5, 4, 3), want: numbers(5, 4, 3)},
		{
			name: "after the loss of two of three nodes", members: 3, before: numbers(3, 2, 2), want: numbers(3, 1, 1),
			nodes: []func(*corev1.Node){nil},
		},
		{
			name: "while two of three nodes do not answer", members: 3, before: numbers(3, 2, 2), want: numbers(3, 2, 2),
			nodes: []func(*corev1.Node){nil, silence, cordon},
		},
		{name: "in the middle of a growth", nodes: []func(*corev1.Node){nil, nil}, members: 2, want: numbers(3, 2, 2)},
		{name: "after five members were set", nodes: []func(*corev1.Node){nil, nil, nil}, members: 5, before: numbers(5, 5, 5), want: numbers(5, 2, 2)},
		{name: "after a third node vanished before it had a member", nodes: []func(*corev1.Node){nil, nil}, members: 1, before: numbers(3, 2, 2), want: numbers(1, 2, 2)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := seeing(time.Time{})
			for i, change := range tt.nodes {
				n := addressed(fmt.Sprintf("n%d", i), fmt.Sprintf("192.0.2.%d", i+1))
				if change != nil {
					change(&n)
				}
				p.Nodes = append(p.Nodes, n)
			}
			p.cluster.Spec.Central.Replicas, p.cluster.Spec.Central.NorthdReplicas, p.cluster.Spec.Controller.Replicas = tt.spec.Central, tt.spec.Northd, tt.spec.Controller
			p.cluster.Status.Replicas = tt.before
			p.cluster.Status.Northbound.Members = make([]v1alpha1.DatabaseMember, tt.members)
			p.before, p.config.Spec = p.cluster.DeepCopy(), *p.cluster.Spec.DeepCopy()
			if err := (&Reconciler{}).deriveReplicas(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if got := p.cluster.Status.Replicas; got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if s := p.config.Spec; s.Central.Replicas != tt.want.Central || s.Central.NorthdReplicas != tt.want.Northd || s.Controller.Replicas != tt.want.Controller {
				t.Errorf("the configuration has %d, %d and %d", s.Central.Replicas, s.Central.NorthdReplicas, s.Controller.Replicas)
			}
		})
	}
}

// TestReplicasGrowWithTheNodes adds and silences control-plane nodes of a running installation.
func TestReplicasGrowWithTheNodes(t *testing.T) {
	s := newInstallation(t)
	g := newG(t)
	replicas := func() v1alpha1.EffectiveReplicas { return s.cluster(t).Status.Replicas }
	members := func() (nodes []string) {
		for _, m := range s.cluster(t).Status.Northbound.Members {
			nodes = append(nodes, m.Node)
		}
		return nodes
	}
	pods := func(name string) func() int32 {
		return func() int32 {
			d := &appsv1.Deployment{}
			g.Expect(s.exists(t, d, name)()).To(Succeed())
			return *d.Spec.Replicas
		}
	}
	g.Expect(replicas()).To(Equal(numbers(1, 1, 1)))
	for i, name := range []string{"control-plane-2", "control-plane-3"} {
		s.addNode(t, name, fmt.Sprintf("192.0.2.%d", i+2), map[string]string{v1alpha1.ControlPlaneLabel: "true"})
	}
	g.Eventually(replicas).Should(Equal(numbers(3, 2, 2)))
	g.Eventually(members).Should(ConsistOf(node, HavePrefix("control-plane-")))
	g.Eventually(pods(render.NorthdName)).Should(Equal(int32(2)))
	g.Eventually(pods(render.ControllerName)).Should(Equal(int32(2)))

	for _, name := range []string{"control-plane-2", "control-plane-3"} {
		s.setNode(t, name, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
	}
	g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring("does not answer, and there is no other node"))
	g.Expect(replicas()).To(Equal(numbers(3, 2, 2)))
	g.Expect(pods(render.NorthdName)()).To(Equal(int32(2)))

	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) {
		spec.Central.Replicas, spec.Central.NorthdReplicas, spec.Controller.Replicas = 1, 1, 1
	})
	g.Eventually(members).Should(Equal([]string{node}))
	g.Expect(replicas()).To(Equal(numbers(1, 1, 1)))
	g.Expect(s.condition(t, "Available")()).NotTo(ContainSubstring("one member"))
	for _, name := range []string{"control-plane-2", "control-plane-3"} {
		s.setNode(t, name, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
	}
	g.Eventually(s.condition(t, "Available")).Should(HaveSuffix("each database has one member, and 3 nodes can run members: " +
		"set spec.central.replicas to 3 to survive the loss of a node"))
	for _, name := range []string{"control-plane-2", "control-plane-3"} {
		g.Expect(s.admin.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	}
	g.Eventually(s.condition(t, "Available")).Should(HaveSuffix("every component serves"))
}
