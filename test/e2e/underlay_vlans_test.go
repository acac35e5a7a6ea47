// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/test/cluster"
)

// physical is the label of specs that only `make underlay` runs.
const physical = "physical"

// Two VLANs of the lab's switch come by eth2 of the nodes. Each has the router and a host.
var _ = Describe("VLANs of a physical network", Label("underlay"), Ordered, ContinueOnFailure, func() {
	first, second := topology.VLANs[1], topology.VLANs[2]
	provider := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: underlayProvider}}
	var here, there, other *corev1.Pod // on the first VLAN, on two nodes; on the second VLAN, on the node of the first pod
	var before map[string]string

	BeforeAll(func(ctx SpecContext) {
		before = configureUplink(ctx, suite.Workers[1])
		provider.Spec.DefaultInterface = "eth2"
		connectVLANs(ctx, provider, first, second)
		here, there = serve(ctx, first.Name, "here", 0), serve(ctx, first.Name, "there", 1)
		other = serve(ctx, second.Name, "other", 0)
	}, NodeTimeout(5*time.Minute))

	It("connect pods with hosts on their VLAN directly, and with others through the router", func(ctx SpecContext) {
		expectHosts(ctx, here, other)
	}, SpecTimeout(3*time.Minute))

	It("connect their pods through the router", func(ctx SpecContext) {
		expectVLANs(ctx, here, there, other)
	}, SpecTimeout(2*time.Minute))

	It("let their pods reach Services by ClusterIP and node port, and the API server", Label(physical), func(ctx SpecContext) {
		expectServices(ctx, there, here, other)
	}, SpecTimeout(4*time.Minute))

	It("apply NetworkPolicies to both directions", Label(physical), func(ctx SpecContext) {
		By("the traffic that the policy allows, and the traffic that it blocks")
		for _, a := range cluster.PodAddrs(there) {
			for _, v := range topology.VLANs {
				Expect(answerOf(ctx, fromPod(there), netip.AddrPortFrom(inFamily(v.Outside(), a), topology.OutsidePort))).To(Equal(v.HostName()))
				Expect(answerOf(ctx, fromNode(v.HostName()), netip.AddrPortFrom(a, cluster.HTTPPort))).To(Equal(there.Name))
			}
		}
		applyPolicy(ctx, first.Name, "two-hosts", fmt.Sprintf(`{podSelector: {matchLabels: {app: there}}, policyTypes: [Ingress, Egress],
			ingress: [{from: [%s]}], egress: [{to: [%s]}]}`, blocks(first.Outside()), blocks(second.Outside())))
		for _, a := range cluster.PodAddrs(there) {
			server := netip.AddrPortFrom(a, cluster.HTTPPort)
			for _, from := range []origin{fromNode(second.HostName()), fromPod(here), fromPod(other)} {
				Eventually(fetchFrom).WithContext(ctx).WithArguments(from, server, "/hostname").WithTimeout(20 * time.Second).Should(BeEmpty())
			}
			Expect(answerOf(ctx, fromNode(first.HostName()), server)).To(Equal(there.Name))
			Eventually(clientSeen).WithContext(ctx).WithArguments(there, inFamily(second.Outside(), a)).WithTimeout(20 * time.Second).Should(Equal(a))
			for _, v := range []topology.VLAN{first, topology.VLANs[0]} {
				Expect(fetchFrom(ctx, fromPod(there), netip.AddrPortFrom(inFamily(v.Outside(), a), topology.OutsidePort), "/clientip")).To(BeEmpty(), v.HostName())
			}
		}
	}, SpecTimeout(3*time.Minute))

	It("apply SecurityGroups to both directions", Label(physical), func(ctx SpecContext) {
		expectGroup(ctx, first, here, there, fromNode(first.HostName()), fromNode(second.HostName()))
	}, SpecTimeout(4*time.Minute))

	It("apply the ACLs of their Subnet", Label(physical), func(ctx SpecContext) {
		expectACLs(ctx, first, there, fromNode(first.HostName()), fromNode(second.HostName()), fromPod(here))
	}, SpecTimeout(3*time.Minute))

	It("answer DHCP clients of pods", Label(physical), func(ctx SpecContext) {
		expectDHCP(ctx, first)
	}, SpecTimeout(4*time.Minute))

	It("reach a pod with static addresses at its new node", Label(physical), func(ctx SpecContext) {
		addresses := first.At(200)
		for worker := range 2 {
			pod, err := suite.Cluster.Run(ctx, withAddresses("static", suite.Workers[worker], first.Name, addresses))
			Expect(err).NotTo(HaveOccurred())
			Expect(cluster.PodAddrs(pod)).To(Equal(topology.Addrs(addresses)))
			for _, a := range cluster.PodAddrs(pod) { // the host keeps the neighbour of the first pod
				Expect(answerOf(ctx, fromNode(first.HostName()), netip.AddrPortFrom(a, cluster.HTTPPort))).To(Equal("static"))
				Expect(answerOf(ctx, fromNode(second.HostName()), netip.AddrPortFrom(a, cluster.HTTPPort))).To(Equal("static"))
			}
			removePods(ctx, first.Name, "static")
		}
	}, SpecTimeout(3*time.Minute))

	It("report an address that another host has, and do not use it", Label(physical, disruptive), func(ctx SpecContext) {
		mac := macOf(ctx, first.HostName())
		for i, address := range first.At(201) {
			name := fmt.Sprintf("conflict-%d", i)
			free := giveAddresses(ctx, first.HostName(), address)
			expectWaiting(ctx, withAddresses(name, suite.Workers[i], first.Name, first.At(201)),
				And(ContainSubstring("AddressConflict"), ContainSubstring(mac), ContainSubstring(address.Addr().String())))
			for _, pod := range []*corev1.Pod{here, there} { // on the node of the waiting pod, and on another one
				expectNeighbour(ctx, pod, address.Addr(), first.HostName(), mac)
			}
			Expect(answerOf(ctx, fromNode(second.HostName()), netip.AddrPortFrom(address.Addr(), topology.OutsidePort))).To(Equal(first.HostName()))
			Expect(phaseOf(ctx, first.Name, name)).To(Equal(corev1.PodPending))

			By("creating the pod again after the host has given the address up")
			free(ctx)
			removePods(ctx, first.Name, name)
			_, err := suite.Cluster.Run(ctx, withAddresses(name, suite.Workers[i], first.Name, first.At(201)))
			Expect(err).NotTo(HaveOccurred())
			Expect(answerOf(ctx, fromNode(first.HostName()), netip.AddrPortFrom(address.Addr(), cluster.HTTPPort))).To(Equal(name))
			removePods(ctx, first.Name, name)
		}
	}, SpecTimeout(4*time.Minute))

	It("report a pod that asks for the addresses and the MAC address of another host, and do not start it", Label(physical, disruptive), func(ctx SpecContext) {
		mac := macOf(ctx, first.HostName())
		giveAddresses(ctx, first.HostName(), first.At(202)...)
		pod := withAddresses("twin", suite.Workers[0], first.Name, first.At(202))
		pod.Annotations[keyMAC] = mac
		expectWaiting(ctx, pod, Or(ContainSubstring("MAC"), ContainSubstring("mac_address")))
		for _, pod := range []*corev1.Pod{here, there} {
			for _, address := range topology.Addrs(first.At(202)) {
				expectNeighbour(ctx, pod, address, first.HostName(), mac)
			}
		}
		Expect(phaseOf(ctx, first.Name, pod.Name)).To(Equal(corev1.PodPending))
	}, SpecTimeout(3*time.Minute))

	It("leave pods unchanged by router advertisements and DHCP of the network", Label(physical), func(ctx SpecContext) {
		state := func() string {
			out, err := suite.Cluster.Exec(ctx, here, "sh", "-c", "ip -o address show dev eth0; ip route; ip -6 route")
			Expect(err).NotTo(HaveOccurred())
			return out
		}
		configured := state()
		exec(ctx, lab.Router, "sh", "-c", "kill $(pidof dnsmasq)") // it advertises when it starts
		Eventually(func() (string, error) {
			return suite.Cluster.Exec(ctx, here, "awk", "/Icmp6InRouterAdvertisements/ {print $2}", "/proc/net/snmp6")
		}).WithContext(ctx).WithTimeout(20 * time.Second).ShouldNot(Equal("0\n"))
		Expect(state()).To(Equal(configured))
		lease := exec(ctx, first.HostName(), "sh", "-c", "dhclient -1 -sf /bin/true -lf /run/lease eth0 >/dev/null 2>&1; kill $(pidof dhclient); cat /run/lease")
		Expect(lease).To(ContainSubstring("routers " + first.Router()[0].Addr().String()))
	}, SpecTimeout(2*time.Minute))

	It("connect as many pods of a node as its kubelet runs", Label(physical), func(ctx SpecContext) {
		expectMany(ctx, first, suite.Workers[0])
	}, SpecTimeout(15*time.Minute))

	It("leave the interface as it was", func(ctx SpecContext) {
		out, err := suite.Cluster.Exec(ctx, there, "cat", "/sys/class/net/eth0/mtu")
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.TrimSpace(out)).To(Equal(uplinkMTU))
		disconnectVLANs(ctx, provider, first, second)
		for node, state := range before {
			Eventually(uplinkState).WithContext(ctx).WithArguments(node, "eth2").WithTimeout(30*time.Second).Should(Equal(state), node)
		}
	}, SpecTimeout(4*time.Minute))
})

