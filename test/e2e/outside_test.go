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
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/test/cluster"
)

// outside is the label of the specs of `make outside`.
const outside = "outside"

// externalNet has two VPCs with the same internal addresses, whose routers have ports in two VLANs of the lab.
type externalNet struct {
	provider      *kubeovnv1.ProviderNetwork
	first, second topology.VLAN
	// here and there are pods of VPC amber on two nodes. twin is a pod of VPC brass with the addresses of here.
	here, there, twin *corev1.Pod
}

const amber, brass = "amber", "brass"

// newExternalNet creates the networks, the VPCs and the pods, and deletes them at the end.
func newExternalNet(ctx context.Context) *externalNet {
	GinkgoHelper()
	n := &externalNet{
		first: topology.VLANs[1], second: topology.VLANs[2],
		provider: &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: underlayProvider}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth2"}},
	}
	connectVLANs(ctx, n.provider, n.first, n.second)
	for _, name := range []string{amber, brass} {
		vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VpcSpec{
			Namespaces: []string{name}, DefaultSubnet: name + "-net", ExtraExternalSubnets: []string{n.first.Name},
		}}
		subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name + "-net"}, Spec: kubeovnv1.SubnetSpec{
			Vpc: name, CIDRBlock: "10.61.0.0/24,fd00:10:61::/112", Namespaces: []string{name},
		}}
		DeferCleanup(func(ctx SpecContext) {
			deleteNamespace(ctx, name)
			deleteObjects(ctx, subnet)
			deleteObjects(ctx, vpc)
		}, NodeTimeout(4*time.Minute))
		Expect(suite.Objects.Create(ctx, vpc)).To(Succeed())
		Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
		makeNamespace(ctx, name)
		expectExternal(ctx, name, metav1.ConditionTrue, n.first.Name)
	}
	run := func(namespace, name string, worker int, v4, v6 string) *corev1.Pod {
		GinkgoHelper()
		pod := sctpPod(name, worker)
		pod.Namespace, pod.Annotations = namespace, map[string]string{keyAddress: v4 + "," + v6}
		args := pod.Spec.Containers[0].Args
		args[len(args)-1] = fmt.Sprintf("--udp-port=%d", udpPort)
		pod, err := suite.Cluster.Run(ctx, pod)
		Expect(err).NotTo(HaveOccurred())
		return pod
	}
	n.here = run(amber, "here", 0, "10.61.0.10", "fd00:10:61::10")
	n.there = run(amber, "there", 1, "10.61.0.11", "fd00:10:61::11")
	n.twin = run(brass, "twin", 1, "10.61.0.10", "fd00:10:61::10")
	return n
}

// expectExternal waits for the status of the condition ExternalReady, with these words.
func expectExternal(ctx context.Context, vpc string, status metav1.ConditionStatus, words ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		v := &kubeovnv1.Vpc{}
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: vpc}, v)).To(Succeed())
		for _, word := range words {
			g.Expect(v.Status.Conditions).To(ContainElement(And(HaveField("Type", kubeovnv1.ConditionExternalReady), HaveField("Status", status),
				HaveField("Message", ContainSubstring(word)))))
		}
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
}

// applied creates objects, waits until they are ready, and deletes them when the spec ends.
func applied(ctx context.Context, objects ...client.Object) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) {
		backwards := slices.Clone(objects)
		slices.Reverse(backwards)
		deleteObjects(ctx, backwards...)
	}, NodeTimeout(3*time.Minute))
	for _, o := range objects {
		Expect(suite.Objects.Create(ctx, o)).To(Succeed())
	}
	for _, o := range objects {
		expectApplied(ctx, o)
	}
}

// expectApplied waits until an object is ready with its present spec.
func expectApplied(ctx context.Context, o client.Object) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
		g.Expect(kubeovnv1.ConditionsOf(o)).To(ContainElement(And(HaveField("Type", kubeovnv1.ConditionReady), HaveField("Status", metav1.ConditionTrue),
			HaveField("ObservedGeneration", o.GetGeneration()))), "%T %s", o, o.GetName())
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(100 * time.Millisecond).Should(Succeed())
}

// eipAt is an OvnEip with the addresses of a VLAN with this host part.
func eipAt(v topology.VLAN, place byte) *kubeovnv1.OvnEip {
	addresses := topology.Addrs(v.At(place))
	return &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", v.Name, place)}, Spec: kubeovnv1.OvnEipSpec{
		ExternalSubnet: v.Name, V4IP: addresses[0].String(), V6IP: addresses[1].String(),
	}}
}

func addressesOfEip(eip *kubeovnv1.OvnEip) []netip.Addr {
	return ipfamily.ValidAddrs(eip.Spec.V4IP, eip.Spec.V6IP)
}

func fipOf(eip *kubeovnv1.OvnEip, pod *corev1.Pod) *kubeovnv1.OvnFip {
	return &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: eip.Name}, Spec: kubeovnv1.OvnFipSpec{OvnEip: eip.Name, IPName: pod.Name + "." + pod.Namespace}}
}

func snatOf(eip *kubeovnv1.OvnEip, name string, spec kubeovnv1.OvnSnatRuleSpec) *kubeovnv1.OvnSnatRule {
	spec.OvnEip = eip.Name
	return &kubeovnv1.OvnSnatRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

func dnatOf(eip *kubeovnv1.OvnEip, name, protocol string, external, internal int, pod *corev1.Pod) *kubeovnv1.OvnDnatRule {
	return &kubeovnv1.OvnDnatRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.OvnDnatRuleSpec{
		OvnEip: eip.Name, IPName: pod.Name + "." + pod.Namespace, Protocol: protocol, ExternalPort: fmt.Sprint(external), InternalPort: fmt.Sprint(internal),
	}}
}

