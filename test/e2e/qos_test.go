// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/test/cluster"
)

// qosNamespace is of the pods that measure. The program netprobe (test/bench/netprobe) is in qosDirectory of the workers.
const (
	qosNamespace = "e2e-qos"
	qosDirectory = "/run/kiln-qos"
	qosPort      = 7000
	// qosMeasured is how long a rate is measured after the first 3 s, in which the burst passes.
	qosMeasured = 10 * time.Second
	qosSettled  = 3 * time.Second
	mega        = 1e6
	// qosFree is exceeded without a limit, so that the highest measured limit of 50 Mbit/s is what limits.
	qosFree = 60 * mega
)

// placeProbe brings netprobe to the workers.
func placeProbe(ctx context.Context) {
	GinkgoHelper()
	for _, node := range suite.Workers {
		file, err := os.Open(os.Getenv("NETPROBE"))
		Expect(err).NotTo(HaveOccurred(), "NETPROBE is the path of the program; `make qos` sets it")
		script := fmt.Sprintf("mkdir -p %[1]s && cat >%[1]s/new && chmod 755 %[1]s/new && mv %[1]s/new %[1]s/netprobe", qosDirectory)
		err = suite.Lab.Exec(ctx, node, machine.Command{Args: []string{"sh", "-c", script}, Stdin: file, Stderr: GinkgoWriter})
		Expect(err).NotTo(HaveOccurred())
		Expect(file.Close()).To(Succeed())
	}
}

// qosPod returns a pod that measures.
func qosPod(namespace, name string, worker int, annotations map[string]string) *corev1.Pod {
	pod := cluster.Server(namespace, name, suite.Workers[worker])
	pod.Annotations = annotations
	c := &pod.Spec.Containers[0]
	c.Command, c.Args = []string{qosDirectory + "/netprobe", "serve", strconv.Itoa(qosPort)}, nil
	if suite.Lab.KernelDatapath() { // system calls of User Mode Linux are slow
		c.Env = append(c.Env, corev1.EnvVar{Name: "NETPROBE_SEGMENTATION", Value: "1"})
	}
	c.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(qosPort)}}
	c.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}} // for its buffer
	c.VolumeMounts = []corev1.VolumeMount{{Name: "probe", MountPath: qosDirectory}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "probe", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: qosDirectory}}}}
	return pod
}

func runQoSPod(ctx context.Context, namespace, name string, worker int, annotations map[string]string) *corev1.Pod {
	GinkgoHelper()
	pod, err := suite.Cluster.Run(ctx, qosPod(namespace, name, worker, annotations))
	Expect(err).NotTo(HaveOccurred())
	return pod
}

// qosResult is the result of netprobe: bits per second after the first 3 s, and bits of each second.
type qosResult struct {
	Rate    float64   `json:"rate"`
	Seconds []float64 `json:"seconds"`
}

// between returns the mean of the seconds from one to before another.
func (a qosResult) between(from, to int) float64 {
	sum, n := 0.0, 0
	for second := from; second < min(to, len(a.Seconds)); second++ {
		sum, n = sum+a.Seconds[second], n+1
	}
	return sum / float64(max(n, 1))
}

// qosSend measures the traffic from a pod to an address of another: UDP at an offered rate in bit/s, or TCP if it is 0.
func qosSend(ctx context.Context, from *corev1.Pod, to netip.Addr, d time.Duration, offered float64) (qosResult, error) {
	args := []string{qosDirectory + "/netprobe", "steady-full", netip.AddrPortFrom(to, qosPort).String(), d.String()}
	if offered > 0 {
		args[1] = "steady"
		args = append(args, strconv.FormatFloat(offered, 'f', 0, 64))
	}
	out, err := suite.Cluster.ExecWithin(ctx, d+time.Minute, from, args...) // the server's answer waits behind the queue of a limit
	var r qosResult
	if err == nil {
		err = json.Unmarshal([]byte(out), &r)
	}
	return r, err
}

// leastTCP is the part of a rate that TCP reaches.
func leastTCP() float64 {
	if suite.Lab.KernelDatapath() {
		return 0.80
	}
	return 0.75
}

