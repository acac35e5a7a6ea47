// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/test/cluster"
)

// aRestart of ovs-vswitchd stops a flow for longer than this. Shorter gaps come from pods that start on the nodes of the flow, which cost it
// packets with the userspace datapath (watch says why).
const aRestart = 500 * time.Millisecond

// longestRestart is the longest gap of a flow whose nodes restarted their Open vSwitch, of the table in docs/upgrades.md.
const longestRestart = 2300 * time.Millisecond

// startTraffic starts the flows of a pair, and one pod after another on every node. The returned function stops them, reports losses, and
// expects at most as many gaps of a restart in each flow as Open vSwitch was restarted on the two nodes.
func startTraffic(ctx context.Context, p *pair) func(ctx context.Context, what string, gaps int) {
	GinkgoHelper()
	running := startFlows(ctx, p)
	running.resets = true
	nodes, stop := startPods(ctx, membersNamespace)
	begun := time.Now()
	return func(ctx context.Context, what string, gaps int) {
		GinkgoHelper()
		took := time.Since(begun).Round(time.Second)
		started, slowest, failures := stop()
		seen := running.end(ctx)
		AddReportEntry(what, fmt.Sprintf("%s; %d pods started, the slowest after %s; failed: %v", took, started, slowest.Round(100*time.Millisecond), failures))
		Expect(failures).To(BeEmpty(), "pods that did not start")
		Expect(started).To(BeNumerically(">=", nodes))
		for _, f := range seen {
			long := (flows{f}).gapsOver(aRestart)
			Expect(len(long)).To(BeNumerically("<=", gaps), "gaps: %v", long)
		}
		Expect(seen.gapsLongerThan(bound(longestRestart))).To(BeEmpty())
		Expect(seen.ofTCP().losses()).To(BeEmpty())
	}
}

// startPods starts pods of a namespace on every node that there is, one after another, until the function that it returns is called. Machines that a fault has
// removed from the cluster are no nodes any more.
func startPods(ctx context.Context, namespace string) (nodes int, stop func() (started int, slowest time.Duration, failures []string)) {
	GinkgoHelper()
	var list corev1.NodeList
	Expect(suite.Objects.List(ctx, &list)).To(Succeed())
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var mu sync.Mutex
	var group sync.WaitGroup
	var started int
	var slowest time.Duration
	var failures []string
	for _, n := range list.Items {
		group.Go(func() {
			defer GinkgoRecover()
			for i := 0; ctx.Err() == nil; i++ {
				begun := time.Now()
				name := fmt.Sprintf("new-%s-%d", n.Name, i)
				limit, done := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
				_, err := suite.Cluster.Run(limit, cluster.Server(namespace, name, n.Name))
				done()
				mu.Lock()
				if err != nil {
					failures = append(failures, err.Error())
				} else {
					started, slowest = started+1, max(slowest, time.Since(begun))
				}
				mu.Unlock()
				_ = suite.Cluster.CoreV1().Pods(namespace).Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
			}
		})
	}
	return len(list.Items), func() (int, time.Duration, []string) {
		cancel()
		group.Wait()
		return started, slowest, failures
	}
}
