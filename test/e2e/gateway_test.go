// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	gatewayNamespace = "e2e-gateway"
	gatewayLabel     = "network.example.com/gateway" // as in config/samples/subnet_centralized.yaml
	outsideRouter    = "router"
	// failover is the time after which the traffic of a dead node uses another node (docs/user/gateways.md, docs/user/vpcs.md).
	failover = 10 * time.Second
)

var _ = Describe("gateways", Ordered, ContinueOnFailure, func() {
	BeforeAll(func(ctx SpecContext) {
		makeNamespace(ctx, gatewayNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, gatewayNamespace) }, NodeTimeout(4*time.Minute))
	})

	It("moves to another node when the kubelet and the Open vSwitch of its node die", Label(timed, disruptive, mayRestart), func(ctx SpecContext) {
		active, backup, bystander := suite.Workers[1], controlPlane(), suite.Workers[0]
		subnet := sampleSubnet(ctx, "subnet_centralized.yaml", func(s *kubeovnv1.SubnetSpec) {
			s.GatewayNode = active + "," + backup
		})
		pod := podOf(ctx, subnet, "client", bystander)
		for _, like := range cluster.PodAddrs(pod) {
			expectSeen(ctx, pod, like, addressOfNode(ctx, active, like))
		}
		expectLeases(ctx, active, backup)
		DeferCleanup(func(ctx SpecContext) { reviveNode(ctx, active) }, NodeTimeout(time.Minute))
		died := time.Now()
		killNode(ctx, active)
		for _, like := range cluster.PodAddrs(pod) {
			expectSeen(ctx, pod, like, addressOfNode(ctx, backup, like))
			within(died, failover, "gateway dead → traffic through the other one, "+like.String())
		}
		expectActive(ctx, subnet.Name, backup)
		reviveNode(ctx, active)
		expectActive(ctx, subnet.Name, active)
		for _, like := range cluster.PodAddrs(pod) {
			expectSeen(ctx, pod, like, addressOfNode(ctx, active, like))
		}
	}, SpecTimeout(6*time.Minute))

	It("spreads connections over all gateway nodes with enableEcmp", Label(smoke), func(ctx SpecContext) {
		for _, node := range suite.Workers[:2] {
			label(ctx, node, "yes")
			DeferCleanup(func(ctx SpecContext) { label(ctx, node, "") }, NodeTimeout(time.Minute))
		}
		subnet := sampleSubnet(ctx, "subnet_centralized.yaml", func(s *kubeovnv1.SubnetSpec) { s.EnableECMP = true })
		expectActive(ctx, subnet.Name, strings.Join(suite.Workers[:2], ","))
		pod := podOf(ctx, subnet, "client", suite.Workers[0])
		for _, like := range cluster.PodAddrs(pod) {
			seen := map[string]bool{}
			Eventually(func() int {
				if from, err := seenBy(ctx, pod, like); err == nil {
					seen[from.String()] = true
				}
				return len(seen)
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(50*time.Millisecond).Should(Equal(2), "of %v", seen)
		}
		label(ctx, suite.Workers[1], "")
		expectActive(ctx, subnet.Name, suite.Workers[0])
		for _, like := range cluster.PodAddrs(pod) {
			for range 5 {
				expectSeen(ctx, pod, like, addressOfNode(ctx, suite.Workers[0], like))
			}
		}
	}, SpecTimeout(4*time.Minute))

	It("shows a fixed address outside", Label(smoke), func(ctx SpecContext) {
		subnet := sampleSubnet(ctx, "subnet_egress_address.yaml", nil)
		pod := podOf(ctx, subnet, "client", suite.Workers[1])
		for _, like := range cluster.PodAddrs(pod) {
			expectSeen(ctx, pod, like, map[bool]netip.Addr{
				true: netip.MustParseAddr("172.30.0.201"), false: netip.MustParseAddr("fd00:172:30::c9"),
			}[like.Is4()])
		}
	}, SpecTimeout(3*time.Minute))

	It("translates or not by rules", Label(smoke), func(ctx SpecContext) {
		subnet := sampleSubnet(ctx, "subnet_nat_rules.yaml", nil)
		wayBack(ctx, subnet, suite.Workers[0], "eth0")
		pod := podOf(ctx, subnet, "client", suite.Workers[0])
		for _, like := range cluster.PodAddrs(pod) {
			expectSeen(ctx, pod, like, like)
		}
		change(ctx, subnet, func(s *kubeovnv1.SubnetSpec) {
			s.NATOutgoingPolicyRules[1].Action = kubeovnv1.NATOutgoingPolicyNAT
		})
		for _, like := range cluster.PodAddrs(pod) {
			expectSeen(ctx, pod, like, addressOfNode(ctx, suite.Workers[0], like))
		}
	}, SpecTimeout(3*time.Minute))

	It("leaves through a router outside", Label(smoke), func(ctx SpecContext) {
		node := suite.Workers[0]
		withExternalNetwork(ctx, node)
		subnet := sampleSubnet(ctx, "subnet_external_gateway.yaml", nil)
		wayBack(ctx, subnet, node, "eth2")
		pod := podOf(ctx, subnet, "client", suite.Workers[1])
		for _, like := range cluster.PodAddrs(pod) {
			expectSeen(ctx, pod, like, like)
			outside, _ := cluster.InFamilyOf(suite.Outside, like)
			Expect(exec(ctx, node, "ip", "route", "get", outside.String(), "from", like.String(), "iif", "ovn0")).To(ContainSubstring("dev eth2"))
		}
		change(ctx, subnet, func(s *kubeovnv1.SubnetSpec) { s.ExternalEgressGateway = "" })
		Eventually(func() string { return exec(ctx, node, "ip", "rule", "list", "table", "1000") }).
			WithContext(ctx).WithTimeout(30 * time.Second).Should(BeEmpty())
	}, SpecTimeout(3*time.Minute))

})

