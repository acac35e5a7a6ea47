// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/test/cluster"
	"github.com/kiln-net/kiln/test/oracle"
)

const (
	serviceNamespace = "e2e-services"
	udpPort          = 8081
)

var _ = Describe("Services", Ordered, ContinueOnFailure, func() {
	var near, far *corev1.Pod // the servers, one on each worker
	BeforeAll(func(ctx SpecContext) {
		if suite.Lab.KubeProxy() {
			Skip("kube-proxy serves the nodes of this lab")
		}
		makeNamespace(ctx, serviceNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, serviceNamespace) }, NodeTimeout(4*time.Minute))
		near, far = serverOf(ctx, "near", suite.Workers[0]), serverOf(ctx, "far", suite.Workers[1])
	}, NodeTimeout(3*time.Minute))

	It("are reached by address and node port from pods, nodes and outside", Label(smoke), func(ctx SpecContext) {
		s := serviceOf(ctx, "both", func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalIPs = corev1.ServiceTypeNodePort, []string{"192.0.2.80", "2001:db8::80"}
		})
		for _, like := range cluster.PodAddrs(near) {
			var fronts []netip.AddrPort
			for _, address := range append(slices.Clone(s.Spec.ClusterIPs), s.Spec.ExternalIPs...) {
				if a := netip.MustParseAddr(address); a.Is4() == like.Is4() {
					fronts = append(fronts, netip.AddrPortFrom(a, 80))
				}
			}
			for _, node := range []string{suite.Workers[0], suite.Workers[1], controlPlane()} {
				port := netip.AddrPortFrom(addressOfNode(ctx, node, like), uint16(s.Spec.Ports[0].NodePort))
				fronts = append(fronts, port)
				servedBy(ctx, fromOutside, port, "near", "far")
			}
			for _, front := range fronts {
				servedBy(ctx, fromNode(suite.Workers[0]), front, "near", "far")
				servedBy(ctx, fromPod(near), front, "near", "far") // also its own endpoint
			}
		}
	}, SpecTimeout(4*time.Minute))

	It("refuse connections without endpoints, and to unknown ports", Label(smoke), func(ctx SpecContext) {
		s := serviceOf(ctx, "none", func(s *corev1.ServiceSpec) {
			s.Type, s.Selector = corev1.ServiceTypeNodePort, map[string]string{"app": "nobody"}
		})
		for _, like := range cluster.PodAddrs(near) {
			front := frontOf(s, like)
			for _, from := range []origin{fromPod(near), fromNode(suite.Workers[0])} {
				refused(ctx, from, front)
				refused(ctx, from, netip.AddrPortFrom(front.Addr(), 81))
			}
			refused(ctx, fromOutside, netip.AddrPortFrom(addressOfNode(ctx, suite.Workers[0], like), uint16(s.Spec.Ports[0].NodePort)))
		}
	}, SpecTimeout(3*time.Minute))

	It("keep a client's address and its endpoint, as the sample says", Label(smoke), func(ctx SpecContext) {
		s := sampleService(ctx)
		only := serverOf(ctx, "only", suite.Workers[0], "web")
		for _, like := range cluster.PodAddrs(only) {
			client, _ := cluster.InFamilyOf(suite.Lab.OutsideAddresses(), like)
			here := netip.AddrPortFrom(addressOfNode(ctx, suite.Workers[0], like), uint16(s.Spec.Ports[0].NodePort))
			Eventually(func() string { return fetchFrom(ctx, fromOutside, here, "/clientip") }).WithContext(ctx).
				WithTimeout(30*time.Second).Should(HavePrefix(strings.Trim(netip.AddrPortFrom(client, 0).String(), "0")), "the endpoint sees the client")
			for _, node := range []string{suite.Workers[1], controlPlane()} {
				own := strings.Trim(netip.AddrPortFrom(addressOfNode(ctx, node, like), 0).String(), "0")
				Eventually(func() string { return fetchFrom(ctx, fromNode(node), here, "/clientip") }).WithContext(ctx).
					WithTimeout(30*time.Second).Should(HavePrefix(own), "the endpoint sees the other node")
			}
			there := netip.AddrPortFrom(addressOfNode(ctx, suite.Workers[1], like), here.Port())
			silent(ctx, fromOutside, there, opens(ctx, fromOutside, here)) // a node without an endpoint
		}
		second := serverOf(ctx, "second", suite.Workers[0], "web")
		for _, like := range cluster.PodAddrs(second) {
			front := netip.AddrPortFrom(addressOfNode(ctx, suite.Workers[0], like), uint16(s.Spec.Ports[0].NodePort))
			for _, c := range []struct {
				origin
				to netip.AddrPort
			}{{fromOutside, front}, {fromPod(near), frontOf(s, like)}} {
				first := answerOf(ctx, c.origin, c.to) // the spec below tests the first connection of a client
				for range 10 {
					Expect(connectsAtOnce(ctx, c.origin, c.to)).To(Equal(first))
				}
			}
		}
	}, SpecTimeout(4*time.Minute))

	rollingUpdate := func(ctx SpecContext) map[string][]oracle.Connection {
		GinkgoHelper()
		d := deploymentOf(ctx, "rolling", 3)
		DeferCleanup(func(ctx SpecContext) {
			Expect(suite.Cluster.AppsV1().Deployments(serviceNamespace).Delete(ctx, d.Name, metav1.DeleteOptions{})).To(Succeed())
		}, NodeTimeout(time.Minute))
		s := serviceOf(ctx, "rolling", func(s *corev1.ServiceSpec) {
			s.Type, s.Selector = corev1.ServiceTypeNodePort, map[string]string{"app": "rolling"}
		})
		nodePort := netip.AddrPortFrom(addressOfNode(ctx, suite.Workers[0], near4(near)), uint16(s.Spec.Ports[0].NodePort))
		clients := map[string]struct {
			origin
			to netip.AddrPort
		}{
			"a pod": {fromPod(near), frontOf(s, near4(near))}, "a node": {fromNode(suite.Workers[0]), frontOf(s, near4(near))}, "outside": {fromOutside, nodePort},
		}
		dialers := map[string]*dialer{}
		for name, c := range clients {
			Eventually(func() string { return fetchFrom(ctx, c.origin, c.to, "/hostname") }).WithContext(ctx).WithTimeout(30 * time.Second).ShouldNot(BeEmpty())
			dialers[name] = startConnections(ctx, c.origin, c.to)
		}
		replace(ctx, d)
		connections := map[string][]oracle.Connection{}
		for name, dialer := range dialers {
			connections[name] = dialer.connections(ctx)
			Expect(len(connections[name])).To(BeNumerically(">", 10), name)
		}
		return connections
	}

	It("lose no connection while a Deployment is replaced", Label(timed), func(ctx SpecContext) {
		for name, connections := range rollingUpdate(ctx) {
			Expect(oracle.Failed(connections)).To(BeEmpty(), name)
		}
	}, SpecTimeout(4*time.Minute))

	// Known defect: about one SYN in 40 is lost while pods of the Service start and end, even when all are on the client's node, so
	// that a connection takes a second. `make test-e2e` skips this label until the defect is fixed.
	It("lose no SYN while a Deployment is replaced", Label(timed, knownDefect), func(ctx SpecContext) {
		for name, connections := range rollingUpdate(ctx) {
			Expect(oracle.Lost(connections, lossLimit())).To(BeEmpty(), name)
		}
	}, SpecTimeout(4*time.Minute))

	It("answer the first connection of a client with session affinity", Label(smoke), func(ctx SpecContext) {
		s := serviceOf(ctx, "sticky", func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })
		first := serverOf(ctx, "asks-first-time", suite.Workers[0], "client")
		for _, like := range cluster.PodAddrs(near) {
			answerOf(ctx, fromPod(far), frontOf(s, like)) // waits until OVN has the Service
			Expect(connectsAtOnce(ctx, fromPod(first), frontOf(s, like))).To(BeElementOf("near", "far"))
		}
	}, SpecTimeout(2*time.Minute))

	It("do not leave clients of UDP with a removed endpoint", func(ctx SpecContext) {
		serverOf(ctx, "leaves", suite.Workers[1], "udp")
		s := serviceOf(ctx, "udp", func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "udp"} })
		for _, from := range []origin{fromPod(near), fromNode(suite.Workers[0])} {
			front := frontOf(s, near4(near))
			heard, hangUp := talkUDP(ctx, from, front)
			Eventually(heard).WithContext(ctx).WithTimeout(30 * time.Second).Should(ContainSubstring("leaves"))
			serverOf(ctx, "stays", suite.Workers[0], "udp")
			removePods(ctx, serviceNamespace, "leaves")
			Eventually(heard).WithContext(ctx).WithTimeout(30 * time.Second).Should(ContainSubstring("stays"))
			hangUp(ctx)
			serverOf(ctx, "leaves", suite.Workers[1], "udp")
			removePods(ctx, serviceNamespace, "stays")
		}
	}, SpecTimeout(5*time.Minute))

	switchSpecs(&near, &far)
})
