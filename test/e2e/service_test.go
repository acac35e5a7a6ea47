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
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/test/cluster"
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

	It("are reached by address and node port from pods, nodes and outside", func(ctx SpecContext) {
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
				servedBy(ctx, fromPod(near), front, "near", "far") // itself as well
			}
		}
	}, SpecTimeout(4*time.Minute))

	It("refuse what has no endpoints, and what is no port of them", func(ctx SpecContext) {
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

	It("keep a client's address and its endpoint, as the sample says", func(ctx SpecContext) {
		s := sampleService(ctx)
		only := serverOf(ctx, "only", suite.Workers[0], "web")
		for _, like := range cluster.PodAddrs(only) {
			client, _ := cluster.InFamilyOf(suite.Lab.OutsideAddresses(), like)
			here := netip.AddrPortFrom(addressOfNode(ctx, suite.Workers[0], like), uint16(s.Spec.Ports[0].NodePort))
			Eventually(func() string { return fetchFrom(ctx, fromOutside, here, "/clientip") }).WithContext(ctx).
				WithTimeout(30*time.Second).Should(HavePrefix(strings.Trim(netip.AddrPortFrom(client, 0).String(), "0")), "the endpoint sees the client")
			there := netip.AddrPortFrom(addressOfNode(ctx, suite.Workers[1], like), here.Port())
			Expect(fetchFrom(ctx, fromOutside, there, "/hostname")).To(BeEmpty(), "a node without an endpoint")
		}
		second := serverOf(ctx, "second", suite.Workers[0], "web")
		for _, like := range cluster.PodAddrs(second) {
			front := netip.AddrPortFrom(addressOfNode(ctx, suite.Workers[0], like), uint16(s.Spec.Ports[0].NodePort))
			first := fetchFrom(ctx, fromOutside, front, "/hostname")
			for range 10 {
				Expect(fetchFrom(ctx, fromOutside, front, "/hostname")).To(Equal(first))
			}
			inside := fetchFrom(ctx, fromPod(near), frontOf(s, like), "/hostname")
			for range 10 {
				Expect(fetchFrom(ctx, fromPod(near), frontOf(s, like), "/hostname")).To(Equal(inside))
			}
		}
	}, SpecTimeout(4*time.Minute))

	It("tell load balancers which nodes have endpoints", func(ctx SpecContext) {
		s := serviceOf(ctx, "checked", func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
			s.Selector = map[string]string{"name": "near"}
		})
		for node, want := range map[string]string{suite.Workers[0]: "200", suite.Workers[1]: "503"} {
			check := netip.AddrPortFrom(addressOfNode(ctx, node, near4(near)), uint16(s.Spec.HealthCheckNodePort))
			Eventually(func() string {
				out, _ := fromOutside(ctx, "timeout", "5", "bash", "-c", httpFetch, "http", check.Addr().String(), strconv.Itoa(int(check.Port())), "/healthz")
				return out
			}).WithContext(ctx).WithTimeout(30*time.Second).Should(ContainSubstring(" "+want+" "), node)
		}
	}, SpecTimeout(2*time.Minute))

	It("lead nodes to endpoints of their own where internalTrafficPolicy is Local", func(ctx SpecContext) {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s := serviceOf(ctx, "local", func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &local })
		for _, like := range cluster.PodAddrs(near) {
			servedBy(ctx, fromNode(suite.Workers[0]), frontOf(s, like), "near")
			servedBy(ctx, fromNode(suite.Workers[1]), frontOf(s, like), "far")
			servedBy(ctx, fromPod(near), frontOf(s, like), "near")
			servedBy(ctx, fromPod(far), frontOf(s, like), "far")
			Expect(fetchFrom(ctx, fromNode(controlPlane()), frontOf(s, like), "/hostname")).To(BeEmpty())
		}
	}, SpecTimeout(3*time.Minute))

	It("do not leave clients of UDP with an endpoint that is gone", func(ctx SpecContext) {
		serverOf(ctx, "leaves", suite.Workers[1], "udp")
		s := serviceOf(ctx, "udp", func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "udp"} })
		for _, from := range []origin{fromPod(near), fromNode(suite.Workers[0])} {
			front := frontOf(s, near4(near))
			Eventually(func() string { return talkUDP(ctx, from, front, 1) }).WithContext(ctx).WithTimeout(30 * time.Second).Should(ContainSubstring("leaves"))
			heard := make(chan string, 1)
			go func() {
				defer GinkgoRecover()
				heard <- talkUDP(ctx, from, front, 40)
			}()
			serverOf(ctx, "stays", suite.Workers[0], "udp")
			removePods(ctx, serviceNamespace, "leaves")
			Expect(<-heard).To(And(ContainSubstring("leaves"), ContainSubstring("stays")))
			serverOf(ctx, "leaves", suite.Workers[1], "udp")
			removePods(ctx, serviceNamespace, "stays")
		}
	}, SpecTimeout(5*time.Minute))
})

