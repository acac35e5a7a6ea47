// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	watching "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/test/cluster"
)

// singleNIC is the label of specs for a lab whose nodes have eth0 only: `make underlay-single-nic`.
const singleNIC = "single-nic"

// kubeletNIC is the label of specs that move eth0, in a lab whose tunnels use another interface: `make underlay-single-nic`.
const kubeletNIC = "kubelet-nic"

// The interface has the addresses of the kubelet, the default routes and the tunnels, and two VLANs.
var _ = Describe("nodes with one interface", Label(singleNIC, mayRestart), Ordered, ContinueOnFailure, func() {
	first, second := topology.VLANs[1], topology.VLANs[2]
	// network returns the provider network, and the interface that has the nodes' addresses before it: in the userspace datapath, br-phy has taken them over.
	network := func() (provider *kubeovnv1.ProviderNetwork, addressed string) {
		provider = &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: underlayProvider}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth0"}}
		if suite.Lab.KernelDatapath() {
			provider.Spec.NodeInterface = kubeovnv1.NodeInterfaceStatic
			return provider, "eth0"
		}
		return provider, "br-phy"
	}

	It("stay reachable while a provider network gets and loses the interface, whose VLANs connect pods", Label(timed), func(ctx SpecContext) {
		Expect(suite.Lab.SingleNIC()).To(BeTrue(), "make underlay-single-nic brings such a lab up")
		provider, addressed := network()
		before := map[string]string{}
		for _, n := range suite.Lab.Nodes() {
			before[n.Name] = uplinkState(ctx, n.Name, addressed)
		}
		nodes := watchNodes(ctx)
		connectVLANs(ctx, provider, first, second)
		nodes.expectReached(ctx)
		here, there, other := serve(ctx, first.Name, "here", 0), serve(ctx, first.Name, "there", 1), serve(ctx, second.Name, "other", 0)
		expectVLANs(ctx, here, there, other)
		expectServices(ctx, there, here, other)
		removePods(ctx, first.Name)
		removePods(ctx, second.Name)
		nodes = watchNodes(ctx)
		disconnectVLANs(ctx, provider, first, second)
		nodes.expectReached(ctx)
		for node, state := range before {
			Eventually(uplinkState).WithContext(ctx).WithArguments(node, addressed).WithTimeout(30*time.Second).Should(Equal(state), node)
		}
	}, SpecTimeout(10*time.Minute))

	DescribeTable("connect pods again after a kill", Label(timed, disruptive), func(ctx SpecContext, daemon string) {
		kill := func() { // a pod can be reported as ready for a moment after the last kill
			Eventually(func() error { return suite.kill(ctx, daemonOf(ctx, daemon, suite.Workers[0])) }).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		}
		provider, _ := network()
		connectVLANs(ctx, provider, first, second)
		kill() // while the provider network is removed
		disconnectVLANs(ctx, provider, first, second)
		kill() // while it is made
		provider, _ = network()
		connectVLANs(ctx, provider, first, second)
		here, there, other := serve(ctx, first.Name, "here", 0), serve(ctx, first.Name, "there", 1), serve(ctx, second.Name, "other", 0)
		expectVLANs(ctx, here, there, other)
		watchNodes(ctx).expectReached(ctx)
	},
		Entry("of kiln ovs", "ovs-ovn", SpecTimeout(10*time.Minute)),
		Entry("of the agent", "kube-ovn-cni", SpecTimeout(10*time.Minute)),
	)

	It("get addresses, routes, MTU and neighbours back when Kiln is removed", Label(disruptive), func(ctx SpecContext) {
		remove(ctx)
		for node, state := range nodeStates(ctx) {
			Expect(state).To(Equal(bare[node]), node)
		}
	}, SpecTimeout(5*time.Minute))
})