// expectSource waits until an outside host sees the connections of a pod with these addresses, one per family.
func expectSource(ctx context.Context, pod *corev1.Pod, v topology.VLAN, want []netip.Addr) {
	GinkgoHelper()
	for _, a := range want {
		Eventually(clientSeen).WithContext(ctx).WithArguments(pod, inFamily(v.Outside(), a)).WithTimeout(30*time.Second).Should(Equal(a), "%s at %s", pod.Name, v.HostName())
	}
}

// neighbourTime bounds the time in which a host uses the former MAC address of an IPv6 address: Linux takes a confirmed neighbour for reachable for up to 45 s
// (RFC 4861, 6.3.2: 1.5 times 30 s), and then solicits it for 8 s. OVN announces IPv4 addresses only.
const neighbourTime = time.Minute

// expectServer waits until a host reaches a pod at the addresses.
func expectServer(ctx context.Context, from origin, at []netip.Addr, port uint16, want string) {
	GinkgoHelper()
	for _, a := range at {
		Eventually(fetchFrom).WithContext(ctx).WithArguments(from, netip.AddrPortFrom(a, port), "/hostname").WithTimeout(neighbourTime).Should(Equal(want), "%s", a)
	}
}

// answersTo returns the MAC addresses of the answers that a host gets to one ARP request or neighbour solicitation. It sends the request by ping, after it
// has removed its neighbour.
const answersTo = `timeout 4 tcpdump -n -l -e -i eth0 "$2" >/tmp/answers 2>/dev/null & sleep 1
ip neighbour del "$1" dev eth0 2>/dev/null; ping -n -c 1 -W 1 "$1" >/dev/null; wait; cat /tmp/answers`

// expectOneAnswer expects that exactly one node answers for an address, and returns the MAC address.
func expectOneAnswer(ctx context.Context, v topology.VLAN, address netip.Addr) (mac string) {
	GinkgoHelper()
	filter, mark := fmt.Sprintf("arp and src host %s", address), "Reply"
	if address.Is6() {
		filter, mark = "icmp6 and ip6[40] == 136", "tgt is "+address.String()
	}
	out := exec(ctx, v.HostName(), "sh", "-c", answersTo, "answers", address.String(), filter)
	var answers []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, mark) {
			answers = append(answers, line)
		}
	}
	Expect(answers).To(HaveLen(1), "answers for %s", address)
	return strings.Fields(answers[0])[1] // time, source > destination
}

// macOfEip returns the MAC address of an OvnEip, with which the node of a pod answers.
func macOfEip(ctx context.Context, eip *kubeovnv1.OvnEip) string {
	Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(eip), eip)).To(Succeed())
	return eip.Status.MACAddress
}

