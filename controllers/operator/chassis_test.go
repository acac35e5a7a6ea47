// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

func TestChassisOfDeletedNodesAreRemoved(t *testing.T) {
	s := newInstallation(t)
	g := newG(t)
	southbound := s.members[render.Southbound.Flag]
	chassis := func() []string {
		names, err := southbound.Chassis(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		return names
	}
	southbound.register(node, "worker-1", "windows", "deleted", "c0ffee00_of another/system")
	s.addNode(t, "worker-2", "192.0.2.22", nil)
	g.Eventually(chassis).Should(ConsistOf(node, "worker-1", "windows"))
	g.Eventually(func() []string { return s.events(t) }).Should(ContainElement("Normal ChassisRemoved"))

	southbound.register("worker-2")
	pod := s.addPod(t, "ovs-ovn-2", render.OpenVSwitch, "worker-2", "192.0.2.22", "r")
	g.Expect(s.admin.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-2"}})).To(Succeed())
	g.Eventually(chassis).Should(ConsistOf(node, "worker-1", "windows"))

	southbound.register("worker-2") // its ovn-controller runs until its pod ends
	g.Expect(s.admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0))).To(Succeed())
	g.Eventually(chassis).Should(ConsistOf(node, "worker-1", "windows"))
}
