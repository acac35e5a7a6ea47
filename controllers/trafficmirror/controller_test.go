// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficmirror_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/trafficmirror"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

type world struct{ *controllertest.World }

// start runs the controllers of pods and TrafficMirrors, as `kiln controller` does.
func (w world) start() *controllertest.Process {
	w.Helper()
	var pods *pod.Reconciler
	return w.Start(controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			pods = networktest.Pods(p)
			return p.Run(ctx, pods, &trafficmirror.Reconciler{Client: p.Client, Northbound: p.Engine, Recorder: p.Recorder, Gate: p.Gate})
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			return pods.Restore(ctx, p.Manager.GetAPIReader())
		},
	})
}

func newWorld(t *testing.T) world {
	w := world{controllertest.New(t)}
	w.Subnet("ovn-default", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.16.0.0/24,fd00:10:16::/112" })
	return w
}

// pod creates a pod, and returns it once it has its addresses.
func (w world) pod(name, node string, labels map[string]string, annotations ...string) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	for i := 0; i+1 < len(annotations); i += 2 {
		p.Annotations[kubeovnv1.Annotation(annotations[i]).Key()] = annotations[i+1]
	}
	w.Create(p)
	w.Eventually(func() string {
		if w.Get(p); !kubeovnv1.IsPublished(p) {
			return fmt.Sprintf("pod %s has %v", p.Name, p.Annotations)
		}
		return ""
	})
	return p
}

// mirror creates a TrafficMirror of the pods with the label app: web.
func (w world) mirror(name string, key int64, change ...func(*kubeovnv1.TrafficMirrorSpec)) *kubeovnv1.TrafficMirror {
	w.Helper()
	m := &kubeovnv1.TrafficMirror{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Spec = kubeovnv1.TrafficMirrorSpec{Sink: "192.0.2.10", Key: key, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
	for _, f := range change {
		f(&m.Spec)
	}
	w.Create(m)
	return m
}

// copies waits until exactly these ports have the mirror of a TrafficMirror.
func (w world) copies(m *kubeovnv1.TrafficMirror, ports ...string) {
	w.Helper()
	w.Eventually(func() string {
		var row string
		for uuid, r := range w.Database.Rows("Mirror") {
			if ids, ok := r["external_ids"].(map[string]string); ok && ids["traffic-mirror"] == m.Name {
				row = uuid
			}
		}
		var got []string
		for _, r := range w.Database.Rows("Logical_Switch_Port") {
			if row != "" && slices.Contains(r.Strings("mirror_rules"), row) {
				got = append(got, fmt.Sprint(r["name"]))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, ports) || (row == "") != (len(ports) == 0) {
			return fmt.Sprintf("the mirror %s (%s) has the ports %v, want %v", m.Name, row, got, ports)
		}
		return ""
	})
	w.Eventually(func() string {
		if w.Get(m); int(m.Status.Ports) != len(ports) {
			return fmt.Sprintf("the status of %s has %d ports, want %d", m.Name, m.Status.Ports, len(ports))
		}
		return ""
	})
}

var (
	web   = map[string]string{"app": "web"}
	other = map[string]string{"app": "other"}
)

func TestAMirrorFollowsItsPods(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	a := w.pod("a", "n1", web)
	m := w.mirror("m", 1)
	w.copies(m, "a.default")
	w.Ready(m)
	b := w.pod("b", "n2", web)
	c := w.pod("c", "n2", other)
	w.copies(m, "a.default", "b.default")
	w.Measures(2, "kiln_traffic_mirror_ports", "traffic_mirror", "m")
	if m.Status.Nodes != 2 {
		t.Errorf("the status has %d nodes", m.Status.Nodes)
	}
	w.Change(c, func() { c.Labels = web })
	w.copies(m, "a.default", "b.default", "c.default")
	w.Change(b, func() { b.Labels = other })
	w.copies(m, "a.default", "c.default")
	w.Delete(a)
	w.copies(m, "c.default")

	process.Stop()
	w.Change(b, func() { b.Labels = web })
	w.Change(c, func() { c.Labels = other })
	process = w.start()
	w.copies(m, "b.default")
	w.Change(m, func() { m.Spec.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "none"}} })
	w.copies(m)
	w.Says(m, kubeovnv1.ConditionReady, metav1.ConditionTrue, "no pod matches")
	w.Change(m, func() { m.Spec.PodSelector = &metav1.LabelSelector{}; m.Spec.Direction = kubeovnv1.TrafficMirrorTo })
	w.copies(m, "b.default", "c.default")
	w.RestoresRows("TrafficMirror//m")
	second := w.mirror("second", 2, func(s *kubeovnv1.TrafficMirrorSpec) { s.PodSelector = &metav1.LabelSelector{} })
	w.copies(second, "b.default", "c.default")
	w.Delete(m)
	w.NoRows("TrafficMirror//m")
	process.Stop()
	w.Delete(second)
	w.start()
	w.NoRows("TrafficMirror//second")
	w.copiesNothing()
}

func (w world) copiesNothing() {
	w.Helper()
	w.Rows("Mirror", func(r nbtest.Row) string { return fmt.Sprint(r["name"]) })
}

func TestAMirrorOfNamespacesAndAVpc(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("a", "n1", web)
	m := w.mirror("m", 1, func(s *kubeovnv1.TrafficMirrorSpec) {
		s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}}
	})
	w.copies(m)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	w.Get(ns)
	w.Change(ns, func() { ns.Labels["team"] = "shop" })
	w.copies(m, "a.default")
	w.Change(m, func() { m.Spec.Vpc = "blue" })
	w.copies(m)
	w.Change(m, func() { m.Spec.Vpc = kubeovnv1.DefaultVpc })
	w.copies(m, "a.default")
	w.Change(ns, func() { delete(ns.Labels, "team") })
	w.copies(m)
}

