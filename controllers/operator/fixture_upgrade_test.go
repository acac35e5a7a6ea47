// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
)

const (
	imageNow    = "kiln.local/kiln:test"
	imageNext   = "kiln.local/kiln:next"
	imageBroken = "kiln.local/kiln:broken"
)

// forward is the order of an upgrade of the two nodes.
var forward = []string{
	"ovs-ovn/control-plane-1", "kube-ovn-cni/control-plane-1", "ovs-ovn/worker-1", "kube-ovn-cni/worker-1",
	"ovn-central-nb/control-plane-1", "ovn-central-sb/control-plane-1", "ovn-central-northd/control-plane-1", "kube-ovn-controller/control-plane-1",
}

// atWork replaces the pods that earlier steps created with pods of simulated workloads.
func (s *scenario) atWork(t *testing.T) *workloads {
	t.Helper()
	w := &workloads{admin: s.admin, fails: map[string]bool{}}
	w.run(t)
	s.settledOn(t, s.cluster(t).Spec.Image)
	w.forget()
	return w
}

// settledOn waits until every component runs an image and the conditions agree.
func (s *scenario) settledOn(t *testing.T, image string) {
	t.Helper()
	if image == "" {
		image = imageNow
	}
	g := newG(t)
	g.Eventually(func() map[string]string {
		var pods corev1.PodList
		g.Expect(s.admin.List(t.Context(), &pods, client.HasLabels{v1alpha1.ComponentLabel})).To(Succeed())
		found := map[string]string{}
		for _, p := range pods.Items {
			if p.Spec.Containers[0].Image == image && observed.Ready(&p) {
				found[p.Labels[v1alpha1.ComponentLabel]+"/"+p.Spec.NodeName] = image
			}
		}
		return found
	}).Should(HaveLen(len(forward)))
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False AsSpecified"))
	g.Eventually(s.condition(t, "Available")).Should(HavePrefix("True"))
	g.Eventually(func() v1alpha1.UpgradeStatus { return s.cluster(t).Status.Upgrade }).Should(Equal(
		v1alpha1.UpgradeStatus{Images: s.cluster(t).Status.Upgrade.Images}))
}

func (s *scenario) setImage(t *testing.T, image string) {
	t.Helper()
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Image = image })
}

// tryUpgrade sets spec.upgrade.
func (s *scenario) tryUpgrade(t *testing.T, u v1alpha1.Upgrade) error {
	c := s.cluster(t)
	changed := c.DeepCopy()
	changed.Spec.Upgrade = u
	return s.admin.Patch(t.Context(), changed, client.MergeFrom(c))
}
