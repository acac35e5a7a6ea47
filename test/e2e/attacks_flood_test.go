// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

// ovn-controller answers these packets, and has one thread for all of a node.
var _ = Describe("a hostile tenant that floods ovn-controller", func() {
	const attackerVpc, victimVpc = "e2e-flood-attacker", "e2e-flood-victim"

	It("takes no answer from a pod of another VPC on its node", func(ctx SpecContext) {
		pods := map[string]*corev1.Pod{}
		for n, tenant := range []struct{ namespace, vpc string }{{attackerNamespace, attackerVpc}, {victimNamespace, victimVpc}} {
			makeNamespace(ctx, tenant.namespace)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, tenant.namespace) }, NodeTimeout(4*time.Minute))
			vpc := &kubeovnv1.Vpc{
				ObjectMeta: metav1.ObjectMeta{Name: tenant.vpc},
				Spec:       kubeovnv1.VpcSpec{AllowedNamespaces: []kubeovnv1.AllowedNamespace{kubeovnv1.AllowedNamespace(tenant.namespace)}},
			}
			subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: tenant.vpc + "-net"}, Spec: kubeovnv1.SubnetSpec{
				Vpc: tenant.vpc, CIDRBlock: fmt.Sprintf("10.%d.0.0/24,fd00:10:%d::/64", 86+n, 86+n), EnableDHCP: true,
			}}
			Expect(suite.Objects.Create(ctx, vpc)).To(Succeed())
			DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, vpc) }, NodeTimeout(2*time.Minute))
			Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
			DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, subnet) }, NodeTimeout(2*time.Minute))
			pods[tenant.vpc] = podIn(ctx, tenant.namespace, "pod", suite.Workers[0], subnet.Name, fmt.Sprintf("10.%d.0.10", 86+n), fmt.Sprintf("fd00:10:%d::10", 86+n))
			DeferCleanup(func(ctx SpecContext) { removePods(ctx, tenant.namespace, pods[tenant.vpc].Name) }, NodeTimeout(time.Minute))
		}
		victim := pods[victimVpc]
		for what, command := range answeredByController {
			Eventually(answers).WithContext(ctx).WithArguments(victim, command).WithTimeout(time.Minute).Should(Succeed(), "without a flood: %s", what)
		}

		begin := func(command string) {
			GinkgoHelper()
			_, err := suite.Cluster.Exec(ctx, pods[attackerVpc], "sh", "-c", "("+command+") </dev/null >/dev/null 2>&1 &")
			Expect(err).NotTo(HaveOccurred())
		}
		// Datagrams to the router, which answers with an ICMP error, and connections that it refuses. The pod's end ends both.
		begin("socat -u -b 32 OPEN:/dev/zero UDP-SENDTO:10.86.0.1:9")
		for range 4 {
			begin("while :; do socat -u OPEN:/dev/null TCP:10.86.0.1:9; done")
		}
		dropped := func() (string, error) {
			return suite.Node.Exec(ctx, suite.Workers[0], "curl", "-sf", "--max-time", "15", "http://127.0.0.1:10672/metrics")
		}
		Eventually(dropped).WithTimeout(time.Minute).WithPolling(time.Second).Should(
			MatchRegexp(`(?m)^kiln_ovn_controller_dropped_packets_total\{[^}]*kind="errors"[^}]*vpc="%s"\} `, attackerVpc), "control: the flood exceeds the limit")
		for what, command := range answeredByController {
			Eventually(answers).WithContext(ctx).WithArguments(victim, command).WithTimeout(time.Minute).Should(Succeed(), "%s", what)
		}
		Expect(dropped()).NotTo(MatchRegexp(`kiln_ovn_controller_dropped_packets_total\{[^}]*vpc="%s"`, victimVpc))
		late := cluster.Server(victimNamespace, "late", suite.Workers[0])
		late.Annotations = map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): victimVpc + "-net"}
		DeferCleanup(func(ctx SpecContext) { removePods(ctx, victimNamespace, "late") }, NodeTimeout(time.Minute))
		_, err := suite.Cluster.Run(ctx, late)
		Expect(err).NotTo(HaveOccurred())
	}, SpecTimeout(10*time.Minute))
})

// answeredByController are commands in a pod of the victim that succeed if ovn-controller answers.
var answeredByController = map[string]string{
	"DHCP":                   "timeout 20 dhclient -4 -1 -sf /bin/true -lf /tmp/flood -pf /tmp/flood.pid eth0 >/dev/null 2>&1; found=$?; kill $(cat /tmp/flood.pid); rm -f /tmp/flood*; exit $found",
	"neighbour discovery":    "ip -6 neigh flush dev eth0; ping -6 -c 1 -W 3 fd00:10:87::1",
	"a refused connection":   "socat -u OPEN:/dev/null TCP:10.87.0.1:9,connect-timeout=3 2>&1 | grep -q 'Connection refused'",
	"an error of the router": "ping -c 1 -W 3 -t 1 192.0.2.1 | grep -qi 'time to live exceeded'",
}

// answers returns an error unless a command in a pod succeeds.
func answers(ctx context.Context, pod *corev1.Pod, command string) error {
	_, err := suite.Cluster.Exec(ctx, pod, "sh", "-c", command)
	return err
}
