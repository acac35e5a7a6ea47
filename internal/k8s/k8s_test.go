// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

func TestNothingIsReconciledBeforeTheGateOpens(t *testing.T) {
	gate := k8s.NewStartGate()
	calls := 0
	r := gate.Reconciler(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		calls++
		return reconcile.Result{}, nil
	}))
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := r.Reconcile(ended, reconcile.Request{}); err != nil || calls != 0 {
		t.Errorf("a process that ended at the gate: error %v, %d calls", err, calls)
	}
	gate.Open()
	gate.Open()
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil || calls != 1 {
		t.Errorf("behind the open gate: error %v, %d calls", err, calls)
	}
}

func TestConflictsAreTriedAgainInSilence(t *testing.T) {
	gate := k8s.NewStartGate()
	gate.Open()
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "subnets"}, "a", errors.New("stale"))
	failure := errors.New("broken")
	for _, tt := range []struct {
		name  string
		err   error
		quiet bool
	}{
		{"a conflict", fmt.Errorf("patch: %w", conflict), true},
		{"any other failure", failure, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := gate.Reconciler(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				return reconcile.Result{}, tt.err
			}))
			result, err := r.Reconcile(t.Context(), reconcile.Request{})
			if (err == nil) != tt.quiet || (result.RequeueAfter > 0) != tt.quiet {
				t.Errorf("result %+v, error %v", result, err)
			}
		})
	}
}

func TestAStatusGoesBackThoughTheCacheIsBehind(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kubeovnv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	server := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&kubeovnv1.Subnet{}).
		WithObjects(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID(rand.Text())}}).Build() // versions are global
	read := func() *kubeovnv1.Subnet {
		s := &kubeovnv1.Subnet{}
		if err := server.Get(t.Context(), client.ObjectKey{Name: "a"}, s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	tell := func(cached *kubeovnv1.Subnet, ready metav1.ConditionStatus) error {
		s := cached.DeepCopy()
		k8s.SetConditions(&s.Status.Conditions, 0, metav1.Condition{Type: kubeovnv1.ConditionReady, Status: ready, Reason: string(ready)})
		return k8s.PatchStatus(t.Context(), server, cached, s)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(tell(read(), metav1.ConditionTrue))
	cached := read()
	must(tell(cached, metav1.ConditionTrue)) // changes nothing
	must(tell(cached, metav1.ConditionFalse))
	if err := tell(cached, metav1.ConditionTrue); !apierrors.IsConflict(err) {
		t.Errorf("with the earlier state in the cache: %v", err)
	}
	must(tell(read(), metav1.ConditionTrue))
	if s := read(); !k8s.IsTrue(s.Status.Conditions, kubeovnv1.ConditionReady, 0) {
		t.Errorf("the status stayed as it was: %+v", s.Status.Conditions)
	}
}

func TestReady(t *testing.T) {
	waiting := errors.New("waiting")
	for _, tt := range []struct {
		name   string
		err    error
		status metav1.ConditionStatus
		reason string
	}{
		{"applied", nil, metav1.ConditionTrue, kubeovnv1.ReasonApplied},
		{"waiting for another", fmt.Errorf("apply: %w", waiting), metav1.ConditionFalse, kubeovnv1.ReasonWaiting},
		{"failed", errors.New("broken"), metav1.ConditionFalse, kubeovnv1.ReasonFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if c := k8s.Ready(tt.err, waiting); c.Status != tt.status || c.Reason != tt.reason {
				t.Errorf("condition %+v", c)
			}
		})
	}
}

func TestConditionsAreOfAGeneration(t *testing.T) {
	var list []metav1.Condition
	k8s.SetConditions(&list, 2, k8s.Validated(nil), metav1.Condition{
		Type: kubeovnv1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Long", Message: strings.Repeat("x", 40000),
	})
	if !k8s.IsTrue(list, kubeovnv1.ConditionValidated, 2) || k8s.IsTrue(list, kubeovnv1.ConditionValidated, 3) {
		t.Errorf("Validated holds for another generation than its own: %+v", list[0])
	}
	if n := len(list[1].Message); n != 32768 {
		t.Errorf("a message of %d bytes was kept", n)
	}
	before := append([]metav1.Condition(nil), list...)
	k8s.SetConditions(&list, 3, k8s.Validated(nil))
	if !k8s.SameMessage(before, list, kubeovnv1.ConditionValidated) {
		t.Error("a new generation alone is news")
	}
}

func TestChangedLooksAtTheViewOnly(t *testing.T) {
	p := k8s.Changed(func(n *corev1.Node) string { return n.Labels["a"] })
	node := func(label string, generation int64) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Generation: generation, Labels: map[string]string{"a": label}}}
	}
	if p.Update(event.UpdateEvent{ObjectOld: node("x", 1), ObjectNew: node("x", 2)}) {
		t.Error("a change outside of the view passes")
	}
	if !p.Update(event.UpdateEvent{ObjectOld: node("x", 1), ObjectNew: node("y", 1)}) {
		t.Error("a change of the view does not pass")
	}
}

func TestAddressesOfNodes(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "node-1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
		{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeHostName, Address: "2001:db8::1"},
	}}}
	if got := ipfamily.Join(k8s.InternalIPs(node)); got != "10.0.0.1" {
		t.Errorf("InternalIPs: %s", got)
	}
	if got := ipfamily.Join(k8s.StatusIPs(node)); got != "10.0.0.1,192.0.2.1,2001:db8::1" {
		t.Errorf("StatusIPs: %s", got)
	}
}
