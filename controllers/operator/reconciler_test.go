// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"reflect"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestAnOVNClusterOfAnotherNameIsRefused(t *testing.T) {
	err := theWorld.admin.Create(t.Context(), &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: "another"}})
	newG(t).Expect(err).To(MatchError(ContainSubstring("must be named default")))
}

// The controller watches every kind. It would restart repeatedly while the API does not serve one, as after an upgrade
// without the new definitions.
func TestEveryNetworkResourceIsRequired(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kubeovnv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for kind, of := range scheme.KnownTypes(kubeovnv1.GroupVersion) {
		unimplemented := slices.ContainsFunc(kubeovnv1.UnimplementedKinds, func(k kubeovnv1.UnimplementedKind) bool { return k.Kind == kind })
		if reflect.PointerTo(of).Implements(reflect.TypeFor[client.Object]()) && !unimplemented {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	required := slices.Sorted(slices.Values(networkKinds))
	if !slices.Equal(kinds, required) {
		t.Errorf("kinds %v are required, want %v", required, kinds)
	}
}
