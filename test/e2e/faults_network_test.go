// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/test/cluster"
)

// cutOff silently drops packets that nodes receive (in) and send (out). The expressions of nft(8) select the packets; the
// interface's name is iifname for in and oifname for out. The returned function removes the rules.
func cutOff(ctx context.Context, in, out []string, nodes ...string) func(context.Context) {
	GinkgoHelper()
	chain := func(hook string, expressions []string) string {
		rules := ""
		for _, e := range expressions {
			rules += e + " drop; "
		}
		return fmt.Sprintf("chain %s { type filter hook %s priority -400; %s}", hook, hook, rules)
	}
	for _, node := range nodes {
		exec(ctx, node, "nft", fmt.Sprintf("table inet e2e_faults { %s; %s; }", chain("input", in), chain("output", out)))
	}
	restore := func(ctx context.Context) {
		for _, node := range nodes { // a second call changes nothing
			exec(ctx, node, "nft", "table inet e2e_faults; delete table inet e2e_faults")
		}
	}
	DeferCleanup(func(ctx SpecContext) { restore(ctx) }, NodeTimeout(time.Minute)) // if the spec fails earlier
	return restore
}

// cutOffFromAPIServer cuts kubelets and agents of the workers off from the API server; their connections hang.
func cutOffFromAPIServer(ctx context.Context, _ func()) func(context.Context) {
	GinkgoHelper()
	return cutOff(ctx, []string{"tcp sport 6443"}, []string{"tcp dport 6443"}, suite.Workers...)
}

// cutOffNodeOf cuts off the node of a component's active pod. The node must be neither the one of the lab's only API server nor a
// worker, where the flows run, so another node's pod first has to become active.
func cutOffNodeOf(working func(context.Context) *corev1.Pod) injection {
	return func(ctx context.Context, begin func()) func(context.Context) {
		GinkgoHelper()
		others := append([]string{controlPlane()}, suite.Workers...)
		cordonOthers := func(ctx context.Context, cordoned bool) {
			for _, n := range others {
				cordon(ctx, n, cordoned)
			}
		}
		cordonOthers(ctx, true)
		DeferCleanup(func(ctx SpecContext) { cordonOthers(ctx, false) }, NodeTimeout(time.Minute)) // if the spec fails earlier
		var node string
		Eventually(func() bool {
			pod := working(ctx)
			node = pod.Spec.NodeName
			if !slices.Contains(others, node) {
				return true
			}
			Expect(suite.Cluster.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
			healthy(ctx)
			return false
		}).WithContext(ctx).WithTimeout(4 * time.Minute).WithPolling(time.Second).Should(BeTrue())
		cordonOthers(ctx, false)
		begin()
		return cutOff(ctx, []string{`iifname != "lo"`}, []string{`oifname != "lo"`}, node)
	}
}

// activeNorthd returns the pod of the ovn-northd that writes the southbound database.
func activeNorthd(ctx context.Context) *corev1.Pod {
	GinkgoHelper()
	var active corev1.PodList
	Eventually(func() ([]corev1.Pod, error) {
		err := suite.Objects.List(ctx, &active, client.InNamespace(cluster.Namespace), client.MatchingLabels{"ovn-northd-leader": "true"})
		return active.Items, err
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(everyArrival).Should(HaveLen(1))
	return &active.Items[0]
}

// cutOffLeader cuts the leader of a database off from the other members. Clients can still reach it.
func cutOffLeader(db trialDatabase) injection {
	return func(ctx context.Context, begin func()) func(context.Context) {
		GinkgoHelper()
		port := map[bool]int{true: 6643, false: 6644}[strings.HasSuffix(db.workload, "-nb")]
		packets := []string{fmt.Sprintf("tcp dport %d", port), fmt.Sprintf("tcp sport %d", port)}
		node := theOne(ctx, db, leader).Spec.NodeName
		begin()
		return cutOff(ctx, packets, packets, node)
	}
}
