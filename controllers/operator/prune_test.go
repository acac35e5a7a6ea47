// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

func TestUnwantedObjectsAreDeleted(t *testing.T) {
	s := installed(t)
	g := newG(t)
	labels := map[string]string{render.ManagedByLabel: render.ManagedBy}
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "foreign", Namespace: testNamespace, Labels: labels}}
	g.Expect(s.admin.Create(t.Context(), foreign)).To(Succeed())
	for _, old := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: render.BackupsSecret, Namespace: testNamespace, Labels: labels}},
		render.BackupsObjects(withBackups())[0].(client.Object),
	} {
		old.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(s.cluster(t), v1alpha1.GroupVersion.WithKind("OVNCluster"))})
		g.Expect(s.admin.Create(t.Context(), old)).To(Succeed())
		g.Eventually(func() bool { return apierrors.IsNotFound(s.exists(t, old, old.GetName())()) }).Should(BeTrue())
	}
	g.Expect(s.exists(t, &corev1.ConfigMap{}, "foreign")()).To(Succeed())
	g.Expect(s.admin.Delete(t.Context(), foreign)).To(Succeed())
}