// expectRate checks the rate from one pod to all addresses of another, of UDP and TCP, and returns lines of a table.
func expectRate(ctx context.Context, what string, from, to *corev1.Pod, rate float64) []string {
	GinkgoHelper()
	var lines []string
	for _, address := range cluster.PodAddrs(to) {
		udp, err := qosSend(ctx, from, address, qosSettled+qosMeasured, 1.5*rate)
		Expect(err).NotTo(HaveOccurred())
		// A receiver reads up to about 1 Mbit at once after a packet was lost, which is much of what a low rate passes.
		tcp, err := qosSend(ctx, from, address, qosSettled+max(qosMeasured, time.Duration(30*mega/rate)*time.Second), 0)
		Expect(err).NotTo(HaveOccurred())
		family := map[bool]string{true: "IPv4", false: "IPv6"}[address.Is4()]
		line := fmt.Sprintf("| %s | %s | %g | %.2f | %.2f |", what, family, rate/mega, udp.Rate/mega, tcp.Rate/mega)
		AddReportEntry(line)
		lines = append(lines, line)
		Expect(udp.Rate/rate).To(BeNumerically("~", 1, 0.10), "UDP: %s: bits of each second: %v", line, udp.Seconds)
		Expect(tcp.Rate/rate).To(And(BeNumerically(">", leastTCP()), BeNumerically("<", 1.05)), "TCP: %s: bits of each second: %v", line, tcp.Seconds)
	}
	return lines
}

// ovsRows returns what Open vSwitch of the pod's node has about the pod's limits.
func ovsRows(ctx context.Context, pod *corev1.Pod) (string, error) {
	ovs := ovsOf(ctx, pod.Spec.NodeName)
	if ovs == nil {
		return "", fmt.Errorf("no Open vSwitch on %s", pod.Spec.NodeName)
	}
	byPod := fmt.Sprintf("external-ids:pod=%s/%s", pod.Namespace, pod.Name)
	var rows []string
	for _, query := range [][]string{ // the container has no shell
		{"--columns=other_config", "find", "queue", byPod},
		{"--columns=type,other_config", "find", "qos", byPod},
		{"--columns=ingress_policing_rate", "find", "interface", "external-ids:pod_name=" + pod.Name, "external-ids:pod_namespace=" + pod.Namespace},
	} {
		out, err := suite.Cluster.Exec(ctx, ovs, append([]string{"ovs-vsctl", "--timeout=5", "--bare"}, query...)...)
		if err != nil {
			return "", err
		}
		rows = append(rows, out)
	}
	return strings.Join(rows, "\n"), nil
}

// metersOf returns the rates in kbit/s of the rows of OVN that limit a pod, to the pod and from it; "" without one.
func metersOf(ctx context.Context, pod *corev1.Pod) ([2]string, error) {
	rows, err := suite.Cluster.NBList(ctx, "QoS", "match,bandwidth")
	if err != nil {
		return [2]string{}, err
	}
	var meters [2]string
	for i, field := range []string{"outport", "inport"} {
		for _, row := range rows {
			bandwidth, _ := row["bandwidth"].(map[string]any)
			if row["match"] == fmt.Sprintf("%s == %q", field, pod.Name+"."+pod.Namespace) {
				meters[i] = fmt.Sprint(bandwidth["rate"])
			}
		}
	}
	return meters, nil
}

// limitPod sets the rates of a running pod in Mbit/s, "" for none, and waits until its node has them.
func limitPod(ctx context.Context, pod *corev1.Pod, ingress, egress string) {
	GinkgoHelper()
	change := func(key, value string) {
		current := &corev1.Pod{}
		Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(pod), current)).To(Succeed())
		annotate(ctx, current, key, value)
	}
	change(kubeovnv1.AnnotationIngressRate.Key(), ingress)
	change(kubeovnv1.AnnotationEgressRate.Key(), egress)
	hasLimits(ctx, pod, ingress, egress)
}