// expectHosts waits until pods and the hosts of all VLANs reach each other, directly on the same VLAN.
func expectHosts(ctx context.Context, pods ...*corev1.Pod) {
	GinkgoHelper()
	for _, pod := range pods {
		for _, a := range cluster.PodAddrs(pod) {
			for _, v := range topology.VLANs {
				host := inFamily(v.Outside(), a)
				Eventually(clientSeen).WithContext(ctx).WithArguments(pod, host).WithTimeout(20*time.Second).Should(Equal(a), "%s at %s", pod.Name, v.HostName())
				Eventually(fetchFrom).WithContext(ctx).WithArguments(fromNode(v.HostName()), netip.AddrPortFrom(a, cluster.HTTPPort), "/hostname").
					WithTimeout(20*time.Second).Should(Equal(pod.Name), "from %s", v.HostName())
				Expect(direct(ctx, pod, host)).To(Equal(v.Contains(a)), "%s to %s", pod.Name, v.HostName())
			}
		}
	}
}

// expectVLANs waits until two pods of a VLAN and one of another reach each other, the last one through the router.
func expectVLANs(ctx context.Context, here, there, other *corev1.Pod) {
	GinkgoHelper()
	for _, pair := range [][2]*corev1.Pod{{here, there}, {here, other}, {there, other}} {
		expectReach(ctx, pair[0], pair[1])
		expectReach(ctx, pair[1], pair[0])
		for _, a := range cluster.PodAddrs(pair[1]) {
			Expect(direct(ctx, pair[0], a)).To(Equal(pair[1] != other), "%s to %s", pair[0].Name, a)
		}
	}
}

