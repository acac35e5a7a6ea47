// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	bgpNamespace = "e2e-bgp"
	// bgpReady is the readiness gate of the pods.
	bgpReady = corev1.PodConditionType("kiln.test/ready")
)

// Prefixes of the specs: the Subnet, and external addresses of the Services spread and local.
var (
	bgpCIDRs  = []netip.Prefix{netip.MustParsePrefix("10.17.0.0/24"), netip.MustParsePrefix("fd00:10:17::/120")}
	bgpSpread = []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:cafe::10")}
	bgpLocal  = []netip.Addr{netip.MustParseAddr("203.0.113.20"), netip.MustParseAddr("2001:db8:cafe::20")}
)

// bgpPool is a pool whose addresses are announced without an annotation.
var bgpPool = v1alpha1.LoadBalancerPool{
	Class: "example.com/bgp", Addresses: []string{"203.0.113.40", "2001:db8:cafe::40"}, Namespaces: []string{bgpNamespace}, Announcement: v1alpha1.AnnounceAlways,
}

// bgpLab holds the routers, and one pod of each worker.
type bgpLab struct {
	frr  *frr
	bird *bgpDaemon
	pods []*corev1.Pod
	// results are the rows of the report.
	results []timing
}

// The routers and speakers: FRR on the lab's router, which is a neighbour of the nodes, and BIRD on the outside host.
var _ = Describe("kube-ovn-speaker", Label("bgp", disruptive, mayRestart), Ordered, ContinueOnFailure, func() {
	b := &bgpLab{}
	BeforeAll(func(ctx SpecContext) {
		b.frr = startFRR(ctx)
		b.bird = startBIRD(bgpPassword)
		prepareBGP(ctx)
		for i, node := range suite.Workers {
			b.pods = append(b.pods, runReady(ctx, bgpPod(fmt.Sprintf("web-%d", i), node)))
		}
		bgpService(ctx, "spread", bgpSpread, corev1.ServiceExternalTrafficPolicyCluster)
		bgpService(ctx, "local", bgpLocal, corev1.ServiceExternalTrafficPolicyLocal)
		applySpeaker(ctx, neighbours()...)
		b.frr.established(ctx)
	}, NodeTimeout(8*time.Minute))
	AfterAll(func() {
		text := bgpReport(b.results)
		GinkgoWriter.Println(text)
		if path := os.Getenv("BGP_REPORT"); path != "" {
			Expect(os.WriteFile(path, []byte(text), 0o644)).To(Succeed())
		}
	})

	It("announces Subnets, pods and Services from the nodes that serve them", func(ctx SpecContext) {
		for _, p := range bgpCIDRs {
			b.frr.reaches(ctx, p, 0, 1)
		}
		for i, pod := range b.pods {
			announcePod(ctx, pod, string(kubeovnv1.AnnounceLocal))
			for _, a := range cluster.PodAddrs(pod) {
				b.frr.reaches(ctx, host(a), i)
			}
			announcePod(ctx, pod, string(kubeovnv1.AnnounceCluster))
			for _, a := range cluster.PodAddrs(pod) {
				b.frr.reaches(ctx, host(a), 0, 1)
			}
			announcePod(ctx, pod, string(kubeovnv1.AnnounceNone))
			for _, a := range cluster.PodAddrs(pod) {
				b.frr.reaches(ctx, host(a))
			}
		}
		for _, a := range slices.Concat(bgpSpread, bgpLocal) {
			b.frr.reaches(ctx, host(a), 0, 1)
		}
		setReady(ctx, b.pods[1], false)
		for i := range bgpSpread {
			b.frr.reaches(ctx, host(bgpLocal[i]), 0)
			b.frr.reaches(ctx, host(bgpSpread[i]), 0, 1)
		}
		setReady(ctx, b.pods[1], true)
		for _, a := range bgpLocal {
			b.frr.reaches(ctx, host(a), 0, 1)
		}
	}, SpecTimeout(3*time.Minute))

	It("lets hosts behind the router reach pods and Services", func(ctx SpecContext) {
		for i, pod := range b.pods {
			for _, a := range cluster.PodAddrs(pod) {
				Expect(answerOf(ctx, fromOutside, netip.AddrPortFrom(a, cluster.HTTPPort))).To(Equal(b.pods[i].Name), a.String())
			}
		}
		service, err := suite.Cluster.CoreV1().Services(bgpNamespace).Get(ctx, "spread", metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		for i, like := range bgpSpread {
			clients := suite.Lab.OutsideAddresses()[i].String()
			for _, to := range []netip.AddrPort{frontOf(service, like), netip.AddrPortFrom(like, 80), netip.AddrPortFrom(bgpLocal[i], 80)} {
				servedBy(ctx, fromOutside, to, b.pods[0].Name, b.pods[1].Name) // by two nodes: a node with a local policy uses its own endpoint
			}
			Expect(fetchFrom(ctx, fromOutside, netip.AddrPortFrom(bgpLocal[i], 80), "/clientip")).To(ContainSubstring(clients), "the address of the client")
		}
		setReady(ctx, b.pods[1], false)
		for i := range bgpSpread {
			b.frr.reaches(ctx, host(bgpLocal[i]), 0)
			servedBy(ctx, fromOutside, netip.AddrPortFrom(bgpLocal[i], 80), b.pods[0].Name)
			servedBy(ctx, fromOutside, netip.AddrPortFrom(bgpSpread[i], 80), b.pods[0].Name) // also by the node without an endpoint
		}
		setReady(ctx, b.pods[1], true)
	}, SpecTimeout(5*time.Minute))

	It("announces addresses of a pool while a Service has them", func(ctx SpecContext) {
		s := bgpServiceOf("pool", corev1.ServiceExternalTrafficPolicyCluster)
		s.Annotations, s.Spec.Type, s.Spec.LoadBalancerClass = nil, corev1.ServiceTypeLoadBalancer, new(bgpPool.Class)
		createService(ctx, s)
		for _, text := range bgpPool.Addresses {
			a := netip.MustParseAddr(text)
			b.frr.reaches(ctx, host(a), 0, 1)
			servedBy(ctx, fromOutside, netip.AddrPortFrom(a, 80), b.pods[0].Name, b.pods[1].Name)
		}
		_, err := suite.Cluster.CoreV1().Services(bgpNamespace).Patch(ctx, s.Name, types.MergePatchType,
			[]byte(`{"spec":{"type":"ClusterIP","loadBalancerClass":null}}`), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
		for _, text := range bgpPool.Addresses {
			b.frr.reaches(ctx, host(netip.MustParseAddr(text)))
		}
	}, SpecTimeout(3*time.Minute))

	It("withdraws everything from a node whose ovs-vswitchd does not answer", func(ctx SpecContext) {
		continued := stopProcess(ctx, suite.Workers[0], "pidof ovs-vswitchd")
		Eventually(b.frr.hops).WithArguments(bgpCIDRs[0]).WithContext(ctx).WithTimeout(time.Minute).Should(Equal(hopsOf(bgpCIDRs[0], 1)))
		for _, p := range slices.Concat(bgpCIDRs[1:], []netip.Prefix{host(bgpSpread[0]), host(bgpLocal[1])}) {
			b.frr.reaches(ctx, p, 1)
		}
		continued(ctx)
		for _, p := range bgpCIDRs {
			b.frr.reaches(ctx, p, 0, 1)
		}
	}, SpecTimeout(4*time.Minute))

	It("has sessions with a remote router, one passive with a password, whose changes end no other session", func(ctx SpecContext) {
		drops := b.frr.established(ctx)
		applySpeaker(ctx, slices.Concat(neighbours(), remotes())...)
		Eventually(b.bird.establishedSessions).WithContext(ctx).WithTimeout(time.Minute).Should(Equal(4))
		for _, p := range bgpCIDRs {
			Eventually(b.bird.birdHops).WithContext(ctx).WithArguments(p).WithTimeout(20*time.Second).Should(Equal(hopsOf(p, 0, 1)), p.String())
		}
		after := b.frr.established(ctx)
		for address, n := range after {
			Expect(n-drops[address]).To(Equal(1), "ends of the session of %s, whose pod was replaced", address)
		}

		By("changing the password at the router")
		Expect(os.WriteFile("/proc/"+b.bird.pid+"/root/run/bgp.conf", []byte(birdConfig("e2e-second")), 0o600)).To(Succeed())
		_, err := b.bird.run(ctx, "birdc", "configure")
		Expect(err).NotTo(HaveOccurred())
		Eventually(b.bird.establishedSessions).WithContext(ctx).WithTimeout(time.Minute).Should(Equal(2))
		Consistently(b.bird.establishedSessions).WithContext(ctx).WithTimeout(5*time.Second).Should(Equal(2), "with different passwords")

		By("changing the Secret")
		setPassword(ctx, "e2e-second")
		Eventually(b.bird.establishedSessions).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Equal(4))
		Expect(b.frr.established(ctx)).To(Equal(after), "ends of the sessions with other routers")
	}, SpecTimeout(8*time.Minute))

	b.egress()
	b.times()
})

// prepareBGP makes the namespace with its Subnet, the Secret, and the labels of the nodes.
func prepareBGP(ctx context.Context) {
	GinkgoHelper()
	makeNamespace(ctx, bgpNamespace)
	subnet := &kubeovnv1.Subnet{
		ObjectMeta: metav1.ObjectMeta{Name: bgpNamespace, Annotations: map[string]string{kubeovnv1.AnnotationBGP.Key(): string(kubeovnv1.AnnounceCluster)}},
		Spec:       kubeovnv1.SubnetSpec{CIDRBlock: bgpCIDRs[0].String() + "," + bgpCIDRs[1].String(), Namespaces: []string{bgpNamespace}},
	}
	Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
	secrets := suite.Cluster.CoreV1().Secrets(cluster.Namespace)
	_, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bgpNamespace}, StringData: map[string]string{"password": bgpPassword}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	setLabels := func(ctx context.Context, value string) {
		patch := []byte(fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, v1alpha1.SpeakerNodeLabel, value))
		for _, node := range suite.Workers {
			_, err := suite.Cluster.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
			Expect(err).NotTo(HaveOccurred())
		}
	}
	DeferCleanup(func(ctx SpecContext) {
		applyAndSettle(ctx, asInstalled())
		setLabels(ctx, "null")
		Expect(secrets.Delete(ctx, bgpNamespace, metav1.DeleteOptions{})).To(Succeed())
		removePods(ctx, bgpNamespace)
		deleteObjects(ctx, subnet)
		deleteNamespace(ctx, bgpNamespace)
	}, NodeTimeout(6*time.Minute))
	setLabels(ctx, `"true"`)
	Eventually(inForce).WithContext(ctx).WithArguments(bgpNamespace).WithTimeout(30 * time.Second).Should(BeTrue())
}

