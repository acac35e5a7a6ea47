// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// cluster is an API server without controllers, and the number of its apply requests.
type cluster struct {
	*Applier
	applied int
}

func newCluster() *cluster {
	c := &cluster{}
	api := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Apply: func(ctx context.Context, api client.WithWatch, o runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			c.applied++
			return api.Apply(ctx, o, options...)
		},
	}).Build()
	c.Applier = &Applier{Client: api, APIReader: api, Cache: api, FieldOwner: "kiln-test"}
	return c
}

// owned begins a reconciliation of the owner with this UID.
func (c *cluster) owned(uid types.UID) *Set {
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", UID: uid}}
	return c.For(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
}

func (c *cluster) names(t *testing.T) (names []string) {
	t.Helper()
	var list corev1.ConfigMapList
	if err := c.Client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", Labels: map[string]string{"part-of": "test"}}, Data: map[string]string{"key": value},
	}
}

func TestASecondApplySendsNothing(t *testing.T) {
	c := newCluster()
	for i, step := range []struct {
		value string
		sent  int
	}{{"a", 1}, {"a", 1}, {"b", 2}, {"b", 2}} {
		if err := c.owned("1").Apply(t.Context(), configMap("x", step.value)); err != nil || c.applied != step.sent {
			t.Fatalf("step %d: %d requests, want %d (%v)", i, c.applied, step.sent, err)
		}
	}
	changed := configMap("x", "of another writer")
	if err := c.Client.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if err := c.owned("1").Apply(t.Context(), configMap("x", "b")); err != nil || c.applied != 3 {
		t.Errorf("after a change of another writer: %d requests (%v)", c.applied, err)
	}
}

// TestPruneDeletesWhatIsNoLongerApplied has an object of another owner with the same label, and one without an owner.
func TestPruneDeletesWhatIsNoLongerApplied(t *testing.T) {
	c := newCluster()
	first := c.owned("1")
	if err := first.Apply(t.Context(), configMap("kept", "1"), configMap("dropped", "1"), configMap("dropped-by-name", "1")); err != nil {
		t.Fatal(err)
	}
	if err := first.ApplyUnowned(t.Context(), configMap("unowned", "1")); err != nil {
		t.Fatal(err)
	}
	if err := c.owned("2").Apply(t.Context(), configMap("foreign", "1")); err != nil {
		t.Fatal(err)
	}

	second := c.owned("1")
	if err := second.Apply(t.Context(), configMap("kept", "1")); err != nil {
		t.Fatal(err)
	}
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	for _, name := range []string{"dropped-by-name", "kept", "foreign", "missing"} {
		if err := second.PruneNamed(t.Context(), kind, client.ObjectKey{Namespace: "n", Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := c.names(t), []string{"dropped", "foreign", "kept", "unowned"}; !slices.Equal(got, want) {
		t.Errorf("by name: %v, want %v", got, want)
	}
	if err := second.Prune(t.Context(), &corev1.ConfigMap{}, client.MatchingLabels{"part-of": "test"}); err != nil {
		t.Fatal(err)
	}
	if got, want := c.names(t), []string{"foreign", "kept", "unowned"}; !slices.Equal(got, want) {
		t.Errorf("by label: %v, want %v", got, want)
	}
}

// TestDeleteNamesTheUID checks the precondition by which the API server spares a new object with the same name.
func TestDeleteNamesTheUID(t *testing.T) {
	var sent client.DeleteOptions
	api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, options ...client.DeleteOption) error {
			sent.ApplyOptions(options)
			return nil
		},
	})
	o := configMap("x", "1")
	o.UID = "1"
	if err := (&Applier{Client: api}).Delete(t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	if sent.Preconditions == nil || *sent.Preconditions.UID != "1" || *sent.GracePeriodSeconds != 0 || *sent.PropagationPolicy != metav1.DeletePropagationBackground {
		t.Errorf("sent %+v", sent)
	}
}

func TestProgressOfADaemonSet(t *testing.T) {
	for _, tt := range []struct {
		name                       string
		ready, updated             int32
		unreachable                int32
		serves, serving, completes bool
	}{
		{"no pod is ready", 0, 3, 0, false, false, false},
		{"a pod is not ready", 2, 3, 0, true, false, false},
		{"a pod is on a node that does not answer", 2, 2, 1, true, true, true},
		{"a pod has an earlier template", 3, 2, 0, true, true, false},
		{"every pod has the current template", 3, 3, 0, true, true, true},
	} {
		set := &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, NumberReady: tt.ready, UpdatedNumberScheduled: tt.updated}}
		set.Spec.Template.Spec.Containers = []corev1.Container{{Image: "i"}}
		p := ProgressOf(set)
		if p.Serves() != tt.serves || p.Serving(tt.unreachable) != tt.serving || p.Complete(tt.unreachable) != tt.completes {
			t.Errorf("%s: %+v", tt.name, p)
		}
		set.Generation = 1 // the controller has not observed it
		if ProgressOf(set).Serving(tt.unreachable) {
			t.Errorf("%s: it serves with a template that was not observed", tt.name)
		}
	}
	if p := ProgressOf(nil); p.Serves() {
		t.Errorf("a workload that does not exist: %+v", p)
	}
}
