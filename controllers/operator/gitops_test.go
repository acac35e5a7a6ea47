// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	manifests "github.com/kiln-net/kiln/hack/packaging/render"
	"github.com/kiln-net/kiln/test/applied"
)

// gitOps is the manager of fields of a GitOps controller.
const gitOps = "gitops"

// TestAnAppliedInstallationHasNoDiff applies the roles, the policies and the OVNCluster of an overlay like a GitOps controller, before the operator
// has created anything and again on the complete installation: without conflicts, and without a difference that the controller would correct forever.
func TestAnAppliedInstallationHasNoDiff(t *testing.T) {
	s := newScenario(t)
	g := newG(t)
	objects, err := manifests.Objects(filepath.Join("..", "..", "config", "overlays", "rke2"), "")
	g.Expect(err).NotTo(HaveOccurred())
	s.addNode(t, node, "192.0.2.1", map[string]string{v1alpha1.ControlPlaneLabel: ""})
	var own []*unstructured.Unstructured
	for _, o := range objects {
		if kind := o.GetKind(); kind == "CustomResourceDefinition" || kind == "Deployment" { // the API server has the former, this test runs the latter
			continue
		}
		own = append(own, o)
		g.Expect(s.admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner(gitOps))).To(Succeed(), o.GetName())
	}
	s.installCreated(t)
	for _, o := range own {
		for _, manager := range []string{gitOps, "another"} {
			diff, err := applied.Diff(t.Context(), s.admin, o, manager)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(diff).To(BeEmpty(), "%s %s", o.GetKind(), o.GetName())
		}
	}
	g.Expect(s.cluster(t).Finalizers).NotTo(BeEmpty(), "the operator has set nothing: this proves little")
	before := s.cluster(t).Generation
	for _, o := range own {
		g.Expect(s.admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner(gitOps))).To(Succeed(), o.GetName())
	}
	g.Expect(s.cluster(t).Generation).To(Equal(before))
}