// serverOf runs a server of HTTP and UDP on a node, whose label app is `servers` if no other is given.
func serverOf(ctx context.Context, name, node string, app ...string) *corev1.Pod {
	GinkgoHelper()
	pod := cluster.Server(serviceNamespace, name, node)
	pod.Labels = map[string]string{"app": strings.Join(append(app, "servers")[:1], ""), "name": name}
	args := pod.Spec.Containers[0].Args
	args[len(args)-1] = fmt.Sprintf("--udp-port=%d", udpPort)
	made, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	return made
}

// serviceOf creates a Service in both families in front of the servers.
func serviceOf(ctx context.Context, name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	GinkgoHelper()
	policy := corev1.IPFamilyPolicyPreferDualStack
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, Name: name},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: &policy, Selector: map[string]string{"app": "servers"},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)},
				{Name: "udp", Port: 80, TargetPort: intstr.FromInt32(udpPort), Protocol: corev1.ProtocolUDP},
			},
		},
	}
	change(&s.Spec)
	return createService(ctx, s)
}

func createService(ctx context.Context, s *corev1.Service) *corev1.Service {
	GinkgoHelper()
	services := suite.Cluster.CoreV1().Services(s.Namespace)
	made, err := services.Create(ctx, s, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(services.Delete(ctx, s.Name, metav1.DeleteOptions{})).To(Succeed())
	}, NodeTimeout(time.Minute))
	return made
}

// sampleService creates the sample as it stands, in the specs' namespace.
func sampleService(ctx context.Context) *corev1.Service {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "samples", "service.yaml"))
	Expect(err).NotTo(HaveOccurred())
	s := &corev1.Service{}
	Expect(yaml.UnmarshalStrict(text, s)).To(Succeed())
	s.Namespace = serviceNamespace
	return createService(ctx, s)
}

// frontOf is a Service's ClusterIP, in a family.
func frontOf(s *corev1.Service, like netip.Addr) netip.AddrPort {
	GinkgoHelper()
	for _, ip := range s.Spec.ClusterIPs {
		if a := netip.MustParseAddr(ip); a.Is4() == like.Is4() {
			return netip.AddrPortFrom(a, 80)
		}
	}
	Fail(fmt.Sprintf("Service %s has no ClusterIP like %s", s.Name, like))
	return netip.AddrPort{}
}

// near4 is the pod's IPv4 address.
func near4(p *corev1.Pod) netip.Addr {
	a, _ := cluster.InFamilyOf(cluster.PodAddrs(p), netip.IPv4Unspecified())
	return a
}

// origin runs a command where a client is.
type origin func(ctx context.Context, command ...string) (string, error)

func fromPod(p *corev1.Pod) origin {
	return func(ctx context.Context, command ...string) (string, error) {
		return suite.Cluster.Exec(ctx, p, command...)
	}
}

func fromNode(node string) origin {
	return func(ctx context.Context, command ...string) (string, error) {
		return suite.Node.Exec(ctx, node, command...)
	}
}

func fromOutside(ctx context.Context, command ...string) (string, error) {
	return suite.Lab.Output(ctx, lab.OutsideHost, command...)
}

// httpFetch fetches $3 from host $1, port $2.
const httpFetch = `exec 3<>"/dev/tcp/$1/$2" && printf 'GET %s HTTP/1.0\r\nHost: test\r\n\r\n' "$3" | cat >&3 && cat <&3`

// fetchFrom is the body of an answer; empty when there is none.
func fetchFrom(ctx context.Context, from origin, to netip.AddrPort, path string) string {
	out, err := from(ctx, "timeout", "3", "bash", "-c", httpFetch, "http", to.Addr().String(), strconv.Itoa(int(to.Port())), path)
	if err != nil {
		return ""
	}
	_, body, _ := strings.Cut(out, "\r\n\r\n")
	return body
}

// servedBy waits until every connection is answered, by all of the servers and by no others.
func servedBy(ctx context.Context, from origin, front netip.AddrPort, servers ...string) {
	GinkgoHelper()
	Eventually(func() []string {
		var seen []string
		for range 12 {
			if who := fetchFrom(ctx, from, front, "/hostname"); !slices.Contains(seen, who) {
				seen = append(seen, who)
			}
		}
		return seen
	}).WithContext(ctx).WithTimeout(40*time.Second).Should(ConsistOf(servers), front.String())
}

// refused waits until connections are refused.
func refused(ctx context.Context, from origin, front netip.AddrPort) {
	GinkgoHelper()
	Eventually(func() string {
		// The shell says why on its standard error.
		out, _ := from(ctx, "timeout", "3", "bash", "-c", `exec 2>&1 3<>"/dev/tcp/$1/$2"; true`, "tcp", front.Addr().String(), strconv.Itoa(int(front.Port())))
		return out
	}).WithContext(ctx).WithTimeout(30*time.Second).Should(ContainSubstring("refused"), front.String())
}

// talkUDP asks who serves, over and over from one port, and returns the answers.
func talkUDP(ctx context.Context, from origin, to netip.AddrPort, times int) string {
	const script = `exec 3<>"/dev/udp/$1/$2"; for i in $(seq $3); do echo hostname >&3; timeout .5 dd bs=100 count=1 <&3 2>/dev/null; echo; sleep .5; done; true`
	out, _ := from(ctx, "bash", "-c", script, "udp", to.Addr().String(), strconv.Itoa(int(to.Port())), strconv.Itoa(times))
	return out
}
