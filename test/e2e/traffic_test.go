// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/test/cluster"
)

// answered is a line of `ping -D`: when, and which packet.
var answered = regexp.MustCompile(`\[([0-9.]+)\] .*icmp_seq=(\d+)`)

// oneConnection asks the server at $1 for its name every 100 ms, all on one TCP connection, until it is told to stop.
const oneConnection = `exec 3<>"/dev/tcp/$1/$2"; cat <&3 >/tmp/replies & n=0
while [ ! -e /tmp/stop ]; do printf 'GET /hostname HTTP/1.1\r\nHost: test\r\n\r\n' >&3 || break; n=$((n+1)); sleep 0.1; done
echo $n >/tmp/asked`

// aRestart of ovs-vswitchd loses more packets than this, half a second's worth. What is less comes from pods that start on the nodes of the flow,
// which cost it packets with the userspace datapath (startPing says why). Packets are counted, not seconds: a busy machine makes ping pause too.
const aRestart = 50

// startTraffic pings every 10 ms, talks over one TCP connection, and starts one pod after another on every node. The function that it returns
// ends that, reports what was lost, and expects no more gaps of a restart in the ping than nodes of the two pods restarted their Open vSwitch.
func startTraffic(ctx context.Context, from, to *corev1.Pod) func(ctx context.Context, what string, gaps int) {
	GinkgoHelper()
	address := cluster.PodAddrs(to)[0].String()
	_, err := suite.Cluster.Exec(ctx, from, "bash", "-c", fmt.Sprintf(
		"rm -f /tmp/stop /tmp/asked /tmp/replies; ping -D -n -i 0.01 -W 1 %s >/tmp/pings 2>&1 & echo $! >/tmp/pinger", address))
	Expect(err).NotTo(HaveOccurred())
	_, err = suite.Cluster.Exec(ctx, from, "bash", "-c", fmt.Sprintf("bash -c '%s' tcp %s %d >/tmp/tcp 2>&1 &",
		strings.ReplaceAll(oneConnection, "'", `'"'"'`), address, cluster.HTTPPort))
	Expect(err).NotTo(HaveOccurred())
	nodes, stop := startPods(ctx)
	begun := time.Now()
	return func(ctx context.Context, what string, gaps int) {
		GinkgoHelper()
		took := time.Since(begun).Round(time.Second)
		started, slowest, failures := stop()
		out, err := suite.Cluster.Exec(ctx, from, "bash", "-c", "kill $(cat /tmp/pinger); touch /tmp/stop; cat /tmp/pings")
		Expect(err).NotTo(HaveOccurred())
		lost, found := lossOf(out)
		var asked, answers int
		Eventually(func(g Gomega) {
			text, err := suite.Cluster.Exec(ctx, from, "bash", "-c", "cat /tmp/asked; grep -c 'HTTP/1.1 200' /tmp/replies")
			g.Expect(err).NotTo(HaveOccurred(), text)
			_, err = fmt.Sscan(text, &asked, &answers)
			g.Expect(err).NotTo(HaveOccurred(), text)
			g.Expect(answers).To(Equal(asked), "answers on one TCP connection")
		}).WithContext(ctx).WithTimeout(30 * time.Second).WithPolling(time.Second).Should(Succeed())
		AddReportEntry(what, fmt.Sprintf("%s; %d packets lost in gaps of %s; %d requests answered on one connection; %d pods started, the slowest after %s; failed: %v",
			took, lost, found, answers, started, slowest.Round(100*time.Millisecond), failures))
		Expect(failures).To(BeEmpty(), "pods that did not start")
		Expect(started).To(BeNumerically(">=", nodes))
		found = slices.DeleteFunc(found, func(g gap) bool { return g.packets < aRestart })
		Expect(len(found)).To(BeNumerically("<=", gaps), "gaps: %v", found)
	}
}

// gap is a time without answers.
type gap struct {
	packets int // that had no answer
	took    time.Duration
}

func (g gap) String() string {
	return fmt.Sprintf("%d in %s", g.packets, g.took.Round(10*time.Millisecond))
}

// lossOf says how many packets had no answer, and in which gaps. Losses within a second of one another are one gap.
func lossOf(out string) (lost int, gaps []gap) {
	type answer struct {
		number int
		at     float64
	}
	var all []answer
	for _, m := range answered.FindAllStringSubmatch(out, -1) {
		at, _ := strconv.ParseFloat(m[1], 64)
		number, _ := strconv.Atoi(m[2])
		all = append(all, answer{number, at})
	}
	slices.SortFunc(all, func(a, b answer) int { return a.number - b.number })
	ended := 0.0
	for i := 1; i < len(all); i++ {
		missing := all[i].number - all[i-1].number - 1
		if missing <= 0 {
			continue
		}
		lost += missing
		if len(gaps) == 0 || all[i-1].at-ended >= 1 {
			gaps = append(gaps, gap{})
		}
		last := &gaps[len(gaps)-1]
		last.packets += missing
		last.took += time.Duration((all[i].at - all[i-1].at) * float64(time.Second))
		ended = all[i].at
	}
	return lost, gaps
}

// startPods starts pods on every node that there is, one after another, until the function that it returns is called. Machines that a fault has
// removed from the cluster are no nodes any more.
func startPods(ctx context.Context) (nodes int, stop func() (started int, slowest time.Duration, failures []string)) {
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
				_, err := suite.Cluster.Run(limit, cluster.Server(upgradeNamespace, name, n.Name))
				done()
				mu.Lock()
				if err != nil {
					failures = append(failures, err.Error())
				} else {
					started, slowest = started+1, max(slowest, time.Since(begun))
				}
				mu.Unlock()
				_ = suite.Cluster.CoreV1().Pods(upgradeNamespace).Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
			}
		})
	}
	return len(list.Items), func() (int, time.Duration, []string) {
		cancel()
		group.Wait()
		return started, slowest, failures
	}
}