// withExternalNetwork gives a node addresses in the network of the sample with an external gateway, until the spec ends.
func withExternalNetwork(ctx context.Context, node string) {
	GinkgoHelper()
	for i, family := range []string{"-4", "-6"} {
		address := []string{"172.28.0.101/24", "fd00:172:28::65/64"}[i]
		exec(ctx, node, "ip", family, "address", "replace", address, "dev", "eth2", "nodad")
		DeferCleanup(func(ctx SpecContext) { exec(ctx, node, "ip", family, "address", "del", address, "dev", "eth2") }, NodeTimeout(time.Minute))
	}
	exec(ctx, node, "ip", "link", "set", "eth2", "up")
}

// sampleSubnet applies a sample, optionally changed by f, and waits until the subnet is Ready. It is deleted when the spec ends.
func sampleSubnet(ctx context.Context, file string, f func(*kubeovnv1.SubnetSpec)) *kubeovnv1.Subnet {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "samples", file))
	Expect(err).NotTo(HaveOccurred())
	subnet := &kubeovnv1.Subnet{}
	Expect(yaml.UnmarshalStrict(text, subnet)).To(Succeed())
	if f != nil {
		f(&subnet.Spec)
	}
	Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		pods := suite.Cluster.CoreV1().Pods(gatewayNamespace)
		Expect(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})).To(Succeed())
		Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, subnet))).To(Succeed())
		Eventually(func() bool {
			return client.IgnoreNotFound(suite.Objects.Get(ctx, client.ObjectKeyFromObject(subnet), &kubeovnv1.Subnet{})) == nil &&
				suite.Objects.Get(ctx, client.ObjectKeyFromObject(subnet), &kubeovnv1.Subnet{}) != nil
		}).WithContext(ctx).WithTimeout(2*time.Minute).WithPolling(time.Second).Should(BeTrue(), "subnet %s is not gone", subnet.Name)
	}, NodeTimeout(3*time.Minute))
	Eventually(func(g Gomega) {
		g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(subnet), subnet)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(subnet.Status.Conditions, kubeovnv1.ConditionReady)).To(BeTrue())
	}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
	return subnet
}

func change(ctx context.Context, subnet *kubeovnv1.Subnet, f func(*kubeovnv1.SubnetSpec)) {
	GinkgoHelper()
	Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(subnet), subnet)).To(Succeed())
	base := subnet.DeepCopy()
	f(&subnet.Spec)
	Expect(suite.Objects.Patch(ctx, subnet, client.MergeFrom(base))).To(Succeed())
}

// podOf runs a pod of a subnet on a node.
func podOf(ctx context.Context, subnet *kubeovnv1.Subnet, name, node string) *corev1.Pod {
	GinkgoHelper()
	pod := cluster.Server(gatewayNamespace, subnet.Name+"-"+name, node)
	pod.Annotations = map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): subnet.Name}
	ready, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	return ready
}

