// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s_test

import (
	"crypto/rand"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

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
