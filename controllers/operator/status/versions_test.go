// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/version"
)

func TestEachContainerIsAskedOnce(t *testing.T) {
	g := NewWithT(t)
	var answer atomic.Pointer[version.Programs]
	var asked atomic.Int32
	v := NewVersions(func(context.Context, netip.AddrPort) (version.Programs, error) {
		asked.Add(1)
		if programs := answer.Load(); programs != nil {
			return *programs, nil
		}
		return version.Programs{}, errors.New("404 Not Found")
	})
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{ContainerID: "1"}}}}
	at := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), render.OperandOf(render.NorthdName).VersionPort)
	now := time.Unix(1000, 0)
	ask := func() (version.Programs, bool) { return v.of(containerOf(&pod), at, now) }

	_, pending := ask()
	g.Expect(pending).To(BeTrue())
	<-v.Wake
	programs, pending := ask()
	g.Expect(programs).To(BeZero())
	g.Expect(pending).To(BeFalse(), "it does not know the question")
	g.Expect(asked.Load()).To(Equal(int32(1)))

	answer.Store(&version.Programs{Kiln: "v1", OVN: "25.03.0"})
	now = now.Add(versionRetry)
	_, pending = ask()
	g.Expect(pending).To(BeTrue())
	<-v.Wake
	for range 3 {
		programs, pending = ask()
		g.Expect(programs.OVN).To(Equal("25.03.0"))
		g.Expect(pending).To(BeFalse())
	}
	g.Expect(asked.Load()).To(Equal(int32(2)))

	pod.Status.ContainerStatuses[0].ContainerID = "2" // the container was restarted
	v.Forget([]corev1.Pod{pod})
	g.Expect(v.cached).To(BeEmpty())
	_, pending = ask()
	g.Expect(pending).To(BeTrue())
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
