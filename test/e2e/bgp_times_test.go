// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/fabric"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// timing is a row of the report: the times from an event until the router has changed its route, and the datagrams lost per event.
type timing struct {
	event string
	times []time.Duration
	lost  []int
	note  string
}

// bgpRuns is the number of runs of each event.
func bgpRuns() int {
	if n, err := strconv.Atoi(os.Getenv("BGP_RUNS")); err == nil {
		return n
	}
	return 20
}

func bgpReport(rows []timing) string {
	var b strings.Builder
	b.WriteString("| event | runs | minimum | median | maximum | lost datagrams: median, maximum | |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		lost := "not measured"
		if len(r.lost) > 0 {
			lost = fmt.Sprintf("%d, %d", slices.Sorted(slices.Values(r.lost))[len(r.lost)/2], slices.Max(r.lost))
		}
		if len(r.times) == 0 {
			fmt.Fprintf(&b, "| %s | %d | | | | %s | %s |\n", r.event, len(r.lost), lost, r.note)
			continue
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %s | %s |\n", r.event, len(r.times), slices.Min(r.times).Round(time.Millisecond),
			median(r.times).Round(time.Millisecond), slices.Max(r.times).Round(time.Millisecond), lost, r.note)
	}
	return b.String()
}

// become waits until the router has a prefix by exactly these workers. It returns how long that took since begun, and the next hops in between.
func (f *frr) become(ctx context.Context, p netip.Prefix, begun time.Time, workers ...int) (time.Duration, [][]string) {
	GinkgoHelper()
	want := hopsOf(p, workers...)
	var between [][]string
	for time.Since(begun) < 2*time.Minute {
		got := f.hops(p)
		if slices.Equal(got, want) {
			return time.Since(begun), between
		}
		if len(between) == 0 || !slices.Equal(between[len(between)-1], got) {
			between = append(between, got)
		}
		Expect(pause(ctx, 2*time.Millisecond)).To(Succeed())
	}
	Fail(fmt.Sprintf("the router has %s by %v, want %v", p, f.hops(p), want))
	return 0, nil
}