// hasLimits waits until the rows of a pod have these rates in Mbit/s, "" for none.
func hasLimits(ctx context.Context, pod *corev1.Pod, ingress, egress string) {
	GinkgoHelper()
	in, _ := strconv.ParseFloat(ingress, 64)
	out, _ := strconv.ParseFloat(egress, 64)
	var wanted [2]string // meters
	policed := "0"
	if suite.Lab.KernelDatapath() {
		policed = fmt.Sprintf("%.0f", out*1000)
	} else {
		for i, rate := range []float64{in, out} {
			if rate > 0 {
				wanted[i] = fmt.Sprintf("%.0f", rate*1000)
			}
		}
		in = 0
	}
	Eventually(func(g Gomega) {
		rows, err := ovsRows(ctx, pod)
		g.Expect(err).NotTo(HaveOccurred())
		if in > 0 {
			g.Expect(rows).To(ContainSubstring(fmt.Sprintf("max-rate=%.0f ", in*mega)))
		} else {
			g.Expect(rows).NotTo(ContainSubstring("rate="))
		}
		g.Expect(strings.Fields(rows)).To(ContainElement(policed))
		g.Expect(metersOf(ctx, pod)).To(Equal(wanted))
	}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
}

// roundTrip is the time of a ping.
var roundTrip = regexp.MustCompile(`time=([0-9.]+) ms`)

// qosRTT returns the least time of five pings in milliseconds.
func qosRTT(ctx context.Context, from *corev1.Pod, to netip.Addr) (float64, error) {
	out, err := suite.Cluster.Exec(ctx, from, "ping", "-n", "-c", "5", "-i", "0.2", "-W", "5", to.String())
	if err != nil {
		return 0, err
	}
	least := 1e9
	for _, match := range roundTrip.FindAllStringSubmatch(out, -1) {
		ms, _ := strconv.ParseFloat(match[1], 64)
		least = min(least, ms)
	}
	return least, nil
}

// killOn kills the main process of the pod of a component on a node, and waits until it runs again.
func killOn(ctx context.Context, component, node string) {
	GinkgoHelper()
	find := func() *corev1.Pod {
		pods, err := suite.Cluster.PodsOf(ctx, component)
		Expect(err).NotTo(HaveOccurred())
		for i := range pods {
			if pods[i].Spec.NodeName == node {
				return &pods[i]
			}
		}
		return nil
	}
	pod := find()
	Expect(pod).NotTo(BeNil())
	before := restarts(pod)
	Expect(suite.kill(ctx, pod)).To(Succeed())
	Eventually(func() bool {
		pod := find()
		return pod != nil && cluster.Ready(pod) && restarts(pod) > before
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeTrue())
}

var _ = Describe("limits of pods", Ordered, ContinueOnFailure, Label("qos"), func() {
	var limited, near, far *corev1.Pod
	report := &strings.Builder{}

	BeforeAll(func(ctx SpecContext) {
		placeProbe(ctx)
		makeNamespace(ctx, qosNamespace)
		limited, near, far = runQoSPod(ctx, qosNamespace, "limited", 0, nil), runQoSPod(ctx, qosNamespace, "near", 0, nil), runQoSPod(ctx, qosNamespace, "far", 1, nil)
		for _, peer := range []*corev1.Pod{near, far} {
			free, err := qosSend(ctx, peer, cluster.PodAddrs(limited)[0], 5*time.Second, 0)
			Expect(err).NotTo(HaveOccurred())
			Expect(free.Rate).To(BeNumerically(">", qosFree), "control: without a limit")
		}
	}, NodeTimeout(5*time.Minute))
	AfterAll(func(ctx SpecContext) {
		if path := os.Getenv("QOS_REPORT"); path != "" {
			heading := "| direction, peer | family | limit in Mbit/s | UDP | TCP |\n|---|---|---|---|---|\n"
			Expect(os.WriteFile(path, []byte(heading+report.String()), 0o644)).To(Succeed())
		}
		deleteNamespace(ctx, qosNamespace)
	}, NodeTimeout(5*time.Minute))

	for _, rate := range []string{"1", "10", "50"} {
		It("have their rate at "+rate+" Mbit/s in both directions, within the node and to another", func(ctx SpecContext) {
			value, _ := strconv.ParseFloat(rate, 64)
			for _, peer := range []*corev1.Pod{near, far} {
				limitPod(ctx, limited, rate, "")
				for _, line := range expectRate(ctx, "to the pod, "+peer.Name, peer, limited, value*mega) {
					fmt.Fprintln(report, line)
				}
				limitPod(ctx, limited, "", rate)
				for _, line := range expectRate(ctx, "from the pod, "+peer.Name, limited, peer, value*mega) {
					fmt.Fprintln(report, line)
				}
			}
		}, SpecTimeout(15*time.Minute))
	}

	It("change on a running connection, which continues, and end", func(ctx SpecContext) {
		limitPod(ctx, limited, "10", "")
		var r qosResult
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			r, err = qosSend(ctx, far, cluster.PodAddrs(limited)[0], 35*time.Second, 0)
		}()
		Expect(pause(ctx, 12*time.Second)).To(Succeed())
		limitPod(ctx, limited, "2", "")
		<-done // qosSend ends with ctx. This is the rest of the measurement, and no wait for the product
		Expect(err).NotTo(HaveOccurred(), "the connection")
		Expect(r.between(3, 11)/(10*mega)).To(BeNumerically("~", 0.95, 0.20), "before the change: %v", r.Seconds)
		Expect(r.between(23, 33)/(2*mega)).To(BeNumerically("~", 0.95, 0.25), "after the change: %v", r.Seconds)
		limitPod(ctx, limited, "", "")
		free, err := qosSend(ctx, far, cluster.PodAddrs(limited)[0], 5*time.Second, 0)
		Expect(err).NotTo(HaveOccurred())
		Expect(free.Rate).To(BeNumerically(">", qosFree), "after the end of the limit")
	}, SpecTimeout(4*time.Minute))

	It("pass the packets of a pod at nine tenths of its rate as without a limit", func(ctx SpecContext) {
		for name, ends := range map[string][2]*corev1.Pod{"to the pod": {far, limited}, "from the pod": {limited, far}} {
			var rates []float64
			for _, rate := range []string{"", "10"} {
				limitPod(ctx, limited, rate, rate)
				r, err := qosSend(ctx, ends[0], cluster.PodAddrs(ends[1])[0], qosSettled+qosMeasured, 9*mega)
				Expect(err).NotTo(HaveOccurred())
				rates = append(rates, r.Rate)
			}
			AddReportEntry(name, fmt.Sprintf("with a limit %.3f of the rate without", rates[1]/rates[0]))
			Expect(rates[1]/rates[0]).To(BeNumerically(">", 0.98), "%s: %v", name, rates)
		}
		limitPod(ctx, limited, "", "")
	}, SpecTimeout(4*time.Minute))

	It("of a flooded pod do not disturb its neighbours", func(ctx SpecContext) {
		limitPod(ctx, limited, "1", "")
		flood := make(chan error, 1)
		go func() {
			_, err := qosSend(ctx, far, cluster.PodAddrs(limited)[0], qosSettled+qosMeasured+5*time.Second, 30*mega)
			flood <- err
		}()
		Expect(pause(ctx, 2*time.Second)).To(Succeed())
		r, err := qosSend(ctx, far, cluster.PodAddrs(near)[0], qosSettled+qosMeasured, 5*mega)
		Expect(err).NotTo(HaveOccurred())
		limitPod(ctx, limited, "", "") // the server's answer would wait for minutes behind the packets that the kernel's datapath queues
		Expect(<-flood).To(Succeed())
		AddReportEntry("5 Mbit/s to a neighbour", fmt.Sprintf("%.3f arrive", r.Rate/(5*mega)))
		Expect(r.Rate/(5*mega)).To(BeNumerically(">=", 0.95), "bits of each second: %v", r.Seconds)
	}, SpecTimeout(4*time.Minute))

	It("of kubernetes.io/*-bandwidth apply from the start", func(ctx SpecContext) {
		pod := runQoSPod(ctx, qosNamespace, "alias", 0, map[string]string{kubeovnv1.KeyIngressBandwidth: "10M", kubeovnv1.KeyEgressBandwidth: "10M"})
		hasLimits(ctx, pod, "10", "10")
		expectRate(ctx, "to the pod, by kubernetes.io/ingress-bandwidth", far, pod, 10*mega)
		expectRate(ctx, "from the pod, by kubernetes.io/egress-bandwidth", pod, far, 10*mega)
		removePods(ctx, qosNamespace, "alias")
		rows, err := ovsRows(ctx, pod)
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.TrimSpace(rows)).To(BeEmpty(), "the rows of the deleted pod")
		Expect(metersOf(ctx, pod)).To(Equal([2]string{}))
	}, SpecTimeout(6*time.Minute))

	It("stay when the agent and Open vSwitch restart", func(ctx SpecContext) {
		limitPod(ctx, limited, "10", "10")
		killOn(ctx, "kube-ovn-cni", suite.Workers[0])
		hasLimits(ctx, limited, "10", "10")
		expectRate(ctx, "to the pod, after a restart of the agent", far, limited, 10*mega)
		killOn(ctx, "ovs-ovn", suite.Workers[0])
		Eventually(func() string { return pingThrough(ctx, far, limited, time.Second) }).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Equal("0"))
		hasLimits(ctx, limited, "10", "10")
		expectRate(ctx, "to the pod, after a restart of Open vSwitch", far, limited, 10*mega)
		expectRate(ctx, "from the pod, after a restart of Open vSwitch", limited, far, 10*mega)
	}, SpecTimeout(10*time.Minute))

	It("delay packets on the kernel's datapath, and an event says so on the other", func(ctx SpecContext) {
		pod := runQoSPod(ctx, qosNamespace, "slow", 0, map[string]string{kubeovnv1.AnnotationLatency.Key(): "100"})
		if !suite.Lab.KernelDatapath() {
			Eventually(warnings).WithContext(ctx).WithArguments(qosNamespace, "slow").WithTimeout(30 * time.Second).Should(ContainElement(ContainSubstring("userspace datapath")))
			return
		}
		for _, address := range cluster.PodAddrs(pod) {
			Expect(qosRTT(ctx, far, address)).To(BeNumerically("~", 120, 30))
		}
		annotate(ctx, pod, kubeovnv1.AnnotationLatency.Key(), "300")
		Eventually(qosRTT).WithContext(ctx).WithArguments(far, cluster.PodAddrs(pod)[0]).WithTimeout(30 * time.Second).Should(BeNumerically("~", 320, 40))
		annotate(ctx, pod, kubeovnv1.AnnotationIngressRate.Key(), "10")
		Eventually(qosRTT).WithContext(ctx).WithArguments(far, cluster.PodAddrs(pod)[0]).WithTimeout(30*time.Second).Should(BeNumerically("<", 80), "the rate takes precedence")
		Eventually(warnings).WithContext(ctx).WithArguments(qosNamespace, "slow").WithTimeout(30 * time.Second).Should(ContainElement(ContainSubstring("takes precedence")))
	}, SpecTimeout(4*time.Minute))

	Describe("in subnets of their own", Ordered, func() {
		tenants := []string{"e2e-qos-a", "e2e-qos-b"}
		pods := map[string]*corev1.Pod{}

		BeforeAll(func(ctx SpecContext) {
			for i, name := range tenants {
				makeNamespace(ctx, name)
				cidr := fmt.Sprintf("10.7%d.0.0/24,fd00:10:7%d::/112", i, i)
				Expect(suite.Objects.Create(ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, Namespaces: []string{name}}})).To(Succeed())
				Eventually(func(g Gomega) { g.Expect(inForce(ctx, name)).To(BeTrue()) }).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
				pods[name] = runQoSPod(ctx, name, "limited", 0, nil)
			}
		}, NodeTimeout(4*time.Minute))
		AfterAll(func(ctx SpecContext) {
			for _, name := range tenants {
				deleteNamespace(ctx, name)
				Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}}))).To(Succeed())
			}
		}, NodeTimeout(4*time.Minute))

		It("equal limits of two tenants are apart", func(ctx SpecContext) {
			results := make([]qosResult, len(tenants))
			var all sync.WaitGroup
			for _, name := range tenants {
				limitPod(ctx, pods[name], "", "10")
			}
			for i, name := range tenants {
				all.Go(func() {
					defer GinkgoRecover()
					var err error
					results[i], err = qosSend(ctx, pods[name], cluster.PodAddrs(far)[0], qosSettled+qosMeasured, 15*mega)
					Expect(err).NotTo(HaveOccurred())
				})
			}
			all.Wait()
			for i, r := range results {
				Expect(r.Rate/(10*mega)).To(BeNumerically("~", 1, 0.10), "%s: %v", tenants[i], r.Seconds)
			}
			for _, name := range tenants {
				limitPod(ctx, pods[name], "", "")
			}
		}, SpecTimeout(3*time.Minute))

		It("an administrator's limit takes precedence over a higher annotation", func(ctx SpecContext) {
			pod := pods[tenants[0]]
			limitPod(ctx, pod, "100", "5")
			changeSubnet(ctx, tenants[0], func(s *kubeovnv1.SubnetSpec) {
				s.PodLimits = &kubeovnv1.PodLimits{IngressRate: "10M", EgressRate: "10M"}
			})
			hasLimits(ctx, pod, "10", "5")
			expectRate(ctx, "to the pod, limited by the Subnet", far, pod, 10*mega)
			Eventually(warnings).WithContext(ctx).WithArguments(tenants[0], "limited").WithTimeout(30 * time.Second).Should(ContainElement(ContainSubstring("is lowered to 10Mbit/s")))
			limit := runQoSPod(ctx, tenants[0], "unlimited", 0, nil)
			hasLimits(ctx, limit, "10", "10")
			changeSubnet(ctx, tenants[0], func(s *kubeovnv1.SubnetSpec) { s.PodLimits = nil })
			hasLimits(ctx, limit, "", "")
			hasLimits(ctx, pod, "100", "5")
		}, SpecTimeout(5*time.Minute))
	})
})