func TestAnInvalidSelectorKeepsTheLastOne(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	w.pod("a", "n1", web)
	m := w.mirror("m", 1)
	w.copies(m, "a.default")
	w.Change(m, func() {
		m.Spec.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like", Values: []string{"web"}}}}
		m.Spec.Sink = "192.0.2.99"
	})
	w.Says(m, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "podSelector", "Like")
	w.Says(m, kubeovnv1.ConditionReady, metav1.ConditionFalse, "the last valid spec stays applied")
	w.Event(m, eventsv1.Event{Reason: "FieldInvalid", Type: corev1.EventTypeWarning})
	process.Stop()
	w.start()
	w.pod("b", "n1", web)
	w.copies(m, "a.default", "b.default")
	for _, r := range w.Database.Rows("Mirror") {
		if r["sink"] != "192.0.2.10" {
			t.Errorf("the sink of the invalid spec is used: %v", r)
		}
	}
}

func TestMirrorsThatConflict(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("a", "n1", web)
	first := w.mirror("a-first", 1)
	w.copies(first, "a.default")
	second := w.mirror("b-second", 1)
	w.Says(second, kubeovnv1.ConditionReady, metav1.ConditionFalse, "a-first", "use another key")
	w.copies(second)
	w.Event(second, eventsv1.Event{Reason: "MirrorConflict", Type: corev1.EventTypeWarning})
	w.Change(first, func() { first.Spec.Key = 2 })
	w.copies(second, "a.default")
	w.copies(first, "a.default")
	w.Change(second, func() { second.Spec.Key = 2 })
	w.copies(second)
	w.Delete(first)
	w.copies(second, "a.default")
	w.Ready(second)
}

// A copy to a pod that is itself selected would be copied again, without an end.
func TestPodsThatAreSinksAreNotCopied(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("a", "n1", web)
	w.pod("collector", "n1", web, "ip_address", "10.16.0.99")
	m := w.mirror("m", 1)
	w.copies(m, "a.default", "collector.default")
	sink := w.mirror("to-pod", 2, func(s *kubeovnv1.TrafficMirrorSpec) { s.Sink = "10.16.0.99" })
	w.copies(sink, "a.default")
	w.copies(m, "a.default")
	w.Says(m, kubeovnv1.ConditionReady, metav1.ConditionTrue, "default/collector")
	w.Delete(sink)
	w.copies(m, "a.default", "collector.default")
}

func TestANodeHasAMaximumOfMirrors(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	w.pod("a", "n1", web)
	var all []*kubeovnv1.TrafficMirror
	for i := range trafficmirror.MaxPerNode {
		all = append(all, w.mirror(fmt.Sprintf("m%02d", i), int64(i)))
	}
	for _, m := range all {
		w.copies(m, "a.default")
	}
	late := w.mirror("z-late", 100)
	w.Says(late, kubeovnv1.ConditionReady, metav1.ConditionFalse, "pods on n1", fmt.Sprint(trafficmirror.MaxPerNode))
	w.copies(late)
	w.Event(late, eventsv1.Event{Reason: "NodesFull", Type: corev1.EventTypeWarning})
	w.pod("b", "n2", map[string]string{"app": "web", "on": "n2"})
	w.copies(all[0], "a.default", "b.default")
	w.copies(late)
	w.Change(all[3], func() { all[3].Spec.PodSelector.MatchLabels = map[string]string{"app": "web", "on": "n2"} })
	w.copies(all[3], "b.default")
	w.copies(late, "a.default")
	process.Stop()
	w.start()
	w.copies(late, "a.default")
	w.Delete(all[5])
	w.copies(late, "a.default", "b.default")
	w.Ready(late)
	if strings.Contains(late.Status.Conditions[0].Message, "n1") {
		t.Errorf("conditions %v", late.Status.Conditions)
	}
}

// TestLabelsOfPodsDisplaceNoMirrorOfNamespaces: users choose the labels of their pods, and so on which nodes mirrors by labels need a place.
func TestLabelsOfPodsDisplaceNoMirrorOfNamespaces(t *testing.T) {
	ofNamespace := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "default"}}
	for name, restrict := range map[string]func(*kubeovnv1.TrafficMirrorSpec){
		"labels":                  func(*kubeovnv1.TrafficMirrorSpec) {},
		"labels in a VPC":         func(s *kubeovnv1.TrafficMirrorSpec) { s.Vpc = kubeovnv1.DefaultVpc },
		"labels in one namespace": func(s *kubeovnv1.TrafficMirrorSpec) { s.NamespaceSelector = ofNamespace },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			pod := w.pod("a", "n1", other)
			for i := range trafficmirror.MaxPerNode {
				w.mirror(fmt.Sprintf("m%02d", i), int64(i), restrict)
			}
			byNamespace := w.mirror("z-late", 100, func(s *kubeovnv1.TrafficMirrorSpec) { s.PodSelector, s.NamespaceSelector = nil, ofNamespace })
			w.copies(byNamespace, "a.default")
			w.Change(pod, func() { pod.Labels = web })
			last := &kubeovnv1.TrafficMirror{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%02d", trafficmirror.MaxPerNode-1)}}
			w.Says(last, kubeovnv1.ConditionReady, metav1.ConditionFalse, "pods on n1")
			w.copies(byNamespace, "a.default")
			w.Change(byNamespace, func() {
				byNamespace.Spec.NamespaceSelector, byNamespace.Spec.PodSelector = nil, &metav1.LabelSelector{MatchLabels: web}
			})
			w.copies(byNamespace)
			w.copies(last, "a.default")
		})
	}
}
