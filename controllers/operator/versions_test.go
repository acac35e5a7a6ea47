// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// TestPodsReportTheirVersions has two nodes of which one is updated, a database, and a pod that does not serve its versions.
func TestPodsReportTheirVersions(t *testing.T) {
	s := installed(t)
	g := newG(t)
	row := func(name string) func() []v1alpha1.ComponentVersion {
		return func() []v1alpha1.ComponentVersion { return s.row(t, name).Versions }
	}
	before := version.Programs{Kiln: "v0.1.0", OVN: "25.03.0", OpenVSwitch: "3.5.0"}
	s.pods["first"] = s.addPod(t, "ovs-first", render.OpenVSwitch, node, "192.0.2.1", "")
	s.pods["second"] = s.addPod(t, "ovs-second", render.OpenVSwitch, "worker-1", "192.0.2.11", "")
	s.programs.set(render.OpenVSwitch, before)
	s.setReady(t, s.pods["first"], true)
	g.Eventually(row(render.OpenVSwitch)).Should(Equal([]v1alpha1.ComponentVersion{
		{Kiln: "v0.1.0", OVN: "25.03.0", OpenVSwitch: "3.5.0", Pods: 1, Nodes: []string{node}},
	}))
	s.programs.set(render.OpenVSwitch, version.Programs{Kiln: "v0.2.0", OVN: "25.09.0", OpenVSwitch: "3.6.0"})
	s.setReady(t, s.pods["second"], true)
	g.Eventually(row(render.OpenVSwitch)).Should(Equal([]v1alpha1.ComponentVersion{
		{Kiln: "v0.1.0", OVN: "25.03.0", OpenVSwitch: "3.5.0", Pods: 1, Nodes: []string{node}},
		{Kiln: "v0.2.0", OVN: "25.09.0", OpenVSwitch: "3.6.0", Pods: 1, Nodes: []string{"worker-1"}},
	}))
	s.members["nb"].set(func(status *adminapi.Status) {
		status.Versions = version.Programs{Kiln: "v0.2.0", OpenVSwitch: "3.6.0"}
	})
	s.touch(t, "nb")
	g.Eventually(row(render.NorthboundName)).Should(Equal([]v1alpha1.ComponentVersion{{Kiln: "v0.2.0", OpenVSwitch: "3.6.0", Pods: 1, Nodes: []string{node}}}))
	g.Expect(row(render.AgentName)()).To(BeEmpty())
	g.Eventually(func() string { return s.cluster(t).Status.Versions }).Should(
		Equal("Kiln v0.1.0, v0.2.0; OVN 25.03.0, 25.09.0; Open vSwitch 3.5.0, 3.6.0"))
	for _, name := range []string{"first", "second"} {
		g.Expect(s.admin.Delete(t.Context(), s.pods[name], client.GracePeriodSeconds(0))).To(Succeed())
	}
	g.Eventually(row(render.OpenVSwitch)).Should(BeEmpty())
}