// expectServices waits until underlay pods reach a Service of the underlay pod server by ClusterIP and node port, one of an overlay pod by node port,
// and the API server.
func expectServices(ctx context.Context, server *corev1.Pod, clients ...*corev1.Pod) {
	GinkgoHelper()
	overlay := serve(ctx, "e2e-overlay", "overlay", 1)
	DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, overlay.Namespace) }, NodeTimeout(3*time.Minute))
	own, of := nodePortOf(ctx, server), nodePortOf(ctx, overlay)
	for _, client := range clients {
		for _, like := range cluster.PodAddrs(client) {
			Expect(answerOf(ctx, fromPod(client), frontOf(own, like))).To(Equal(server.Name))
			for _, node := range append(slices.Clone(suite.Workers), controlPlane()) {
				for s, server := range map[*corev1.Service]*corev1.Pod{own: server, of: overlay} {
					port := netip.AddrPortFrom(addressOfNode(ctx, node, like), uint16(s.Spec.Ports[0].NodePort))
					Expect(answerOf(ctx, fromPod(client), port)).To(Equal(server.Name), "node port on %s", node)
				}
			}
			api := netip.AddrPortFrom(addressOfNode(ctx, controlPlane(), like), topology.APIServerPort)
			Eventually(func() error {
				_, err := suite.Cluster.Exec(ctx, client, "curl", "-sk", "-m", "2", fmt.Sprintf("https://%s/livez", api))
				return err
			}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
		}
	}
}

// connectVLANs makes the ProviderNetwork, and for each VLAN a Vlan, a Subnet and its namespace with the VLAN's name.
func connectVLANs(ctx context.Context, provider *kubeovnv1.ProviderNetwork, vlans ...topology.VLAN) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { disconnectVLANs(ctx, provider, vlans...) }, NodeTimeout(5*time.Minute))
	Expect(suite.Objects.Create(ctx, provider)).To(Succeed())
	for _, v := range vlans {
		makeNamespace(ctx, v.Name)
		var cidrs, gateways, reserved []string
		for i, p := range v.Prefixes {
			cidrs, gateways = append(cidrs, p.String()), append(gateways, v.Router()[i].Addr().String())
			reserved = append(reserved, fmt.Sprintf("%s..%s", v.At(1)[i].Addr(), v.At(127)[i].Addr()))
		}
		subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: v.Name}, Spec: kubeovnv1.SubnetSpec{
			Vlan: v.Name, CIDRBlock: strings.Join(cidrs, ","), Gateway: strings.Join(gateways, ","), ExcludeIPs: reserved, Namespaces: []string{v.Name},
		}}
		Expect(suite.Objects.Create(ctx, &kubeovnv1.Vlan{
			ObjectMeta: metav1.ObjectMeta{Name: v.Name}, Spec: kubeovnv1.VlanSpec{ID: v.Tag, Provider: provider.Name},
		})).To(Succeed())
		Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
	}
	Eventually(func(g Gomega) {
		g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(provider), provider)).To(Succeed())
		g.Expect(provider.Status.Ready).To(BeTrue(), "%+v", provider.Status)
	}).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Succeed())
	for _, v := range vlans {
		Eventually(inForce).WithContext(ctx).WithArguments(v.Name).WithTimeout(30 * time.Second).Should(BeTrue())
	}
}