// times has the specs that measure. They assert that routes change, and in which order, but no durations.
func (b *bgpLab) times() {
	It("withdraws a pod that is deleted, and one that moves before its new node announces it", func(ctx SpecContext) {
		deleted := timing{event: "a pod is deleted (the container ends within a second)"}
		for i := range bgpRuns() {
			pod := runReady(ctx, withBGP(bgpPod(fmt.Sprintf("deleted-%d", i), suite.Workers[0]), ""))
			prefix := host(near4(pod))
			b.frr.reaches(ctx, prefix, 0)
			begun := time.Now()
			Expect(suite.Cluster.CoreV1().Pods(bgpNamespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
			took, _ := b.frr.become(ctx, prefix, begun)
			deleted.times = append(deleted.times, took)
		}
		b.results = append(b.results, deleted)
		b.moves(ctx)
	}, SpecTimeout(15*time.Minute))

	It("withdraws a local address from a node whose endpoint is not ready", func(ctx SpecContext) {
		row := timing{event: "the endpoint of a node is not ready (externalTrafficPolicy: Local)"}
		prefix := host(bgpLocal[0])
		b.frr.reaches(ctx, prefix, 0, 1)
		stream, at := b.startStream(ctx, bgpLocal[0]), []time.Time{}
		for range bgpRuns() {
			at = append(at, time.Now())
			setReady(ctx, b.pods[1], false)
			took, _ := b.frr.become(ctx, prefix, at[len(at)-1], 0)
			row.times = append(row.times, took)
			setReady(ctx, b.pods[1], true)
			b.frr.become(ctx, prefix, time.Now(), 0, 1)
		}
		row.lost = stream.lost(at)
		b.results = append(b.results, row)
	}, SpecTimeout(8*time.Minute))

	It("withdraws shared prefixes from a node that is cordoned or not Ready", func(ctx SpecContext) {
		node := suite.Workers[0]
		b.toggles(ctx, "a node is cordoned", func(ctx context.Context, on bool) { cordon(ctx, node, on) })
		b.toggles(ctx, "a node is not Ready (condition)", func(ctx context.Context, on bool) {
			status := corev1.ConditionTrue
			if on {
				status = corev1.ConditionFalse
			}
			patch := []byte(fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q,"reason":"Test"}]}}`, status))
			_, err := suite.Cluster.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
			Expect(err).NotTo(HaveOccurred())
		})
		By("stopping the kubelet, whose Lease expires")
		begun := time.Now()
		exec(ctx, node, "sh", "-c", "kill -STOP $(pidof kubelet)")
		DeferCleanup(func(ctx SpecContext) { exec(ctx, node, "sh", "-c", "kill -CONT $(pidof kubelet)") }, NodeTimeout(time.Minute))
		took, _ := b.frr.become(ctx, bgpCIDRs[0], begun, 1)
		exec(ctx, node, "sh", "-c", "kill -CONT $(pidof kubelet)")
		b.results = append(b.results, timing{event: "the kubelet stops, until the Lease has expired", times: []time.Duration{took}})
		b.frr.become(ctx, bgpCIDRs[0], time.Now(), 0, 1)
	}, SpecTimeout(8*time.Minute))

	It("keeps its routes at a router with graceful restart while it is killed", func(ctx SpecContext) {
		row := timing{event: "the speaker is killed (graceful restart, no BFD)", note: "the router keeps the routes"}
		stream, at := b.startStream(ctx, bgpSpread[0]), []time.Time{}
		prefixes := slices.Concat(bgpCIDRs, []netip.Prefix{host(bgpSpread[0]), host(bgpSpread[1])})
		for range bgpRuns() {
			drops := b.frr.established(ctx)
			speaker := b.speakerOf(ctx, 0)
			at = append(at, time.Now())
			Expect(suite.kill(ctx, speaker)).To(Succeed())
			begun := time.Now()
			Eventually(func(g Gomega) { // until the new process has announced its routes
				for _, p := range prefixes {
					g.Expect(b.frr.hops(p)).To(Equal(hopsOf(p, 0, 1)), "the router lost a route after %s", time.Since(begun))
				}
				all, err := b.frr.sessions(ctx)
				g.Expect(err).NotTo(HaveOccurred())
				for address, s := range all {
					if slices.Contains(hopsOf(host(netip.MustParseAddr(address)), 0), address) {
						g.Expect(s.Drops).To(Equal(drops[address]+1), address)
					}
					g.Expect(s.State).To(Equal("Established"), address)
				}
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(50 * time.Millisecond).Should(Succeed())
		}
		row.lost = stream.lost(at)
		b.results = append(b.results, row)
		Expect(slices.Max(row.lost)).To(BeNumerically("<", 10), "datagrams lost after a kill: %v", row.lost)
	}, SpecTimeout(12*time.Minute))

	It("loses a node that is cut off by BFD, and without BFD after the hold time", func(ctx SpecContext) {
		b.withBFD(ctx)
		Eventually(b.bird.establishedSessions).WithContext(ctx).WithTimeout(time.Minute).Should(Equal(4))
		fast, slow := timing{event: "a node is cut off, BFD of 3 × 300 ms (FRR)"}, timing{event: "a node is cut off, hold time of 9 s without BFD (BIRD)"}
		stream, at := b.startStream(ctx, bgpSpread[0]), []time.Time{}
		for range bgpRuns() {
			restore := cutPort(ctx, suite.Workers[0])
			at = append(at, time.Now())
			took, _ := b.frr.become(ctx, bgpCIDRs[0], at[len(at)-1], 1)
			fast.times = append(fast.times, took)
			Expect(b.bird.birdHops(ctx, bgpCIDRs[0])).To(Equal(hopsOf(bgpCIDRs[0], 0, 1)), "without BFD, after %s", took)
			Eventually(b.bird.birdHops).WithContext(ctx).WithArguments(bgpCIDRs[0]).WithTimeout(time.Minute).WithPolling(20 * time.Millisecond).
				Should(Equal(hopsOf(bgpCIDRs[0], 1)))
			slow.times = append(slow.times, time.Since(at[len(at)-1]))
			restore()
			b.frr.established(ctx)
			b.frr.bfdUp(ctx)
			Eventually(b.bird.establishedSessions).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Equal(4))
			for _, p := range []netip.Prefix{bgpCIDRs[0], bgpCIDRs[1], host(bgpSpread[0])} {
				b.frr.reaches(ctx, p, 0, 1)
			}
		}
		fast.lost = stream.lost(at)
		b.results = append(b.results, fast, slow)
	}, SpecTimeout(25*time.Minute))

	It("has BFD that survives load", func(ctx SpecContext) {
		b.withBFD(ctx)
		before, err := b.frr.bfd(ctx, "counters ")
		Expect(err).NotTo(HaveOccurred())
		const seconds = 60
		for _, node := range suite.Workers { // 8 busy processes per worker
			exec(ctx, node, "sh", "-c", fmt.Sprintf("for i in 1 2 3 4 5 6 7 8; do timeout %d sh -c 'while :; do :; done' >/dev/null 2>&1 & done", seconds))
		}
		Expect(pause(ctx, seconds*time.Second)).To(Succeed())
		after, err := b.frr.bfd(ctx, "counters ")
		Expect(err).NotTo(HaveOccurred())
		failures := 0
		for i := range after {
			failures += after[i].Downs - before[i].Downs
		}
		b.results = append(b.results, timing{
			event: fmt.Sprintf("false failures of %d BFD sessions in %d s with 16 busy processes", len(after), seconds), note: strconv.Itoa(failures),
		})
		b.frr.established(ctx) // it recovers
	}, SpecTimeout(6*time.Minute))
}

// moves measures a pod with a fixed address that is deleted and created on another node.
func (b *bgpLab) moves(ctx context.Context) {
	GinkgoHelper()
	const address = "10.17.0.200,fd00:10:17::c8"
	prefix := netip.MustParsePrefix("10.17.0.200/32")
	gone, back := timing{event: "a pod moves: withdrawn by the node that had it"}, timing{event: "a pod moves: announced by its new node (with the start of the pod)"}
	runReady(ctx, withBGP(bgpPod("moved", suite.Workers[0]), address))
	b.frr.reaches(ctx, prefix, 0)
	stream, at := b.startStreamTo(ctx, netip.AddrPortFrom(prefix.Addr(), udpPort)), []time.Time{}
	for i := range bgpRuns() {
		to := (i + 1) % 2
		begun := time.Now()
		at = append(at, begun)
		Expect(suite.Cluster.CoreV1().Pods(bgpNamespace).Delete(ctx, "moved", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})).To(Succeed())
		took, _ := b.frr.become(ctx, prefix, begun)
		gone.times = append(gone.times, took)
		runReady(ctx, withBGP(bgpPod("moved", suite.Workers[to]), address))
		took, between := b.frr.become(ctx, prefix, begun, to)
		for _, hops := range between {
			Expect(hops).To(BeEmpty(), "next hops before the new node")
		}
		back.times = append(back.times, took)
	}
	back.lost = stream.lost(at)
	b.results = append(b.results, gone, back)
}

// toggles measures an event that makes the first worker unfit, and its end.
func (b *bgpLab) toggles(ctx context.Context, event string, set func(ctx context.Context, on bool)) {
	GinkgoHelper()
	row, prefix := timing{event: event}, host(bgpSpread[0])
	DeferCleanup(func(ctx SpecContext) { set(ctx, false) }, NodeTimeout(time.Minute))
	stream, at := b.startStream(ctx, bgpSpread[0]), []time.Time{}
	for range bgpRuns() {
		at = append(at, time.Now())
		set(ctx, true)
		took, between := b.frr.become(ctx, prefix, at[len(at)-1], 1)
		for _, hops := range between {
			Expect(hops).To(HaveLen(2), "the other node keeps its route")
		}
		row.times = append(row.times, took)
		b.frr.become(ctx, bgpCIDRs[1], at[len(at)-1], 1)
		set(ctx, false)
		b.frr.become(ctx, prefix, time.Now(), 0, 1)
		b.frr.become(ctx, bgpCIDRs[1], time.Now(), 0, 1)
	}
	row.lost = stream.lost(at)
	b.results = append(b.results, row)
}

// startStream sends datagrams from the outside host to the address of a Service.
func (b *bgpLab) startStream(ctx context.Context, to netip.Addr) *stream {
	GinkgoHelper()
	b.frr.reaches(ctx, host(to), 0, 1)
	return b.startStreamTo(ctx, netip.AddrPortFrom(to, 80))
}

func (b *bgpLab) startStreamTo(ctx context.Context, to netip.AddrPort) *stream {
	GinkgoHelper()
	s := startStream(lab.OutsideHost, to)
	Eventually(s.answers).WithContext(ctx).WithTimeout(20*time.Second).Should(BeTrue(), "datagrams to %s", to)
	return s
}

// withBFD switches BFD of the sessions with FRR on, with BIRD as a router without BFD.
func (b *bgpLab) withBFD(ctx context.Context) {
	GinkgoHelper()
	b.frr.setBFD(ctx, true)
	bfd := func(p *v1alpha1.SpeakerPeer) { p.BFD, p.GracefulRestart = &v1alpha1.BFD{}, nil }
	applySpeaker(ctx, slices.Concat(neighbours(bfd), remotes())...)
	b.frr.established(ctx)
	b.frr.bfdUp(ctx)
}

// speakerOf returns the pod of the speaker on a worker.
func (b *bgpLab) speakerOf(ctx context.Context, worker int) *corev1.Pod {
	GinkgoHelper()
	pods, err := suite.Cluster.PodsOf(ctx, render.SpeakerName)
	Expect(err).NotTo(HaveOccurred())
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == suite.Workers[worker] })
	Expect(i).NotTo(Equal(-1))
	return &pods[i]
}

// withBGP makes the node of a pod announce it. address is empty or its fixed address.
func withBGP(pod *corev1.Pod, address string) *corev1.Pod {
	pod.Labels = map[string]string{"app": "alone"}
	pod.Annotations = map[string]string{kubeovnv1.AnnotationBGP.Key(): string(kubeovnv1.AnnounceLocal)}
	if address != "" {
		pod.Annotations[keyAddress] = address
	}
	return pod
}

// cutPort takes the port of a node off the bridge of the management network. Neither side loses its carrier.
func cutPort(ctx context.Context, node string) (restore func()) {
	GinkgoHelper()
	h := handleIn(fabric.Bridges)
	bridge, err := h.LinkByName(topology.Management.Name)
	Expect(err).NotTo(HaveOccurred())
	i := slices.IndexFunc(suite.Lab.Nodes(), func(n topology.Node) bool { return n.Name == node })
	port, err := h.LinkByName(suite.Lab.Nodes()[i].ID + ".eth0")
	Expect(err).NotTo(HaveOccurred())
	restore = func() { Expect(h.LinkSetMaster(port, bridge.(*netlink.Bridge))).To(Succeed()) }
	Expect(h.LinkSetNoMaster(port)).To(Succeed())
	DeferCleanup(restore) // if the spec fails earlier
	return restore
}