// eth0 has the addresses of the kubelet and the default routes; tunnels use eth1.
var _ = Describe("the interface of the kubelet", Label(kubeletNIC, disruptive, mayRestart), Ordered, ContinueOnFailure, func() {
	first, second := topology.VLANs[1], topology.VLANs[2]
	provider := &kubeovnv1.ProviderNetwork{}
	before := map[string]string{}
	// onNodes makes the ProviderNetwork a new one, on these nodes.
	onNodes := func(names ...string) {
		*provider = kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: underlayProvider}, Spec: kubeovnv1.ProviderNetworkSpec{
			DefaultInterface: "eth0", NodeInterface: kubeovnv1.NodeInterfaceStatic,
			NodeSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpIn, Values: names},
			}},
		}}
	}
	asBefore := func(ctx context.Context) {
		GinkgoHelper()
		for node, state := range before {
			Eventually(uplinkState).WithContext(ctx).WithArguments(node, "eth0").WithTimeout(time.Minute).Should(Equal(state), node)
		}
	}

	BeforeAll(func(ctx SpecContext) {
		for _, n := range suite.Lab.Nodes() {
			exec(ctx, n.Name, "ip", "neighbour", "replace", "172.30.0.77", "lladdr", "02:00:00:00:00:77", "dev", "eth0", "nud", "permanent")
			before[n.Name] = uplinkState(ctx, n.Name, "eth0")
		}
	}, NodeTimeout(time.Minute))

	It("moves node by node under traffic, and returns; meanwhile VLANs connect pods", Label(timed), func(ctx SpecContext) {
		onNodes(append(slices.Clone(suite.Workers), controlPlane())...)
		nodes := watchNodes(ctx)
		connectVLANs(ctx, provider, first, second)
		nodes.expectReached(ctx)
		for _, n := range suite.Lab.Nodes() {
			Expect(exec(ctx, n.Name, "ip", "-o", "address", "show", "dev", "br-net1")).To(ContainSubstring(n.Addresses()[0].String()))
		}
		here, there, other := serve(ctx, first.Name, "here", 0), serve(ctx, first.Name, "there", 1), serve(ctx, second.Name, "other", 0)
		expectVLANs(ctx, here, there, other)
		expectServices(ctx, there, here, other)
		removePods(ctx, first.Name)
		removePods(ctx, second.Name)
		nodes = watchNodes(ctx)
		disconnectVLANs(ctx, provider, first, second)
		nodes.expectReached(ctx)
		asBefore(ctx)
	}, SpecTimeout(10*time.Minute))

	DescribeTable("moves after a kill in the middle", Label(timed), func(ctx SpecContext, daemon string) {
		node := suite.Workers[0]
		onNodes(node)
		killed := inMove(ctx, node, addressOfNode(ctx, node, netip.IPv4Unspecified()).String(), `pkill -KILL -f "^/usr/bin/`+daemon+`( |$)"`, "")
		Expect(suite.Objects.Create(ctx, provider)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, provider) }, NodeTimeout(2*time.Minute))
		Eventually(killed).WithContext(ctx).WithTimeout(time.Minute).Should(BeTrue(), "%s was killed in the trial", daemon)
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(provider), provider)).To(Succeed())
			g.Expect(provider.Status.Ready).To(BeTrue(), "%+v", provider.Status)
		}).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Succeed())
		Expect(exec(ctx, node, "ip", "-o", "address", "show", "dev", "br-net1")).To(ContainSubstring(addressOfNode(ctx, node, netip.IPv4Unspecified()).String()))
		watchNodes(ctx).expectReached(ctx)
		deleteObjects(ctx, provider)
		asBefore(ctx)
	},
		Entry("of kiln ovs", "kiln ovs", SpecTimeout(6*time.Minute)),
		Entry("of the agent", "kiln agent", SpecTimeout(6*time.Minute)),
	)

	It("returns by itself if Open vSwitch does not come back", func(ctx SpecContext) {
		node := suite.Workers[0]
		onNodes(node)
		address := addressOfNode(ctx, node, netip.IPv4Unspecified()).String()
		killed := inMove(ctx, node, address, "pkill -KILL -x ovs-vswitchd", `for i in $(seq 600); do pkill -KILL -x ovs-vswitchd; pkill -KILL -f "^/usr/bin/kiln ovs( |$)"; sleep 0.1; done`)
		Expect(suite.Objects.Create(ctx, provider)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, provider) }, NodeTimeout(2*time.Minute))
		Eventually(killed).WithContext(ctx).WithTimeout(time.Minute).Should(BeTrue(), "ovs-vswitchd was killed in the trial")
		Eventually(addressesOn).WithContext(ctx).WithArguments(node, "br-net1").WithTimeout(time.Minute).ShouldNot(ContainSubstring(address + "/"))
		Expect(addressesOn(ctx, node, "eth0")).To(ContainSubstring(address + "/"))
		for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			exec(ctx, suite.Workers[1], "ping", "-c", "1", "-w", "30", addressOfNode(ctx, node, a).String())
		}
	}, SpecTimeout(6*time.Minute))
})

