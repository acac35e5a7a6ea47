// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/test/cluster"
)

const machineNamespace = "e2e-machines"

var _ = Describe("virtual machines", func() {
	It("are reached at their new node after a migration from when they announce themselves there", func(ctx SpecContext) {
		makeNamespace(ctx, machineNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, machineNamespace) }, NodeTimeout(4*time.Minute))
		peers := []*corev1.Pod{serve(ctx, machineNamespace, "near", 0), serve(ctx, machineNamespace, "far", 1)}
		source := runLauncher(ctx, "source", suite.Workers[0])
		addresses := cluster.PodAddrs(source)
		answers := func(want string) {
			GinkgoHelper()
			for _, peer := range peers {
				for _, a := range addresses {
					Eventually(whoAnswers).WithContext(ctx).WithArguments(peer, a).WithTimeout(20*time.Second).Should(Equal(want), "%s, from pod %s", a, peer.Name)
				}
			}
		}
		answers(source.Name)

		By("starting the target")
		target := runLauncher(ctx, "target", suite.Workers[1])
		Expect(cluster.PodAddrs(target)).To(Equal(addresses))
		Expect(hardwareAddress(target)).To(Equal(hardwareAddress(source)))
		expectChassis(ctx, suite.Workers[0], suite.Workers[1])
		answers(source.Name)

		By("pausing the source")
		_, err := suite.Cluster.Exec(ctx, source, "ip", "link", "set", "eth0", "down")
		Expect(err).NotTo(HaveOccurred())
		for _, peer := range peers {
			for _, a := range addresses {
				Expect(whoAnswers(ctx, peer, a)).To(BeEmpty(), "%s, from pod %s: the target has not announced itself", a, peer.Name)
			}
		}

		By("announcing the target")
		announceMachine(ctx, target)
		answers(target.Name)
		removePods(ctx, machineNamespace, source.Name)
		expectChassis(ctx, suite.Workers[1])
		answers(target.Name)
	}, SpecTimeout(5*time.Minute))
})

// runLauncher runs a pod on a node that has the port of the virtual machine "vm", as the launchers of KubeVirt have.
func runLauncher(ctx context.Context, name, node string) *corev1.Pod {
	GinkgoHelper()
	pod := cluster.Server(machineNamespace, "virt-launcher-vm-"+name, node)
	pod.Labels["kubevirt.io/migrationJobUID"] = name
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "vm", UID: "c0ffee00-0000-4000-8000-000000000000", Controller: new(true),
	}}
	pod.Spec.Containers[0].ReadinessProbe = nil
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	running, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	return running
}

// expectChassis waits until the port of the virtual machine is requested on these nodes.
func expectChassis(ctx context.Context, nodes ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		rows, err := suite.Cluster.NBList(ctx, "Logical_Switch_Port", "name,options")
		g.Expect(err).NotTo(HaveOccurred())
		i := slices.IndexFunc(rows, func(r cluster.NBRow) bool { return r["name"] == "vm."+machineNamespace })
		g.Expect(i).NotTo(Equal(-1), "no port")
		g.Expect(rows[i]["options"]).To(HaveKeyWithValue("requested-chassis", strings.Join(nodes, ",")))
	}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
}

// announceMachine sends a RARP request (RFC 903) from a pod's interface, as QEMU does for a virtual machine that has arrived on a node.
func announceMachine(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	own, err := net.ParseMAC(hardwareAddress(pod))
	Expect(err).NotTo(HaveOccurred())
	none := make([]byte, 4) // the IPv4 addresses of sender and target
	frame := slices.Concat(
		net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, own, []byte{0x80, 0x35},
		[]byte{0, 1, 8, 0, 6, 4, 0, 3}, own, none, own, none, make([]byte, 18))
	var octal strings.Builder
	for _, b := range frame {
		fmt.Fprintf(&octal, "\\%03o", b)
	}
	_, err = suite.Cluster.Exec(ctx, pod, "sh", "-c", "printf '"+octal.String()+"' | socat -u - INTERFACE:eth0")
	Expect(err).NotTo(HaveOccurred())
}
