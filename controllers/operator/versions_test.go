// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
	"github.com/kiln-net/kiln/internal/version"
)

func TestEachContainerIsAskedOnce(t *testing.T) {
	g := newG(t)
	fake := &fakeVersions{programs: map[uint16]version.Programs{}}
	v := newVersions(fake.get)
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{ContainerID: "1"}}}}
	at := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), render.OperandOf(render.NorthdName).VersionPort)
	now := time.Unix(1000, 0)
	ask := func() (version.Programs, bool) { return v.of(containerOf(&pod), at, now) }

	_, pending := ask()
	g.Expect(pending).To(BeTrue())
	<-v.wake
	programs, pending := ask()
	g.Expect(programs).To(BeZero())
	g.Expect(pending).To(BeFalse(), "it does not know the question")
	g.Expect(fake.asked).To(Equal(1))

	fake.set(render.NorthdName, version.Programs{Kiln: "v1", OVN: "25.03.0"})
	now = now.Add(versionRetry)
	_, pending = ask()
	g.Expect(pending).To(BeTrue())
	<-v.wake
	for range 3 {
		programs, pending = ask()
		g.Expect(programs.OVN).To(Equal("25.03.0"))
		g.Expect(pending).To(BeFalse())
	}
	g.Expect(fake.asked).To(Equal(2))

	pod.Status.ContainerStatuses[0].ContainerID = "2" // the container was restarted
	v.forget([]corev1.Pod{pod})
	g.Expect(v.cached).To(BeEmpty())
	_, pending = ask()
	g.Expect(pending).To(BeTrue())
}

// TestPodsReportTheirVersions has two nodes of which one is updated, a database, and a pod that does not serve its versions.
func TestPodsReportTheirVersions(t *testing.T) {
	s := installed(t)
	g := newG(t)
	row := func(name string) func() []v1alpha1.ComponentVersion {
		return func() []v1alpha1.ComponentVersion { return componentVersions(s.cluster(t).Status, name) }
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

// TestSummaryOfVersionsAfterARollback has kube-ovn-monitor, which keeps the operator's version when the others go back.
func TestSummaryOfVersionsAfterARollback(t *testing.T) {
	rows := []v1alpha1.ComponentStatus{
		{Name: render.AgentName, Versions: []v1alpha1.ComponentVersion{{Kiln: "v0.1.0"}}},
		{Name: render.OpenVSwitch, Versions: []v1alpha1.ComponentVersion{{Kiln: "v0.1.0", OVN: "25.03.0", OpenVSwitch: "3.5.0"}}},
		{Name: render.MonitorName, Versions: []v1alpha1.ComponentVersion{{Kiln: "v0.2.0"}}},
	}
	if got, want := summarize(rows), "Kiln v0.1.0; OVN 25.03.0; Open vSwitch 3.5.0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
