// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

const egressFlowsNamespace = "e2e-egress-flows"

// sourcesPort is the UDP port of sourcesProgram on the outside host.
const sourcesPort = 4100

// movedSources are addresses that two EgressAddresses have in turn: the first ones move between them.
var movedSources = [][]netip.Addr{
	egressSources,
	{netip.MustParseAddr("172.30.0.211"), netip.MustParseAddr("fd00:172:30::d3")},
	{netip.MustParseAddr("172.30.0.212"), netip.MustParseAddr("fd00:172:30::d4")},
}

var _ = Describe("egress addresses of pods that send without a pause", Ordered, ContinueOnFailure, func() {
	BeforeAll(func(ctx SpecContext) {
		makeNamespace(ctx, egressFlowsNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, egressFlowsNamespace) }, NodeTimeout(6*time.Minute))
	})

	It("are the only sources while labels of 40 pods flip", func(ctx SpecContext) {
		const count, flips = 40, 6
		egressIn(ctx, egressFlowsNamespace, "e2e-flows", egressSources, "web", suite.Workers[:2]...)
		pods := egressPods(ctx, count, "other")
		received := receiveSources(ctx)
		for _, pod := range pods {
			sendSources(ctx, pod)
		}
		nodes := map[string][]netip.Addr{}
		for _, like := range suite.Outside {
			for _, worker := range suite.Workers[:2] {
				nodes[worker] = append(nodes[worker], addressOfNode(ctx, worker, like))
			}
		}
		want := func(pod *corev1.Pod, selected bool) []netip.Addr {
			if selected {
				return egressSources
			}
			return nodes[pod.Spec.NodeName]
		}
		for flip := range flips + 1 {
			selected := flip%2 == 1
			if flip > 0 {
				relabelAll(ctx, pods, map[bool]string{true: "web", false: "other"}[selected])
			}
			Eventually(func(g Gomega) {
				latest := received.latest(ctx)
				for _, pod := range pods {
					for i := range suite.Outside {
						g.Expect(want(pod, selected)).To(ContainElement(latest[i][pod.Name]), "flip %d, pod %s", flip, pod.Name)
					}
				}
			}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
		}
		for i, of := range received.all(ctx) {
			for _, pod := range pods {
				sources := of[pod.Name]
				Expect(sources).NotTo(BeEmpty())
				changes := 0
				for j, packet := range sources {
					Expect(slices.Concat(want(pod, true), want(pod, false))).To(ContainElement(packet.source), "pod %s", pod.Name)
					if j > 0 && sources[j-1].source != packet.source {
						changes++
					}
				}
				Expect(changes).To(Equal(flips), "changes of the source of pod %s to %s: each further one is a packet with another source while the pod was selected", pod.Name, suite.Outside[i])
			}
		}
	}, SpecTimeout(15*time.Minute))

	It("move between EgressAddresses, and have no packet for their former pods", func(ctx SpecContext) {
		const moves = 10
		older := egressIn(ctx, egressFlowsNamespace, "e2e-flows-a", movedSources[0], "web", suite.Workers[:2]...)
		pods := []*corev1.Pod{egressPods(ctx, 1, "web")[0], egressPods(ctx, 1, "db")[0]}
		younger := egressIn(ctx, egressFlowsNamespace, "e2e-flows-b", movedSources[1], "db")
		for i, pod := range pods {
			for _, like := range cluster.PodAddrs(pod) {
				source, _ := cluster.InFamilyOf(movedSources[i], like)
				expectSeen(ctx, pod, like, source)
			}
		}
		received := receiveSources(ctx)
		var talks []*talk
		for _, host := range suite.Outside {
			address, _ := cluster.InFamilyOf(movedSources[0], host)
			startTalk(ctx, fromOutside, netip.AddrPortFrom(host, 4000), netip.AddrPortFrom(address, 5000))
			one := &talk{what: "the address " + address.String()}
			for _, pod := range pods {
				at, _ := cluster.InFamilyOf(cluster.PodAddrs(pod), host)
				one.files = append(one.files, startTalk(ctx, fromPod(pod), netip.AddrPortFrom(at, 5000), netip.AddrPortFrom(host, 4000)))
			}
			talks = append(talks, one)
		}
		for _, pod := range pods {
			sendSources(ctx, pod)
		}
		await := func(owner int) {
			GinkgoHelper()
			for _, one := range talks {
				began := time.Now()
				Eventually(func() bool { return one.last(ctx, fromPod(pods[owner]), owner).After(began) }).WithContext(ctx).WithTimeout(time.Minute).
					WithPolling(200*time.Millisecond).Should(BeTrue(), "%s of %s", one.what, pods[owner].Name)
			}
		}
		await(0)
		for move := range moves {
			from, to := older, younger
			if move%2 == 1 {
				from, to = younger, older
			}
			setSources(ctx, from, movedSources[2])
			setSources(ctx, to, movedSources[0])
			expectApplied(ctx, to)
			await((move + 1) % 2)
			setSources(ctx, from, movedSources[1])
		}
		for _, one := range talks {
			owners, gaps := one.owners(ctx, pods)
			if len(gaps) > 0 {
				AddReportEntry(one.what, fmt.Sprintf("%d owners after %d moves; between two owners: median %s, longest %s", owners, moves,
					median(gaps).Round(time.Millisecond), slices.Max(gaps).Round(time.Millisecond)))
			}
			Expect(owners).To(Equal(moves+1), "%s: each further owner is a former one that got a packet", one.what)
		}
		for _, of := range received.all(ctx) {
			for _, pod := range pods {
				Expect(of[pod.Name]).NotTo(BeEmpty())
				for _, packet := range of[pod.Name] {
					Expect(slices.Concat(movedSources...)).To(ContainElement(packet.source), "pod %s", pod.Name)
				}
			}
		}
	}, SpecTimeout(10*time.Minute))
})