var _ = Describe("addresses outside", Label(outside), Ordered, ContinueOnFailure, func() {
	var n *externalNet

	BeforeAll(func(ctx SpecContext) { n = newExternalNet(ctx) }, NodeTimeout(8*time.Minute))

	It("are sources of a subnet, of addresses and of a pod, also in VPCs with the same internal addresses", func(ctx SpecContext) {
		all, some, one, other := eipAt(n.first, 130), eipAt(n.first, 131), eipAt(n.first, 132), eipAt(n.first, 133)
		applied(ctx, all, some, one, other,
			snatOf(all, "all", kubeovnv1.OvnSnatRuleSpec{VpcSubnet: amber + "-net"}),
			snatOf(other, "other", kubeovnv1.OvnSnatRuleSpec{VpcSubnet: brass + "-net"}))
		expectSource(ctx, n.here, n.first, addressesOfEip(all))
		expectSource(ctx, n.there, n.first, addressesOfEip(all))
		expectSource(ctx, n.twin, n.first, addressesOfEip(other))
		By("a longer prefix, and a pod")
		applied(ctx, snatOf(some, "some", kubeovnv1.OvnSnatRuleSpec{Vpc: amber, V4IPCIDR: "10.61.0.8/30", V6IPCIDR: "fd00:10:61::10/127"}),
			snatOf(one, "one", kubeovnv1.OvnSnatRuleSpec{IPName: "there." + amber}))
		expectSource(ctx, n.there, n.first, addressesOfEip(one))
		expectSource(ctx, n.here, n.first, addressesOfEip(some))
		By("a host behind the physical router")
		for _, a := range addressesOfEip(some) {
			expectSeen(ctx, n.here, a, a)
		}
	}, SpecTimeout(6*time.Minute))

	It("are sources of pods by labels", func(ctx SpecContext) {
		eip := eipAt(n.first, 134)
		applied(ctx, eip, &kubeovnv1.EgressAddress{ObjectMeta: metav1.ObjectMeta{Name: "by-labels"}, Spec: kubeovnv1.EgressAddressSpec{
			Vpc: amber, NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: amber}},
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"egress": "yes"}}, OvnEip: eip.Name,
		}})
		Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(n.here), n.here)).To(Succeed())
		base := n.here.DeepCopy()
		n.here.Labels = map[string]string{"egress": "yes"}
		Expect(suite.Objects.Patch(ctx, n.here, client.MergeFrom(base))).To(Succeed())
		expectSource(ctx, n.here, n.first, addressesOfEip(eip))
		base = n.here.DeepCopy()
		delete(n.here.Labels, "egress")
		Expect(suite.Objects.Patch(ctx, n.here, client.MergeFrom(base))).To(Succeed())
		Eventually(func() error {
			return suite.Objects.Get(ctx, client.ObjectKey{Name: "here." + amber}, &kubeovnv1.OvnSnatRule{})
		}).WithContext(ctx).WithTimeout(time.Minute).ShouldNot(Succeed())
	}, SpecTimeout(3*time.Minute))

	It("are the router's own address as a source", func(ctx SpecContext) {
		eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: amber + "-" + n.first.Name}}
		Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(eip), eip)).To(Succeed())
		applied(ctx, snatOf(eip, "own", kubeovnv1.OvnSnatRuleSpec{VpcSubnet: amber + "-net"}))
		expectSource(ctx, n.there, n.first, ipfamily.ValidAddrs(eip.Status.V4IP, eip.Status.V6IP))
	}, SpecTimeout(3*time.Minute))

	for _, kind := range []string{kubeovnv1.OvnFipCentralized, kubeovnv1.OvnFipDistributed} {
		It("float, "+kind, func(ctx SpecContext) {
			eip, second := eipAt(n.first, 140), eipAt(n.first, 141)
			fip, another := fipOf(eip, n.here), fipOf(second, n.there)
			fip.Spec.Type, another.Spec.Type = kind, kind
			applied(ctx, eip, second, fip, another)
			for _, v := range []topology.VLAN{n.first, n.second, topology.VLANs[0]} { // on the network, and behind the router
				expectServer(ctx, fromNode(v.HostName()), addressesOfEip(eip), cluster.HTTPPort, n.here.Name)
				expectServer(ctx, fromNode(v.HostName()), addressesOfEip(second), cluster.HTTPPort, n.there.Name)
				expectSource(ctx, n.here, v, addressesOfEip(eip))
			}
			By("one answer for each address")
			for _, a := range addressesOfEip(eip) {
				mac := expectOneAnswer(ctx, n.first, a)
				Expect(mac == macOfEip(ctx, eip)).To(Equal(kind == kubeovnv1.OvnFipDistributed), "%s has %s", a, mac)
			}
			By("from one pod to the other one's address, and to its own")
			expectServer(ctx, fromPod(n.here), addressesOfEip(second), cluster.HTTPPort, n.there.Name)
			expectServer(ctx, fromPod(n.there), addressesOfEip(eip), cluster.HTTPPort, n.here.Name)
			for _, a := range addressesOfEip(second) {
				from, _ := netip.ParseAddrPort(strings.TrimSpace(fetchFrom(ctx, fromPod(n.here), netip.AddrPortFrom(a, cluster.HTTPPort), "/clientip")))
				Expect(from.Addr()).To(Equal(inFamily(n.first.At(140), a)))
			}
		}, SpecTimeout(6*time.Minute))
	}

	It("have ports that lead to pods, by TCP, UDP and SCTP", func(ctx SpecContext) {
		eip := eipAt(n.first, 150)
		applied(ctx, eip, dnatOf(eip, "web-here", "tcp", 80, cluster.HTTPPort, n.here), dnatOf(eip, "web-there", "tcp", 81, cluster.HTTPPort, n.there),
			dnatOf(eip, "udp-there", "udp", 80, udpPort, n.there), dnatOf(eip, "sctp-here", "sctp", 80, 9999, n.here),
			snatOf(eip, "out", kubeovnv1.OvnSnatRuleSpec{VpcSubnet: amber + "-net"}))
		for _, v := range []topology.VLAN{n.first, n.second} {
			from := fromNode(v.HostName())
			expectServer(ctx, from, addressesOfEip(eip), 80, n.here.Name)
			expectServer(ctx, from, addressesOfEip(eip), 81, n.there.Name)
			for _, a := range addressesOfEip(eip) {
				Eventually(askUDP).WithContext(ctx).WithArguments(from, netip.AddrPortFrom(a, 80)).WithTimeout(20 * time.Second).Should(Equal(n.there.Name))
				Expect(fetchFrom(ctx, from, netip.AddrPortFrom(a, cluster.HTTPPort), "/hostname")).To(BeEmpty(), "a port without a rule")
			}
		}
		By("from pods of the VPC")
		expectServer(ctx, fromPod(n.there), addressesOfEip(eip), 80, n.here.Name)
		associates(ctx, n.there, addressesOfEip(eip), 80, "answered")
		By("sources share the address")
		expectSource(ctx, n.here, n.first, addressesOfEip(eip))
		for _, a := range addressesOfEip(eip) {
			Expect(expectOneAnswer(ctx, n.first, a)).NotTo(Equal(macOfEip(ctx, eip)))
		}
	}, SpecTimeout(5*time.Minute))

	It("are used while the physical router answers by BFD", func(ctx SpecContext) {
		eip := eipAt(n.first, 155)
		applied(ctx, eip, snatOf(eip, "monitored", kubeovnv1.OvnSnatRuleSpec{VpcSubnet: amber + "-net"}))
		expectSource(ctx, n.here, n.second, addressesOfEip(eip))
		port := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: amber + "-" + n.first.Name}}
		Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(port), port)).To(Succeed())
		peers := ipfamily.ValidAddrs(port.Status.V4IP, port.Status.V6IP)
		router := startBFD(peers)
		DeferCleanup(func(ctx SpecContext) { setBFD(ctx, amber, false) }, NodeTimeout(time.Minute))
		setBFD(ctx, amber, true)
		expectBFD(ctx, amber, metav1.ConditionTrue)
		expectSource(ctx, n.here, n.second, addressesOfEip(eip))
		for i, peer := range peers {
			By("the session with " + peer.String() + " ends")
			router.shutdown(ctx, peer, true)
			expectBFD(ctx, amber, metav1.ConditionFalse, n.first.Router()[i].Addr().String())
			for j, a := range addressesOfEip(eip) {
				to := inFamily(n.second.Outside(), a)
				if i == j {
					Eventually(clientSeen).WithContext(ctx).WithArguments(n.here, to).WithTimeout(20*time.Second).ShouldNot(Equal(a), "there is no other way")
				} else {
					Expect(clientSeen(ctx, n.here, to)).To(Equal(a), "the other family")
				}
			}
			router.shutdown(ctx, peer, false)
			expectBFD(ctx, amber, metav1.ConditionTrue)
		}
		expectSource(ctx, n.here, n.second, addressesOfEip(eip))
	}, SpecTimeout(6*time.Minute))

	It("lead to a Vip, and follow the pod that has it", func(ctx SpecContext) {
		vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "e2e-outside"}, Spec: kubeovnv1.VipSpec{
			Subnet: amber + "-net", Namespace: amber, Selector: []string{"shares:vip"}, V4IP: "10.61.0.100", V6IP: "fd00:10:61::100",
		}}
		pods := []*corev1.Pod{}
		for i := range 2 {
			pod := cluster.Server(amber, fmt.Sprintf("shares-%d", i), suite.Workers[i])
			pod.Labels["shares"] = "vip"
			pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
			pod, err := suite.Cluster.Run(ctx, pod)
			Expect(err).NotTo(HaveOccurred())
			pods = append(pods, pod)
		}
		DeferCleanup(func(ctx SpecContext) { removePods(ctx, amber, "shares-0", "shares-1") }, NodeTimeout(2*time.Minute))
		eip := eipAt(n.first, 160)
		fip := fipOf(eip, n.here)
		fip.Spec.IPName, fip.Spec.IPType = vip.Name, "vip"
		applied(ctx, vip, eip, fip)
		addresses := ipfamily.ValidAddrs(vip.Spec.V4IP, vip.Spec.V6IP)
		for i, pod := range pods {
			take(ctx, pods[1-i], false, addresses)
			take(ctx, pod, true, addresses)
			expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(eip), cluster.HTTPPort, pod.Name)
		}
	}, SpecTimeout(4*time.Minute))

	It("follow a pod that is created again on another node", func(ctx SpecContext) {
		pod := serve(ctx, amber, "again", 0)
		DeferCleanup(func(ctx SpecContext) { removePods(ctx, amber, "again") }, NodeTimeout(time.Minute))
		eip := eipAt(n.first, 161)
		fip := fipOf(eip, pod)
		fip.Spec.Type = kubeovnv1.OvnFipDistributed
		applied(ctx, eip, fip)
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(eip), cluster.HTTPPort, "again")
		removePods(ctx, amber, "again")
		again := serve(ctx, amber, "again", 1)
		Expect(cluster.PodAddrs(again)).NotTo(Equal(cluster.PodAddrs(pod)))
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(eip), cluster.HTTPPort, "again")
	}, SpecTimeout(4*time.Minute))

	It("are given to pods that request them, and taken from a namespace that is no longer allowed", func(ctx SpecContext) {
		both, source := eipAt(n.first, 163), eipAt(n.first, 164)
		both.Spec.AllowedNamespaces, source.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{amber}, []kubeovnv1.AllowedNamespace{amber}
		applied(ctx, both, source)
		annotate(ctx, n.here, kubeovnv1.AnnotationEip.Key(), ipfamily.Join(addressesOfEip(both)))
		annotate(ctx, n.there, kubeovnv1.AnnotationSnat.Key(), ipfamily.Join(addressesOfEip(source)))
		DeferCleanup(func(ctx SpecContext) {
			annotate(ctx, n.here, kubeovnv1.AnnotationEip.Key(), "")
			annotate(ctx, n.there, kubeovnv1.AnnotationSnat.Key(), "")
		}, NodeTimeout(time.Minute))
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(both), cluster.HTTPPort, n.here.Name)
		expectSource(ctx, n.here, n.first, addressesOfEip(both))
		expectSource(ctx, n.there, n.first, addressesOfEip(source))
		base := both.DeepCopy()
		both.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{brass}
		Expect(suite.Objects.Patch(ctx, both, client.MergeFrom(base))).To(Succeed())
		for _, a := range addressesOfEip(both) {
			Eventually(fetchFrom).WithContext(ctx).WithArguments(fromNode(n.first.HostName()), netip.AddrPortFrom(a, cluster.HTTPPort), "/hostname").
				WithTimeout(20 * time.Second).Should(BeEmpty())
		}
		annotate(ctx, n.twin, kubeovnv1.AnnotationEip.Key(), ipfamily.Join(addressesOfEip(both)))
		DeferCleanup(func(ctx SpecContext) { annotate(ctx, n.twin, kubeovnv1.AnnotationEip.Key(), "") }, NodeTimeout(time.Minute))
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(both), cluster.HTTPPort, n.twin.Name) // another tenant's, with another router
	}, SpecTimeout(5*time.Minute))

	It("belong to the older rule in a conflict", func(ctx SpecContext) {
		eip := eipAt(n.first, 162)
		fip := fipOf(eip, n.here)
		applied(ctx, eip, fip)
		rule := dnatOf(eip, "conflict", "tcp", 80, cluster.HTTPPort, n.there)
		Expect(suite.Objects.Create(ctx, rule)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, rule) }, NodeTimeout(time.Minute))
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(rule), rule)).To(Succeed())
			g.Expect(rule.Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring("OvnFip "+fip.Name+" has the addresses of OvnEip "+eip.Name))))
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(eip), cluster.HTTPPort, n.here.Name)
		Expect(suite.Objects.Delete(ctx, eip)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(eip), eip)).To(Succeed())
			g.Expect(eip.Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring("OvnFip "+fip.Name))))
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
		deleteObjects(ctx, fip)
	}, SpecTimeout(3*time.Minute))

	It("serve pods of the default VPC", func(ctx SpecContext) {
		pod := serve(ctx, "e2e-outside", "plain", 1)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, "e2e-outside") }, NodeTimeout(2*time.Minute))
		setExternal(ctx, kubeovnv1.DefaultVpc, n.first.Name)
		DeferCleanup(func(ctx SpecContext) { setExternal(ctx, kubeovnv1.DefaultVpc) }, NodeTimeout(time.Minute))
		floating, shared := eipAt(n.first, 170), eipAt(n.first, 171)
		applied(ctx, floating, fipOf(floating, pod))
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(floating), cluster.HTTPPort, pod.Name)
		expectSource(ctx, pod, n.first, addressesOfEip(floating))
		expectSource(ctx, pod, n.second, addressesOfEip(floating))
		other := serve(ctx, "e2e-outside", "other", 0)
		expectReach(ctx, pod, other)
		expectReach(ctx, other, pod)
		By("a port")
		applied(ctx, shared, dnatOf(shared, "default-web", "tcp", 80, cluster.HTTPPort, other))
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(shared), 80, other.Name)
		for _, a := range cluster.PodAddrs(other) { // its own connections leave through its node
			expectSeen(ctx, other, a, addressOfNode(ctx, suite.Workers[0], a))
		}
	}, SpecTimeout(6*time.Minute))

	It("belong to each network, with two external subnets", func(ctx SpecContext) {
		setExternal(ctx, amber, n.first.Name, n.second.Name)
		DeferCleanup(func(ctx SpecContext) { setExternal(ctx, amber, n.first.Name) }, NodeTimeout(time.Minute))
		one, two, port := eipAt(n.first, 180), eipAt(n.second, 180), eipAt(n.second, 181)
		all, floating := snatOf(one, "one", kubeovnv1.OvnSnatRuleSpec{VpcSubnet: amber + "-net"}), fipOf(two, n.there)
		applied(ctx, one, two, port, all, floating, dnatOf(port, "second-web", "tcp", 80, cluster.HTTPPort, n.here))
		expectSource(ctx, n.here, n.first, addressesOfEip(one))
		expectSource(ctx, n.here, n.second, addressesOfEip(one)) // on the second network, through the router of the first one
		expectSource(ctx, n.there, n.second, addressesOfEip(two))
		expectServer(ctx, fromNode(n.second.HostName()), addressesOfEip(two), cluster.HTTPPort, n.there.Name)
		expectServer(ctx, fromNode(n.second.HostName()), addressesOfEip(port), 80, n.here.Name)
		By("a floating address in the first one, and the others' in the second one")
		deleteObjects(ctx, all, floating)
		applied(ctx, snatOf(two, "two", kubeovnv1.OvnSnatRuleSpec{VpcSubnet: amber + "-net"}), fipOf(one, n.there))
		expectSource(ctx, n.here, n.second, addressesOfEip(two))
		expectSource(ctx, n.there, n.first, addressesOfEip(one))
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(one), cluster.HTTPPort, n.there.Name)
	}, SpecTimeout(6*time.Minute))

	It("serve a RouterLBRule of a custom VPC", func(ctx SpecContext) {
		eip := eipAt(n.first, 182)
		rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "e2e-outside"}, Spec: kubeovnv1.RouterLBRuleSpec{OvnEip: eip.Name, VPC: amber}}
		rule.Spec.Endpoints = []string{"10.61.0.10", "10.61.0.11", "fd00:10:61::10", "fd00:10:61::11"}
		rule.Spec.Ports = []kubeovnv1.LBRulePort{{Name: "http", Port: 80, TargetPort: cluster.HTTPPort, Protocol: "TCP"}}
		applied(ctx, eip, rule)
		for _, a := range addressesOfEip(eip) {
			servedBy(ctx, fromNode(n.first.HostName()), netip.AddrPortFrom(a, 80), n.here.Name, n.there.Name)
		}
	}, SpecTimeout(3*time.Minute))

	It("serve a Service that requests an OvnEip, and end with its grant", func(ctx SpecContext) {
		eip := eipAt(n.first, 187)
		eip.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{amber}
		applied(ctx, eip)
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: amber, Name: "by-eip", Annotations: map[string]string{
				kubeovnv1.AnnotationIPAddress.Key(): ipfamily.Join(addressesOfEip(eip)),
			}},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new(kubeovnv1.ClassOvnEip), AllocateLoadBalancerNodePorts: new(false),
				IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
				Ports:          []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)}},
			},
		}
		Expect(suite.Objects.Create(ctx, service)).To(Succeed())
		serveBy(ctx, service, n.here, n.there)
		expectAssigned(ctx, service, metav1.ConditionTrue, addressesOfEip(eip)...)
		for _, v := range []topology.VLAN{n.first, n.second} { // on the network, and behind the router
			for _, a := range addressesOfEip(eip) {
				servedBy(ctx, fromNode(v.HostName()), netip.AddrPortFrom(a, 80), n.here.Name, n.there.Name)
			}
		}
		By("not at its ClusterIPs, by a route to the router")
		for i, clusterIP := range ipfamily.ValidAddrs(service.Spec.ClusterIPs...) {
			port := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: amber + "-" + n.first.Name}}
			Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(port), port)).To(Succeed())
			router, _ := cluster.InFamilyOf(ipfamily.ValidAddrs(port.Status.V4IP, port.Status.V6IP), clusterIP)
			exec(ctx, n.first.HostName(), "ip", "route", "replace", clusterIP.String(), "via", router.String())
			DeferCleanup(func(ctx SpecContext) { exec(ctx, n.first.HostName(), "ip", "route", "del", clusterIP.String()) }, NodeTimeout(time.Minute))
			Expect(fetchFrom(ctx, fromNode(n.first.HostName()), netip.AddrPortFrom(clusterIP, 80), "/hostname")).To(BeEmpty(), "ClusterIP %d", i)
		}
		By("without the grant")
		Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(eip), eip)).To(Succeed())
		base := eip.DeepCopy()
		eip.Spec.AllowedNamespaces = nil
		Expect(suite.Objects.Patch(ctx, eip, client.MergeFrom(base))).To(Succeed())
		expectAssigned(ctx, service, metav1.ConditionFalse)
		for _, a := range addressesOfEip(eip) {
			Eventually(fetchFrom).WithContext(ctx).WithArguments(fromNode(n.first.HostName()), netip.AddrPortFrom(a, 80), "/hostname").WithTimeout(20 * time.Second).Should(BeEmpty())
		}
	}, SpecTimeout(5*time.Minute))

	It("lose no packet when kube-ovn-controller restarts", func(ctx SpecContext) {
		eip, shared := eipAt(n.first, 183), eipAt(n.first, 184)
		applied(ctx, eip, fipOf(eip, n.there), shared, dnatOf(shared, "restart-udp", "udp", 80, udpPort, n.here))
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(eip), cluster.HTTPPort, n.there.Name)
		var list []*watched
		for _, a := range addressesOfEip(eip) {
			list = append(list, &watched{name: "TCP to " + a.String(), protocol: tcp, target: netip.AddrPortFrom(a, cluster.HTTPPort)},
				&watched{name: "ping to " + a.String(), protocol: icmp, target: netip.AddrPortFrom(a, 0)})
		}
		for _, a := range addressesOfEip(shared) {
			list = append(list, &watched{name: "UDP to " + a.String(), protocol: udp, target: netip.AddrPortFrom(a, 80)})
		}
		running := startWatch(ctx, fromNode(n.first.HostName()), list)
		killComponent(ctx, "kube-ovn-controller")
		expectApplied(ctx, fipOf(eip, n.there))
		Expect(running.end(ctx).losses()).To(BeEmpty())
	}, Label(timed), SpecTimeout(4*time.Minute))

	It("move to another node when the node of the router's port dies", func(ctx SpecContext) {
		node := externalNode(ctx, amber, n.first.Name)
		worker := slices.Index(suite.Workers, node)
		Expect(worker).To(BeNumerically(">=", 0), "the node of the router's port is %q", node)
		server := n.here // on the other node
		if worker == 0 {
			server = n.there
		}
		floating, shared := eipAt(n.first, 185), eipAt(n.first, 186)
		applied(ctx, floating, fipOf(floating, server), shared, dnatOf(shared, "failover", "tcp", 80, cluster.HTTPPort, server))
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(floating), cluster.HTTPPort, server.Name)
		DeferCleanup(func(ctx SpecContext) { reviveNode(ctx, node) }, NodeTimeout(time.Minute))
		died := time.Now()
		killNode(ctx, node)
		for what, at := range map[string]netip.AddrPort{
			"OvnFip, IPv4": netip.AddrPortFrom(addressesOfEip(floating)[0], cluster.HTTPPort), "OvnFip, IPv6": netip.AddrPortFrom(addressesOfEip(floating)[1], cluster.HTTPPort),
			"OvnDnatRule, IPv4": netip.AddrPortFrom(addressesOfEip(shared)[0], 80),
		} {
			Eventually(fetchFrom).WithContext(ctx).WithArguments(fromNode(n.first.HostName()), at, "/hostname").WithTimeout(time.Minute).
				WithPolling(100 * time.Millisecond).Should(Equal(server.Name))
			AddReportEntry("node of the router's port dead → "+what, time.Since(died).Round(100*time.Millisecond).String())
			within(died, 2*routerFailover, "node of the router's port dead → "+what)
		}
		reviveNode(ctx, node)
		Eventually(func(ctx context.Context) string { return externalNode(ctx, amber, n.first.Name) }).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Equal(node))
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(floating), cluster.HTTPPort, server.Name)
	}, Label(timed, disruptive, mayRestart), SpecTimeout(6*time.Minute))

	for _, kind := range []string{translate.KindOvnFip, translate.KindOvnSnatRule} {
		It("of an "+kind+" have no packet for their former owner, under UDP without a pause", func(ctx SpecContext) {
			const moves = 20
			eip := eipAt(n.first, 191)
			var rule client.Object = fipOf(eip, n.here)
			if kind == translate.KindOvnSnatRule {
				rule = snatOf(eip, "moves", kubeovnv1.OvnSnatRuleSpec{IPName: "here." + amber})
			}
			applied(ctx, eip, rule)
			// The host sends to the floating address, or to the port of the source address from which a pod sends: the pod keeps its port.
			pods, host := []*corev1.Pod{n.here, n.there}, fromNode(n.first.HostName())
			var talks []*talk
			for _, outside := range topology.Addrs(n.first.Outside()) {
				to := inFamily(n.first.At(191), outside)
				startTalk(ctx, host, netip.AddrPortFrom(outside, 4000), netip.AddrPortFrom(to, 5000))
				one := &talk{what: kind + " " + outside.String()}
				for _, pod := range pods {
					at, _ := cluster.InFamilyOf(cluster.PodAddrs(pod), outside)
					peer := netip.AddrPort{}
					if kind == translate.KindOvnSnatRule {
						peer = netip.AddrPortFrom(outside, 4000)
					}
					one.files = append(one.files, startTalk(ctx, fromPod(pod), netip.AddrPortFrom(at, 5000), peer))
				}
				talks = append(talks, one)
			}
			await := func(i int) {
				GinkgoHelper()
				for _, one := range talks {
					began := time.Now()
					Eventually(func() bool { return one.last(ctx, fromPod(pods[i]), i).After(began) }).WithContext(ctx).WithTimeout(30*time.Second).
						WithPolling(200*time.Millisecond).Should(BeTrue(), "%s of %s", one.what, pods[i].Name)
				}
			}
			await(0)
			for i := range moves {
				name := pods[(i+1)%2].Name + "." + amber
				Expect(suite.Objects.Patch(ctx, rule, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"ipName":%q}}`, name)))).To(Succeed())
				expectApplied(ctx, rule)
				await((i + 1) % 2)
			}
			for _, one := range talks {
				owners, gaps := one.owners(ctx, pods)
				if len(gaps) > 0 {
					AddReportEntry(one.what, fmt.Sprintf("%d owners after %d moves; between two owners: median %s, longest %s", owners, moves,
						median(gaps).Round(time.Millisecond), slices.Max(gaps).Round(time.Millisecond)))
				}
				Expect(owners).To(Equal(moves+1), "%s: each further owner is a former one that got a packet", one.what)
			}
		}, SpecTimeout(15*time.Minute))
	}

	It("are many on one router", func(ctx SpecContext) {
		const floating, ports = 200, 1000
		shared := eipAt(n.first, 193)
		applied(ctx, shared)
		address := func(place int) string { // beyond the addresses that the VLAN's other objects have
			return strings.TrimSuffix(topology.Addrs(n.first.At(0))[1].String(), "::") + "::" + fmt.Sprintf("%x", 0x1000+place)
		}
		var objects []client.Object
		for i := range floating {
			eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("many-%d", i)}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: n.first.Name, V6IP: address(i)}}
			fip := &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: eip.Name}, Spec: kubeovnv1.OvnFipSpec{OvnEip: eip.Name, Vpc: amber, V6IP: fmt.Sprintf("fd00:10:61::%x", 0x1000+i)}}
			objects = append(objects, eip, fip)
		}
		for i := range ports {
			objects = append(objects, dnatOf(shared, fmt.Sprintf("many-%d", i), "tcp", 10000+i, cluster.HTTPPort, n.here))
		}
		end := func(ctx context.Context) {
			for _, o := range objects {
				Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, o))).To(Succeed())
			}
			for _, o := range objects {
				Eventually(func() bool { return apierrors.IsNotFound(suite.Objects.Get(ctx, client.ObjectKeyFromObject(o), o)) }).WithContext(ctx).
					WithTimeout(2 * time.Minute).Should(BeTrue())
			}
		}
		DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(10*time.Minute))
		northd := activeNorthd(ctx).Spec.NodeName
		began, before := time.Now(), ticksOf(ctx, northd, "ovn-northd")
		for _, o := range objects {
			Expect(suite.Objects.Create(ctx, o)).To(Succeed())
		}
		created := time.Since(began)
		for _, o := range objects {
			expectApplied(ctx, o)
		}
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(shared), 10000+ports-1, n.here.Name)
		AddReportEntry("200 OvnFips and 1,000 OvnDnatRules", fmt.Sprintf("created after %s, served after %s, CPU of ovn-northd %s", created.Round(time.Second),
			time.Since(began).Round(time.Second), (ticksOf(ctx, northd, "ovn-northd")-before).Round(time.Millisecond)))
		By("one more rule")
		one := dnatOf(shared, "one-more", "tcp", 9999, cluster.HTTPPort, n.there)
		began, before = time.Now(), ticksOf(ctx, northd, "ovn-northd")
		applied(ctx, one)
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(shared)[:1], 9999, n.there.Name)
		AddReportEntry("one more OvnDnatRule", fmt.Sprintf("from the creation to the first packet %s, CPU of ovn-northd %s", time.Since(began).Round(time.Millisecond),
			(ticksOf(ctx, northd, "ovn-northd")-before).Round(time.Millisecond)))
		began, before = time.Now(), ticksOf(ctx, northd, "ovn-northd")
		end(ctx)
		AddReportEntry("200 OvnFips and 1,000 OvnDnatRules", fmt.Sprintf("deleted after %s, CPU of ovn-northd %s", time.Since(began).Round(time.Second),
			(ticksOf(ctx, northd, "ovn-northd")-before).Round(time.Millisecond)))
	}, SpecTimeout(20*time.Minute))

	It("are deleted in any order", func(ctx SpecContext) {
		eip := eipAt(n.first, 190)
		fip := fipOf(eip, n.here)
		applied(ctx, eip, fip)
		setExternal(ctx, amber) // the port first
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(fip), fip)).To(Succeed())
			g.Expect(fip.Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring("VPC "+amber+" to have a port in external subnet "+n.first.Name))))
		}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
		setExternal(ctx, amber, n.first.Name)
		expectApplied(ctx, fip)
		expectServer(ctx, fromNode(n.first.HostName()), addressesOfEip(eip), cluster.HTTPPort, n.here.Name)
		Expect(suite.Objects.Delete(ctx, eip)).To(Succeed())
		deleteObjects(ctx, fip)
		deleteObjects(ctx, eip)
		for _, a := range addressesOfEip(eip) {
			Eventually(fetchFrom).WithContext(ctx).WithArguments(fromNode(n.first.HostName()), netip.AddrPortFrom(a, cluster.HTTPPort), "/hostname").
				WithTimeout(20 * time.Second).Should(BeEmpty())
		}
	}, SpecTimeout(4*time.Minute))
})

// serveBy makes pods the endpoints of a Service without a selector, at its target port, and deletes both when the spec ends.
func serveBy(ctx context.Context, service *corev1.Service, pods ...*corev1.Pod) {
	GinkgoHelper()
	objects := []client.Object{service}
	for _, of := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		port := service.Spec.Ports[0]
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name + "-" + strings.ToLower(string(of)), Labels: map[string]string{discoveryv1.LabelServiceName: service.Name}},
			AddressType: of, Ports: []discoveryv1.EndpointPort{{Name: &port.Name, Port: &port.TargetPort.IntVal, Protocol: new(corev1.ProtocolTCP)}},
		}
		for _, pod := range pods {
			for _, a := range cluster.PodAddrs(pod) {
				if ipfamily.Of(a).String() == string(of) {
					slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
						Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
						TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
					})
				}
			}
		}
		objects = append(objects, slice)
	}
	DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, objects...) }, NodeTimeout(2*time.Minute))
	for _, slice := range objects[1:] {
		Expect(suite.Objects.Create(ctx, slice)).To(Succeed())
	}
}

// expectAssigned waits until a Service has these addresses, and its condition has this status.
func expectAssigned(ctx context.Context, service *corev1.Service, status metav1.ConditionStatus, want ...netip.Addr) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(service), service)).To(Succeed())
		g.Expect(service.Status.Conditions).To(ContainElement(And(HaveField("Type", kubeovnv1.ConditionAddressAssigned), HaveField("Status", status))))
		var got []netip.Addr
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			got = append(got, ipfamily.ValidAddrs(ingress.IP)...)
		}
		g.Expect(got).To(ConsistOf(want))
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
}

// ticksOf returns the CPU time of a program on a node.
func ticksOf(ctx context.Context, node, program string) time.Duration {
	GinkgoHelper()
	var user, system int64
	_, err := fmt.Sscan(exec(ctx, node, "sh", "-c", `awk '{print $14, $15}' /proc/$(pidof $0)/stat`, program), &user, &system)
	Expect(err).NotTo(HaveOccurred())
	return time.Duration(user+system) * 10 * time.Millisecond
}

// talkProgram sends and receives UDP.
//
//go:embed testdata/talk.py
var talkProgram string

// talk has the files with the packets that pods got, in the order of the pods.
type talk struct {
	what  string
	files []string
}

// talkPacket is a packet of talkProgram, with the number of its sender.
type talkPacket struct {
	number, pod int
	at          time.Time
}

// readTalk parses a line of talkProgram. It returns false for an incomplete one.
func readTalk(line string, pod int) (talkPacket, bool) {
	p, seconds := talkPacket{pod: pod}, 0.0
	_, err := fmt.Sscan(line, &p.number, &seconds)
	p.at = time.UnixMicro(int64(seconds * 1e6))
	return p, err == nil
}

// startTalk runs talkProgram until the spec ends, and returns the file with its output. The zero AddrPort sends nothing.
func startTalk(ctx context.Context, from origin, at, to netip.AddrPort) (file string) {
	GinkgoHelper()
	file = fmt.Sprintf("/tmp/talk-%d-%d", at.Port(), time.Now().UnixNano())
	args := []string{"sh", "-c", `f=$1 p=$2; shift 2; setsid python3 -c "$p" "$@" </dev/null >$f 2>$f.err & echo $! >$f.pid`, "talk", file, talkProgram,
		at.Addr().String(), fmt.Sprint(at.Port())}
	if to.IsValid() {
		args = append(args, to.Addr().String(), fmt.Sprint(to.Port()))
	}
	_, err := from(ctx, args...)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		_, err := from(ctx, "sh", "-c", `kill $(cat $0.pid); rm -f $0 $0.err $0.pid`, file)
		Expect(err).NotTo(HaveOccurred())
	}, NodeTimeout(time.Minute))
	return file
}

// last returns the time of the last packet of pod number i.
func (o *talk) last(ctx context.Context, pod origin, i int) time.Time {
	out, _ := pod(ctx, "tail", "-n", "1", o.files[i])
	p, ok := readTalk(out, i)
	if !ok {
		return time.Time{}
	}
	return p.at
}

// owners returns how often the owner of the packets changed, plus one, and the times between the last packet of an owner and the first one of the next. The packets are in the
// order in which they were sent: the program of a pod on a busy node can be late.
func (o *talk) owners(ctx context.Context, pods []*corev1.Pod) (owners int, gaps []time.Duration) {
	GinkgoHelper()
	var packets []talkPacket
	for i, pod := range pods {
		out, err := suite.Cluster.Exec(ctx, pod, "cat", o.files[i])
		Expect(err).NotTo(HaveOccurred())
		for line := range strings.Lines(out) {
			if p, ok := readTalk(line, i); ok {
				packets = append(packets, p)
			}
		}
	}
	slices.SortStableFunc(packets, func(a, b talkPacket) int { return cmp.Compare(a.number, b.number) })
	for i, p := range packets {
		switch {
		case i == 0:
			owners = 1
		case packets[i-1].pod != p.pod:
			owners++
			gaps = append(gaps, p.at.Sub(packets[i-1].at))
		}
	}
	return owners, gaps
}

// askUDP returns the name of the server that answers at a UDP port.
func askUDP(ctx context.Context, from origin, to netip.AddrPort) string {
	out, _ := from(ctx, "timeout", "3", "bash", "-c", `exec 3<>"/dev/udp/$1/$2"; echo hostname >&3; timeout 1 cat <&3`, "ask", to.Addr().String(), fmt.Sprint(to.Port()))
	return strings.TrimSpace(out)
}

// setExternal changes the external subnets of a VPC, and waits until its router has the ports.
func setExternal(ctx context.Context, vpc string, subnets ...string) {
	GinkgoHelper()
	v := &kubeovnv1.Vpc{}
	Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: vpc}, v)).To(Succeed())
	base := v.DeepCopy()
	v.Spec.ExtraExternalSubnets = subnets
	Expect(suite.Objects.Patch(ctx, v, client.MergeFrom(base))).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: vpc}, v)).To(Succeed())
		g.Expect(v.Status.ExtraExternalSubnets).To(ConsistOf(subnets))
	}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
}

// externalNode returns the node that hosts the port of a VPC's router in an external subnet.
func externalNode(ctx context.Context, vpc, subnet string) string {
	GinkgoHelper()
	var node string
	Eventually(func(g Gomega) {
		chassis, err := ko(ctx, "sbctl", "--bare", "--columns=chassis", "find", "Port_Binding", "logical_port=cr-"+vpc+"-"+subnet)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.TrimSpace(chassis)).NotTo(BeEmpty())
		name, err := ko(ctx, "sbctl", "--bare", "--columns=hostname", "list", "Chassis", strings.TrimSpace(chassis))
		g.Expect(err).NotTo(HaveOccurred())
		node = strings.TrimSpace(name)
	}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
	return node
}
