// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cutOff drops packets that nodes receive and send, without an answer to anyone. The expressions of nft(8) say which; for "in" and "out" the name of the
// interface is iifname and oifname. The function that it returns lets them through again.
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
		for _, node := range nodes { // deletes nothing the second time
			exec(ctx, node, "nft", "table inet e2e_faults; delete table inet e2e_faults")
		}
	}
	DeferCleanup(func(ctx SpecContext) { restore(ctx) }, NodeTimeout(time.Minute)) // when the spec fails on its way
	return restore
}

// cutOffFromAPIServer leaves kubelets and agents of the workers without the API server; their connections hang.
func cutOffFromAPIServer(ctx context.Context, _ func()) func(context.Context) {
	GinkgoHelper()
	return cutOff(ctx, []string{"tcp sport 6443"}, []string{"tcp dport 6443"}, suite.Workers...)
}

// cutOffLeadingController cuts the node of the leading controller off. The lab has one API server, so the controller leads on another node first.
func cutOffLeadingController(ctx context.Context, begin func()) func(context.Context) {
	GinkgoHelper()
	var node string
	Eventually(func() string {
		leading := leadingController(ctx)
		if node = leading.Spec.NodeName; node == controlPlane() {
			Expect(suite.Cluster.CoreV1().Pods(leading.Namespace).Delete(ctx, leading.Name, metav1.DeleteOptions{})).To(Succeed())
			healthy(ctx)
		}
		return node
	}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(time.Second).ShouldNot(Equal(controlPlane()))
	Expect(suite.Workers).NotTo(ContainElement(node), "the flows run there")
	begin()
	return cutOff(ctx, []string{`iifname != "lo"`}, []string{`oifname != "lo"`}, node)
}

// cutOffLeader cuts the leader of a database off from the other members. Clients still reach it.
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