// applySpeaker applies the OVNCluster with these peers, and waits until the pods of the speaker are replaced, if they are.
func applySpeaker(ctx context.Context, peers ...v1alpha1.SpeakerPeer) {
	GinkgoHelper()
	spec := asInstalled()
	spec.Speaker = &v1alpha1.Speaker{ASN: clusterASN, Namespaces: []string{bgpNamespace}, Peers: peers}
	spec.Speaker.Resources = spec.Agent.Resources
	spec.Services.LoadBalancerPools = []v1alpha1.LoadBalancerPool{bgpPool}
	applyAndSettle(ctx, spec)
}

// neighbours returns the sessions with FRR.
func neighbours(change ...func(*v1alpha1.SpeakerPeer)) []v1alpha1.SpeakerPeer {
	var peers []v1alpha1.SpeakerPeer
	for _, a := range topology.Addrs(topology.Management.Router()) {
		p := bgpPeer(a, frrASN)
		p.GracefulRestart = &v1alpha1.SpeakerGracefulRestart{}
		for _, c := range change {
			c(&p)
		}
		peers = append(peers, p)
	}
	return peers
}

// remotes returns the sessions with BIRD: eBGP by IPv4 and iBGP by IPv6, both for both families.
func remotes() []v1alpha1.SpeakerPeer {
	outside := suite.Lab.OutsideAddresses()
	e, i := bgpPeer(outside[0], birdASN), bgpPeer(outside[1], clusterASN)
	e.MultihopTTL, e.Connection, e.Password = 3, v1alpha1.ConnectionPassive, &v1alpha1.SecretKey{Name: bgpNamespace}
	i.LocalPreference = new(int64(200))
	for _, p := range []*v1alpha1.SpeakerPeer{&e, &i} {
		p.Families = []v1alpha1.RouteFamily{v1alpha1.RoutesIPv4, v1alpha1.RoutesIPv6}
	}
	return []v1alpha1.SpeakerPeer{e, i}
}