// egressPods runs pods with the label app on both workers until the spec ends.
func egressPods(ctx context.Context, count int, app string) []*corev1.Pod {
	GinkgoHelper()
	pods, errs := make([]*corev1.Pod, count), make([]error, count)
	var running sync.WaitGroup
	for i := range count {
		running.Go(func() {
			pod := cluster.Server(egressFlowsNamespace, fmt.Sprintf("%s-%d", app, i), suite.Workers[i%2])
			pod.Labels = map[string]string{"app": app}
			pods[i], errs[i] = suite.Cluster.Run(ctx, pod)
		})
	}
	running.Wait()
	for i := range count {
		Expect(errs[i]).NotTo(HaveOccurred())
	}
	DeferCleanup(func(ctx SpecContext) {
		for _, pod := range pods {
			Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, pod))).To(Succeed())
		}
		for _, pod := range pods {
			deleteObjects(ctx, pod)
		}
	}, NodeTimeout(4*time.Minute))
	return pods
}

func relabelAll(ctx context.Context, pods []*corev1.Pod, app string) {
	GinkgoHelper()
	for _, pod := range pods {
		relabel(ctx, pod, app)
	}
}

// setSources sets the addresses of an EgressAddress.
func setSources(ctx context.Context, e *kubeovnv1.EgressAddress, addresses []netip.Addr) {
	GinkgoHelper()
	Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(e), e)).To(Succeed())
	base := e.DeepCopy()
	e.Spec.Addresses = nil
	for _, address := range addresses {
		e.Spec.Addresses = append(e.Spec.Addresses, address.String())
	}
	Expect(suite.Objects.Patch(ctx, e, client.MergeFrom(base))).To(Succeed())
}

// sourcesProgram sends and receives numbered packets.
//
//go:embed testdata/sources.py
var sourcesProgram string

// receivedSources are the files on the outside host with the packets to each of its addresses.
type receivedSources struct{ files []string }

// numberedPacket is a packet.
type numberedPacket struct {
	number int
	source netip.Addr
}

// runSources runs sourcesProgram until the spec ends, and returns the file with its output.
func runSources(ctx context.Context, from origin, name string, args ...string) (file string) {
	GinkgoHelper()
	file = fmt.Sprintf("/tmp/sources-%s-%d", name, time.Now().UnixNano())
	_, err := from(ctx, append([]string{"sh", "-c", `f=$1 p=$2; shift 2; setsid python3 -c "$p" "$@" </dev/null >$f 2>$f.err & echo $! >$f.pid`, "sources", file, sourcesProgram}, args...)...)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := from(ctx, "sh", "-c", `kill $(cat $0.pid); rm -f $0 $0.err $0.pid`, file)
		Expect(err).NotTo(HaveOccurred())
	}, NodeTimeout(time.Minute))
	return file
}

// receiveSources receives packets at all addresses of the outside host until the spec ends.
func receiveSources(ctx context.Context) *receivedSources {
	GinkgoHelper()
	r := &receivedSources{}
	for i, host := range suite.Outside {
		r.files = append(r.files, runSources(ctx, fromOutside, fmt.Sprint("receive-", i), "receive", host.String(), fmt.Sprint(sourcesPort)))
	}
	return r
}

// sendSources makes a pod send to all addresses of the outside host until the spec ends.
func sendSources(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	args := []string{"send", pod.Name, fmt.Sprint(sourcesPort)}
	for _, host := range suite.Outside {
		args = append(args, host.String())
	}
	runSources(ctx, fromPod(pod), "send", args...)
}

// read returns the packets of each pod in the output of a command, in the order in which they were sent, by the address of the host.
func (r *receivedSources) read(ctx context.Context, command ...string) []map[string][]numberedPacket {
	GinkgoHelper()
	var all []map[string][]numberedPacket
	for _, file := range r.files {
		out, err := fromOutside(ctx, append(command, file)...)
		Expect(err).NotTo(HaveOccurred())
		of := map[string][]numberedPacket{}
		for line := range strings.Lines(out) {
			fields := strings.Fields(line)
			if len(fields) != 3 {
				continue // the first line can be a part
			}
			number, err := strconv.Atoi(fields[1])
			if source, parseErr := netip.ParseAddr(fields[2]); err == nil && parseErr == nil {
				of[fields[0]] = append(of[fields[0]], numberedPacket{number, source})
			}
		}
		for _, packets := range of {
			slices.SortStableFunc(packets, func(a, b numberedPacket) int { return cmp.Compare(a.number, b.number) })
		}
		all = append(all, of)
	}
	return all
}

func (r *receivedSources) all(ctx context.Context) []map[string][]numberedPacket {
	GinkgoHelper()
	return r.read(ctx, "cat")
}

// latest returns the source of the latest packet of each pod.
func (r *receivedSources) latest(ctx context.Context) []map[string]netip.Addr {
	GinkgoHelper()
	var all []map[string]netip.Addr
	for _, of := range r.read(ctx, "tail", "-n", "1000") {
		last := map[string]netip.Addr{}
		for name, packets := range of {
			last[name] = packets[len(packets)-1].source
		}
		all = append(all, last)
	}
	return all
}