// manyPods are close to the limit of the lab's kubelets, 250 with the pods of the system.
const manyPods = 236

// atOnce is the number of these pods that start or end at the same time. All of them would keep the lab's API server from answering for many seconds.
const atOnce = 24

// expectMany runs many pods of a VLAN on a node, and expects that a host of the VLAN reaches each of them.
func expectMany(ctx context.Context, v topology.VLAN, node string) {
	GinkgoHelper()
	const namespace = "many"
	subnet := &kubeovnv1.Subnet{}
	Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v.Name}, subnet)).To(Succeed())
	base := subnet.DeepCopy()
	subnet.Spec.ExcludeIPs = nil
	for i := range v.Prefixes {
		subnet.Spec.ExcludeIPs = append(subnet.Spec.ExcludeIPs, fmt.Sprintf("%s..%s", v.At(1)[i].Addr(), v.Outside()[i].Addr()))
	}
	subnet.Spec.Namespaces = append(subnet.Spec.Namespaces, namespace)
	Expect(suite.Objects.Patch(ctx, subnet, client.MergeFrom(base))).To(Succeed())
	makeNamespace(ctx, namespace)
	DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, namespace) }, NodeTimeout(8*time.Minute))
	Eventually(inForce).WithContext(ctx).WithArguments(v.Name).WithTimeout(30 * time.Second).Should(BeTrue())
	begun := time.Now()
	addresses := map[string]bool{}
	isReady := func(i int) {
		pod, err := suite.Cluster.WaitPod(ctx, namespace, fmt.Sprintf("many-%d", i), cluster.Ready)
		Expect(err).NotTo(HaveOccurred())
		for _, a := range cluster.PodAddrs(pod) {
			addresses[a.String()] = true
		}
	}
	for i := range manyPods {
		if i >= atOnce {
			isReady(i - atOnce)
		}
		pod := cluster.Server(namespace, fmt.Sprintf("many-%d", i), node)
		pod.Spec.Containers[0].Args, pod.Spec.Containers[0].ReadinessProbe = []string{"pause"}, nil
		_, err := suite.Cluster.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
	for i := manyPods - atOnce; i < manyPods; i++ {
		isReady(i)
	}
	Expect(addresses).To(HaveLen(2 * manyPods))
	ready := time.Since(begun)
	// A few at a time, as hosts of a network do.
	script := "for a in $0; do echo $a; done | xargs -P 16 -n 1 sh -c 'ping -n -q -c 3 -i 0.2 -W 2 $0 >/dev/null || echo $0'"
	begun = time.Now()
	Expect(exec(ctx, v.HostName(), "sh", "-c", script, strings.Join(slices.Sorted(maps.Keys(addresses)), " "))).To(BeEmpty(), "addresses that do not answer")
	AddReportEntry("pods of an underlay subnet on one node", fmt.Sprintf("%d pods ready after %s, all addresses answer a host of the VLAN within %s",
		manyPods, ready.Round(time.Second), time.Since(begun).Round(time.Second)))
	removeMany(ctx, namespace)
}

// removeMany deletes all pods of a namespace, and waits until they are gone.
func removeMany(ctx context.Context, namespace string) {
	GinkgoHelper()
	pods := suite.Cluster.CoreV1().Pods(namespace)
	all, err := pods.List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	for left := len(all.Items); left > 0; left -= atOnce {
		for i := max(0, left-atOnce); i < left; i++ {
			Expect(pods.Delete(ctx, all.Items[i].Name, metav1.DeleteOptions{})).To(Succeed())
		}
		Eventually(func(g Gomega) {
			present, err := pods.List(ctx, metav1.ListOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(len(present.Items)).To(BeNumerically("<=", max(0, left-atOnce)))
		}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}
}

// disconnectVLANs deletes what connectVLANs has made.
func disconnectVLANs(ctx context.Context, provider *kubeovnv1.ProviderNetwork, vlans ...topology.VLAN) {
	GinkgoHelper()
	for _, v := range vlans {
		deleteNamespace(ctx, v.Name)
	}
	for _, v := range vlans {
		deleteObjects(ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: v.Name}})
		deleteObjects(ctx, &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: v.Name}})
	}
	deleteObjects(ctx, provider)
	forgotten(ctx, provider.Name)
}