// inMove runs the command kill on a node as soon as the bridge of the provider network has an address of the node, which is in the trial of the move, and
// after it the command next. The returned function reports whether kill has succeeded: pkill fails if no process matches.
func inMove(ctx context.Context, node, address, kill, next string) func(context.Context) bool {
	GinkgoHelper()
	marker := fmt.Sprintf("/run/in-move-%d", time.Now().UnixNano())
	exec(ctx, node, "sh", "-c", `setsid sh -c 'until ip -o address show dev br-net1 2>/dev/null | grep -qF " $0/"; do sleep 0.01; done; '"$2"' && touch $1; '"$3" "$0" "$1" </dev/null >/dev/null 2>&1 &`,
		address, marker, kill, next)
	return func(ctx context.Context) bool {
		_, err := suite.Node.Exec(ctx, node, "ls", marker)
		return err == nil
	}
}

// addressesOn prints the addresses of an interface of a node.
func addressesOn(ctx context.Context, node, link string) (string, error) {
	return suite.Node.Exec(ctx, node, "ip", "-o", "address", "show", "dev", link)
}

// daemonOf returns the pod of a DaemonSet on a node.
func daemonOf(ctx context.Context, daemon, node string) (pod *corev1.Pod) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pods, err := suite.Cluster.PodsOf(ctx, daemon)
		g.Expect(err).NotTo(HaveOccurred())
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node && cluster.Ready(&p) })
		g.Expect(i).NotTo(Equal(-1))
		pod = &pods[i]
	}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Succeed())
	return pod
}

// flowPort is the port of the servers on nodes to which watchNodes connects.
const flowPort = 9099

// longestMove is the longest gap of a flow to a node while its interface becomes part of a provider network.
const longestMove = time.Second

// nodesWatch are flows from the outside host to all nodes, and watches of the API.
type nodesWatch struct {
	flows *watch
	api   watching.Interface
}

// watchNodes starts pings and TCP connections to the nodes in both families, and a watch of the nodes' Leases.
func watchNodes(ctx context.Context) *nodesWatch {
	GinkgoHelper()
	var list []*watched
	for _, n := range suite.Lab.Nodes() {
		exec(ctx, n.Name, "sh", "-c", fmt.Sprintf("pidof -q agnhost && pgrep -f http-port=%d >/dev/null || setsid agnhost netexec --http-port=%[1]d --udp-port=-1 </dev/null >/dev/null 2>&1 &", flowPort))
		for _, a := range n.Addresses() {
			list = append(list, &watched{name: fmt.Sprintf("ping to %s, %s", n.Name, a), protocol: icmp, target: netip.AddrPortFrom(a, 0)},
				&watched{name: fmt.Sprintf("TCP to %s, %s", n.Name, a), protocol: tcp, target: netip.AddrPortFrom(a, flowPort)})
		}
	}
	for _, f := range list {
		if f.protocol == tcp {
			answerOf(ctx, fromOutside, f.target)
		}
	}
	api, err := suite.Cluster.CoordinationV1().Leases("kube-node-lease").Watch(context.WithoutCancel(ctx), metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(api.Stop)
	return &nodesWatch{flows: startWatch(ctx, fromOutside, list), api: api}
}

// expectReached ends the flows, reports what they lost, and expects that no connection and no watch ended and no gap was long.
func (w *nodesWatch) expectReached(ctx context.Context) {
	GinkgoHelper()
	seen := w.flows.end(ctx)
	Expect(seen.ofTCP().losses()).To(BeEmpty())
	Expect(seen.gapsLongerThan(longestMove)).To(BeEmpty())
	waiting := map[string]bool{}
	for _, n := range suite.Lab.Nodes() {
		waiting[n.Name] = true
	}
	for begun := time.Now(); len(waiting) > 0; { // each kubelet renews its Lease every 10 s
		select {
		case e, open := <-w.api.ResultChan():
			Expect(open).To(BeTrue(), "the watch of the API has ended")
			if lease, ok := e.Object.(*coordinationv1.Lease); ok && lease.Spec.RenewTime.After(begun) {
				delete(waiting, lease.Name)
			}
		case <-ctx.Done():
			Fail(fmt.Sprintf("the watch of the API has no new Lease of %v", waiting))
		}
	}
}