func bgpPeer(address netip.Addr, asn int64) v1alpha1.SpeakerPeer {
	return v1alpha1.SpeakerPeer{
		Address: address.String(), ASN: asn, HoldTime: &metav1.Duration{Duration: 9 * time.Second}, ConnectRetry: &metav1.Duration{Duration: time.Second},
	}
}

// setPassword changes the Secret. The kubelet updates the files of a pod when the pod changes.
func setPassword(ctx context.Context, password string) {
	GinkgoHelper()
	patch := []byte(fmt.Sprintf(`{"stringData":{"password":%q}}`, password))
	_, err := suite.Cluster.CoreV1().Secrets(cluster.Namespace).Patch(ctx, bgpNamespace, types.MergePatchType, patch, metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	pods, err := suite.Cluster.PodsOf(ctx, render.SpeakerName)
	Expect(err).NotTo(HaveOccurred())
	for i := range pods {
		patch := []byte(fmt.Sprintf(`{"metadata":{"annotations":{"kiln.test/password":%q}}}`, password))
		_, err := suite.Cluster.CoreV1().Pods(cluster.Namespace).Patch(ctx, pods[i].Name, types.MergePatchType, patch, metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
}

// bgpPod returns a server of both Services with a readiness gate.
func bgpPod(name, node string) *corev1.Pod {
	pod := cluster.Server(bgpNamespace, name, node)
	pod.Labels = map[string]string{"app": "web"}
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: bgpReady}}
	args := pod.Spec.Containers[0].Args
	args[len(args)-1] = fmt.Sprintf("--udp-port=%d", udpPort)
	return pod
}

// runReady runs a pod and opens its readiness gate.
func runReady(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	GinkgoHelper()
	made, err := suite.Cluster.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	setReady(ctx, made, true)
	ready, err := suite.Cluster.WaitPod(ctx, pod.Namespace, pod.Name, cluster.Ready)
	Expect(err).NotTo(HaveOccurred())
	return ready
}

// setReady opens or closes the readiness gate of a pod.
func setReady(ctx context.Context, pod *corev1.Pod, ready bool) {
	GinkgoHelper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	patch := []byte(fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, bgpReady, status))
	_, err := suite.Cluster.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	Expect(err).NotTo(HaveOccurred())
}

// announcePod sets the announcement of a pod.
func announcePod(ctx context.Context, pod *corev1.Pod, value string) {
	GinkgoHelper()
	setAnnouncement(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}, value)
}

// bgpService creates an announced Service of the pods with external addresses.
func bgpService(ctx context.Context, name string, external []netip.Addr, policy corev1.ServiceExternalTrafficPolicy) {
	GinkgoHelper()
	s := bgpServiceOf(name, policy)
	for _, a := range external {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, a.String())
	}
	createService(ctx, s)
}

// bgpServiceOf returns an announced Service of the pods.
func bgpServiceOf(name string, policy corev1.ServiceExternalTrafficPolicy) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: bgpNamespace, Name: name, Annotations: map[string]string{kubeovnv1.AnnotationBGP.Key(): string(kubeovnv1.AnnounceCluster)}},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack), Selector: map[string]string{"app": "web"}, ExternalTrafficPolicy: policy,
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)},
				{Name: "udp", Port: 80, TargetPort: intstr.FromInt32(udpPort), Protocol: corev1.ProtocolUDP},
			},
		},
	}
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