// uplinkMTU is the MTU that one node's interface has during the specs.
const uplinkMTU = "1450"

// configureUplink gives eth2 of a node an MTU and neighbours of its own until the specs end. It returns the states of all nodes' eth2.
func configureUplink(ctx context.Context, node string) map[string]string {
	GinkgoHelper()
	set := func(ctx context.Context, verb, mtu string) {
		exec(ctx, node, "ip", "link", "set", "eth2", "mtu", mtu)
		for _, address := range []string{"172.28.0.77", "fe80::77"} {
			exec(ctx, node, "ip", "neighbour", verb, address, "lladdr", "02:00:00:00:00:77", "dev", "eth2", "nud", "permanent")
		}
	}
	set(ctx, "replace", uplinkMTU)
	DeferCleanup(func(ctx SpecContext) { set(ctx, "delete", "1500") }, NodeTimeout(time.Minute))
	states := map[string]string{}
	for _, n := range suite.Lab.Nodes() {
		states[n.Name] = uplinkState(ctx, n.Name, "eth2")
	}
	return states
}

// uplinkState prints what a ProviderNetwork may change on a node: the names of all interfaces; of one its link, addresses, routes, permanent
// neighbours and settings; and the bridges of Open vSwitch.
func uplinkState(ctx context.Context, node, link string) string {
	GinkgoHelper()
	return exec(ctx, node, "sh", "-c", `ip -o link show | cut -d: -f2 | cut -d@ -f1 | grep -v '^ [0-9a-f]*_h$' | sort
ip -o link show dev $0 | sed 's/^[0-9]*: //'
ip -o address show dev $0 | sed 's/ *valid_lft.*//; s/^[0-9]*: //'
for f in -4 -6; do ip $f route show table all | grep "dev $0" | sed 's/ expires [0-9]*sec//' | sort; ip $f neighbour show dev $0 nud permanent | sort; done
for s in accept_ra disable_ipv6 forwarding addr_gen_mode; do cat /proc/sys/net/ipv6/conf/$0/$s; done`, link)
}

// withAddresses is a server with these addresses.
func withAddresses(name, node, namespace string, addresses []netip.Prefix) *corev1.Pod {
	pod := cluster.Server(namespace, name, node)
	var list []string
	for _, a := range topology.Addrs(addresses) {
		list = append(list, a.String())
	}
	pod.Annotations = map[string]string{keyAddress: strings.Join(list, ",")}
	return pod
}

// inFamily returns the address in the family of like.
func inFamily(addresses []netip.Prefix, like netip.Addr) netip.Addr {
	address, _ := cluster.InFamilyOf(topology.Addrs(addresses), like)
	return address
}

// blocks are the peers of a NetworkPolicy with these addresses.
func blocks(addresses []netip.Prefix) string {
	var peers []string
	for _, a := range topology.Addrs(addresses) {
		peers = append(peers, fmt.Sprintf("{ipBlock: {cidr: %q}}", netip.PrefixFrom(a, a.BitLen())))
	}
	return strings.Join(peers, ", ")
}

// clientSeen returns the address that an outside host sees for a pod.
func clientSeen(ctx context.Context, pod *corev1.Pod, host netip.Addr) netip.Addr {
	from, _ := netip.ParseAddrPort(strings.TrimSpace(fetchFrom(ctx, fromPod(pod), netip.AddrPortFrom(host, topology.OutsidePort), "/clientip")))
	return from.Addr()
}

// direct reports whether packets of a pod reach an address without a router.
func direct(ctx context.Context, pod *corev1.Pod, address netip.Addr) bool {
	_, err := suite.Cluster.Exec(ctx, pod, "ping", "-c", "2", "-W", "1", "-t", "1", address.String())
	return err == nil
}

// nodePortOf makes a Service of a pod, with a node port.
func nodePortOf(ctx context.Context, pod *corev1.Pod) *corev1.Service {
	GinkgoHelper()
	s, err := suite.Cluster.CoreV1().Services(pod.Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: pod.Labels, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)}},
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return s
}
