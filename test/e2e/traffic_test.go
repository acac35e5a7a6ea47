// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/test/cluster"
)

// aRestart is shorter than the gap that a restart of ovs-vswitchd causes in a flow. Shorter gaps come from pods that start on the flow's nodes, which costs
// packets with the userspace datapath (see watch). On a busy machine these gaps are longer, and those of restarts, too.
const aRestart = 500 * time.Millisecond

// fewPackets are lost by chance.
const fewPackets = 5

// longestRestart is the longest gap of a flow whose nodes restarted Open vSwitch, on an idle machine (docs/operations/upgrades.md).
const longestRestart = 2300 * time.Millisecond

// startTraffic starts the flows of a pair, and one pod after another on every node. The returned function stops them, reports
// losses, and expects the gaps of at most this many restarts of Open vSwitch in each flow, half of them on each node.
func startTraffic(ctx context.Context, p *pair) func(ctx context.Context, what string, restarts int) {
	GinkgoHelper()
	running := startFlows(ctx, p)
	running.resets = true
	nodes, stop := startPods(ctx, p.from.Namespace)
	begun := time.Now()
	return func(ctx context.Context, what string, restarts int) {
		GinkgoHelper()
		took := time.Since(begun).Round(time.Second)
		pods := stop()
		seen := running.end(ctx)
		AddReportEntry(what, fmt.Sprintf("%s; %s; failed: %v", took, pods, pods.failures))
		Expect(pods.failures).To(BeEmpty(), "pods that did not start")
		Expect(len(pods.starts)).To(BeNumerically(">=", nodes))
		for _, f := range seen {
			if f.sameNode { // pods that start cost it nothing
				long := (flows{f}).gapsOver(fewPackets * pace(f.protocol))
				Expect(len(long)).To(BeNumerically("<=", restarts/2), "gaps: %v", long)
			} else {
				few := max(fewPackets, int(aRestart/pace(f.protocol)))
				Expect(f.Further(restarts, few)).To(BeEmpty(), "more gaps than restarts: %s: %s", f.name, f.Flow)
			}
		}
		Expect(seen.gapsLongerThan(longestRestart)).To(BeEmpty())
		Expect(seen.ofTCP().losses()).To(BeEmpty())
	}
}

// startedPods holds the results of startPods: the times until each pod had its address, and until it was ready.
type startedPods struct {
	addresses, starts []time.Duration
	failures          []string
}

func (p startedPods) String() string {
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
	if len(p.starts) == 0 {
		return "no pod started"
	}
	return fmt.Sprintf("%d pods started: an address after %s (median), the last after %s; ready after %s, the last after %s", len(p.starts),
		round(median(p.addresses)), round(slices.Max(p.addresses)), round(median(p.starts)), round(slices.Max(p.starts)))
}

// median returns the median of at least one duration.
func median(of []time.Duration) time.Duration { return slices.Sorted(slices.Values(of))[len(of)/2] }

// startPodsCalls makes the pod names of each call unique: pods of the previous call may still exist.
var startPodsCalls atomic.Int32

// startPods starts pods on every node, one after another, until the returned function is called. It skips machines that a fault has
// removed from the cluster.
func startPods(ctx context.Context, namespace string) (nodes int, stop func() startedPods) {
	GinkgoHelper()
	var list corev1.NodeList
	Expect(suite.Objects.List(ctx, &list)).To(Succeed())
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	call := startPodsCalls.Add(1)
	var mu sync.Mutex
	var group sync.WaitGroup
	var pods startedPods
	for _, n := range list.Items {
		group.Go(func() {
			defer GinkgoRecover()
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("new-%d-%s-%d", call, n.Name, i)
				address, start, err := startPod(context.WithoutCancel(ctx), cluster.Server(namespace, name, n.Name))
				mu.Lock()
				if err != nil {
					pods.failures = append(pods.failures, err.Error())
				} else {
					pods.addresses, pods.starts = append(pods.addresses, address), append(pods.starts, start)
				}
				mu.Unlock()
				_ = suite.Cluster.CoreV1().Pods(namespace).Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
			}
		})
	}
	return len(list.Items), func() startedPods {
		cancel()
		group.Wait()
		return pods
	}
}

// startPod starts a pod, and returns the times until it had its address and until it was ready. A pod has two minutes, times the slowdown of the
// machine: on a node whose Open vSwitch is replaced it waits for the replacement, which can take 40 seconds in a lab with one CPU.
func startPod(ctx context.Context, pod *corev1.Pod) (address, start time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(calibration.slowdown*float64(2*time.Minute)))
	defer cancel()
	begun := time.Now()
	if _, err := suite.Cluster.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, 0, fmt.Errorf("create pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if _, err := suite.Cluster.WaitPod(ctx, pod.Namespace, pod.Name, allocated); err != nil {
		return 0, 0, err
	}
	address = time.Since(begun)
	_, err = suite.Cluster.WaitPod(ctx, pod.Namespace, pod.Name, cluster.Ready)
	return address, time.Since(begun), err
}
