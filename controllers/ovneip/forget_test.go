// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovneip

import (
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// TestAStaleOvnEipForgetsWhatHasEnded has a cache that is behind, as while many rules of one OvnEip are deleted.
func TestAStaleOvnEipForgetsWhatHasEnded(t *testing.T) {
	scheme := runtime.NewScheme()
	must.Succeed(t, kubeovnv1.AddToScheme(scheme))
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "shared"}}
	eip.Status.Releasing = map[string]kubeovnv1.OvnEipRelease{"ended": {Nodes: []string{"n1"}}, "open": {Nodes: []string{"n1", "n2"}}, "replaced": {Nodes: []string{"n1", "n2"}}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(eip).WithStatusSubresource(eip).Build()
	stale := &kubeovnv1.OvnEip{}
	must.Succeed(t, c.Get(t.Context(), client.ObjectKeyFromObject(eip), stale))
	now := stale.DeepCopy()
	delete(now.Status.Releasing, "replaced")
	now.Status.Releasing["added"] = kubeovnv1.OvnEipRelease{Nodes: []string{"n1"}}
	must.Succeed(t, c.Status().Patch(t.Context(), now, client.MergeFrom(stale)))

	one := kubeovnv1.OvnEipRelease{Nodes: []string{"n2"}}
	must.Succeed(t, (&Reconciler{Client: c}).forget(t.Context(), stale.DeepCopy(), map[string]kubeovnv1.OvnEipRelease{"open": one, "replaced": one}))
	must.Succeed(t, c.Get(t.Context(), client.ObjectKeyFromObject(eip), now))
	if ids := slices.Sorted(maps.Keys(now.Status.Releasing)); !slices.Equal(ids, []string{"added", "open"}) || !slices.Equal(now.Status.Releasing["open"].Nodes, one.Nodes) {
		t.Errorf("the former translations are %v", now.Status.Releasing)
	}
	changed := kubeovnv1.OvnEipRelease{Nodes: []string{"n3"}}
	if err := (&Reconciler{Client: c}).forget(t.Context(), stale, map[string]kubeovnv1.OvnEipRelease{"ended": changed, "open": one, "replaced": one}); err == nil {
		t.Error("a stale OvnEip changes records")
	}
}