// seenBy returns the source address that the outside host sees for a pod, in the family of like. It takes at most two seconds.
func seenBy(ctx context.Context, pod *corev1.Pod, like netip.Addr) (netip.Addr, error) {
	host, ok := cluster.InFamilyOf(suite.Outside, like)
	if !ok {
		return netip.Addr{}, fmt.Errorf("the outside host has no address like %s", like)
	}
	url := fmt.Sprintf("http://%s/clientip", netip.AddrPortFrom(host, uint16(suite.OutsidePort)))
	out, err := suite.Cluster.Exec(ctx, pod, "curl", "--silent", "--globoff", "--max-time", "2", url)
	if err != nil {
		return netip.Addr{}, err
	}
	from, err := netip.ParseAddrPort(strings.TrimSpace(out))
	return from.Addr(), err
}

func expectSeen(ctx context.Context, pod *corev1.Pod, like, want netip.Addr) {
	GinkgoHelper()
	Eventually(func() (netip.Addr, error) { return seenBy(ctx, pod, like) }).
		WithContext(ctx).WithTimeout(90 * time.Second).WithPolling(200 * time.Millisecond).Should(Equal(want))
}

func expectActive(ctx context.Context, subnet, nodes string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		s := &kubeovnv1.Subnet{}
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: subnet}, s)).To(Succeed())
		g.Expect(s.Status.ActivateGateway).To(Equal(nodes))
		g.Expect(meta.IsStatusConditionTrue(s.Status.Conditions, kubeovnv1.ConditionGatewayReady)).To(BeTrue())
	}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Succeed())
}

func controlPlane() string { return suite.Lab.Nodes()[0].Name }

func addressOfNode(ctx context.Context, node string, like netip.Addr) netip.Addr {
	GinkgoHelper()
	n, err := suite.Cluster.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	address, ok := cluster.InFamilyOf(cluster.NodeAddrs(n), like)
	Expect(ok).To(BeTrue())
	return address
}

// exec runs a command on a machine of the lab.
func exec(ctx context.Context, machine string, command ...string) string {
	GinkgoHelper()
	out, err := suite.Node.Exec(ctx, machine, command...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// supervisors are the processes of a node that would restart its Open vSwitch, and the kubelet.
const supervisors = `$(pidof kubelet) $(pgrep -f '^/usr/bin/kiln ovs( |$)')`

// killNode stops the kubelet of a node and kills its Open vSwitch. Nothing restarts them until reviveNode.
func killNode(ctx context.Context, node string) {
	GinkgoHelper()
	exec(ctx, node, "bash", "-c", "kill -STOP "+supervisors+" && kill -KILL $(pidof ovs-vswitchd ovn-controller ovsdb-server)")
}

func reviveNode(ctx context.Context, node string) {
	GinkgoHelper()
	exec(ctx, node, "bash", "-c", "kill -CONT "+supervisors)
}

// wayBack adds routes to a subnet through a node to the outside router, until the spec ends.
func wayBack(ctx context.Context, subnet *kubeovnv1.Subnet, node, device string) {
	GinkgoHelper()
	for cidr := range strings.SplitSeq(subnet.Spec.CIDRBlock, ",") {
		family := "-4"
		if strings.Contains(cidr, ":") {
			family = "-6"
		}
		fields := strings.Fields(exec(ctx, node, "ip", family, "--oneline", "address", "show", "dev", device, "scope", "global"))
		i := slices.IndexFunc(fields, func(f string) bool { return f == "inet" || f == "inet6" })
		Expect(i).To(BeNumerically(">", 0))
		via, _, _ := strings.Cut(fields[i+1], "/")
		exec(ctx, outsideRouter, "ip", family, "route", "replace", cidr, "via", via)
		DeferCleanup(func(ctx SpecContext) { exec(ctx, outsideRouter, "ip", family, "route", "del", cidr) }, NodeTimeout(time.Minute))
	}
}

// label sets the label of gateway nodes, or removes it when value is "".
func label(ctx context.Context, node, value string) {
	GinkgoHelper()
	n := &corev1.Node{}
	Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: node}, n)).To(Succeed())
	base := n.DeepCopy()
	if value == "" {
		delete(n.Labels, gatewayLabel)
	} else {
		n.Labels[gatewayLabel] = value
	}
	Expect(suite.Objects.Patch(ctx, n, client.MergeFrom(base))).To(Succeed())
}
