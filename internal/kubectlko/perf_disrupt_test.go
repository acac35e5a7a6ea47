// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/netprobe/measure"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// members are the databases and ovn-northd of a cluster, whose pods are replaced when they are deleted.
type members struct {
	*perfNetwork
	mu      sync.Mutex
	deleted []string
}

// newMembers returns a run of `kubectl ko perf --disrupt --yes` in a cluster with three members of each database and two pods of ovn-northd.
func newMembers(t *testing.T) *members {
	m := &members{perfNetwork: newPerfNetwork(t)}
	m.run.disrupt, m.run.yes, m.run.flowLead = true, true, 0
	m.run.measure = func(_ context.Context, _ *corev1.Pod, list []measure.Measurement) ([]measure.Outcome, error) {
		m.made = append(m.made, list...)
		return []measure.Outcome{{Result: measure.Result{Sent: 3000, Lost: 0.004}}}, nil
	}
	oc := m.ovnCluster()
	for _, l := range leaders {
		oc.Status.Components = append(oc.Status.Components, v1alpha1.ComponentStatus{Name: l.component, Desired: l.least, Ready: l.least})
		for i := range l.least {
			m.member(l.component, l.label, int(i), i == 1)
		}
	}
	must.Succeed(t, m.objects.Status().Update(t.Context(), oc))
	m.replace()
	return m
}

func (m *members) ovnCluster() *v1alpha1.OVNCluster {
	m.Helper()
	oc := &v1alpha1.OVNCluster{}
	must.Succeed(m, m.objects.Get(m.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc))
	return oc
}

// member creates a ready pod.
func (m *members) member(component, label string, number int, leads bool) {
	m.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: fmt.Sprintf("%s-%d", component, number), Labels: map[string]string{componentLabel: component, label: fmt.Sprint(leads)}},
		Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	must.Succeed(m, m.objects.Create(context.Background(), pod))
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	must.Succeed(m, m.objects.Status().Update(context.Background(), pod))
}

// replace plays kubelets and controllers: another pod becomes the leader, and a new one is created.
func (m *members) replace() {
	ctx, stop := context.WithCancel(context.Background())
	events, err := m.objects.Watch(ctx, &corev1.PodList{}, client.InNamespace(metav1.NamespaceSystem))
	must.Succeed(m, err)
	done := make(chan struct{})
	m.Cleanup(func() { stop(); <-done })
	go func() {
		defer close(done)
		number := 10
		for event := range events.ResultChan() {
			pod, is := event.Object.(*corev1.Pod)
			if !is || pod.DeletionTimestamp == nil || len(pod.Spec.Containers) == 0 || pod.Spec.Containers[0].Name != "c" {
				continue
			}
			if err := m.objects.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
				continue // it was deleted before
			}
			m.mu.Lock()
			m.deleted = append(m.deleted, pod.Name)
			m.mu.Unlock()
			for _, l := range leaders {
				if l.component == pod.Labels[componentLabel] {
					number++
					m.member(l.component, l.label, number, true)
				}
			}
		}
	}()
}

func TestDisruptions(t *testing.T) {
	m := newMembers(t)
	out := &strings.Builder{}
	m.run.out, m.run.output.format = out, "json"
	must.Succeed(t, m.run.run(t.Context()))
	var report PerfReport
	must.Succeed(t, json.Unmarshal([]byte(out.String()), &report))
	if !m.isClean() || len(report.Rows) != 0 || len(report.Recovery) != len(leaders) {
		t.Fatalf("clean: %t, %+v", m.isClean(), report)
	}
	for i, c := range report.Recovery {
		if c.Component != leaders[i].component || c.Pod != leaders[i].component+"-1" || c.Node != "node-1" || c.Pods == 0 || c.Address <= 0 || c.Start < c.Address || c.UsualStart <= 0 || c.Sent != 3000 || c.Lost != 12 || len(c.Errors) > 0 {
			t.Errorf("%+v", c)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if fmt.Sprint(m.deleted) != "[ovn-central-nb-1 ovn-central-sb-1 ovn-central-northd-1]" {
		t.Errorf("deleted: %v", m.deleted)
	}
	if len(m.made) != len(leaders) || m.made[0].Kind != measure.Steady || m.made[0].Rate != flowRate {
		t.Errorf("%+v", m.made)
	}
}

// TestRefusedDisruptions: nothing is created or deleted if the loss of a pod could stop a database.
func TestRefusedDisruptions(t *testing.T) {
	m := newMembers(t)
	refused := func(want string) {
		t.Helper()
		if err := m.run.run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		namespace := &corev1.Namespace{}
		if err := m.objects.Get(t.Context(), client.ObjectKey{Name: m.run.name}, namespace); !apierrors.IsNotFound(err) {
			t.Errorf("there is a namespace: %v", err)
		}
	}
	m.run.yes = false
	refused("Repeat the command with --yes")
	m.run.yes = true
	for _, tt := range []struct {
		change func(oc *v1alpha1.OVNCluster)
		want   string
	}{
		{func(oc *v1alpha1.OVNCluster) { oc.Status.Components[0].Desired, oc.Status.Components[0].Ready = 1, 1 }, "ovn-central-nb has 1 pods, and without one of them no other could take over: 3 are needed"},
		{func(oc *v1alpha1.OVNCluster) { oc.Status.Components[1].Ready = 2 }, "2 of 3 pods of ovn-central-sb are ready"},
		{func(oc *v1alpha1.OVNCluster) { oc.Status.Components[2].Desired = 1 }, "ovn-central-northd has 1 pods"},
		{func(oc *v1alpha1.OVNCluster) { oc.Status.Components = oc.Status.Components[:2] }, "no component ovn-central-northd"},
		{func(oc *v1alpha1.OVNCluster) {
			oc.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: metav1.Now()}}
		}, "is Progressing or Degraded"},
	} {
		oc := m.ovnCluster()
		before := oc.Status.DeepCopy()
		tt.change(oc)
		must.Succeed(t, m.objects.Status().Update(t.Context(), oc))
		refused(tt.want)
		before.DeepCopyInto(&oc.Status)
		must.Succeed(t, m.objects.Status().Update(t.Context(), oc))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.deleted) > 0 {
		t.Errorf("deleted: %v", m.deleted)
	}
}

func TestRecoveryTable(t *testing.T) {
	report := &PerfReport{Recovery: []PerfRecovery{
		{Component: "ovn-central-nb", Node: "cp-1", UsualAddress: 0.04, UsualStart: 1.2, Address: 1.31, Start: 2.4, Sent: 3000, Lost: 2},
		{Component: "ovn-central-northd", Node: "cp-2", Errors: []string{"flow: no packet arrived"}},
	}}
	out := &strings.Builder{}
	must.Succeed(t, report.write(out))
	const want = `DELETED             NODE  ADDRESS  USUALLY  START  USUALLY  LOST PACKETS
ovn-central-nb      cp-1  1.3 s    0.0 s    2.4 s  1.2 s    2 of 3000
ovn-central-northd  cp-2  0.0 s    0.0 s    0.0 s  0.0 s    0 of 0
ADDRESS and START are the longest times until a new pod had an address and ran; LOST PACKETS are of a flow that existed before.
FAIL  ovn-central-northd: flow: no packet arrived
`
	if out.String() != want {
		t.Errorf("%s", out)
	}
}
