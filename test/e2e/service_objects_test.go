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
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/test/cluster"
)

// serverOf runs an HTTP and UDP server on a node. Its label app is `servers` by default.
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

// deploymentOf runs servers on the first worker that keep serving for a while after their deletion. Their clients are on that
// worker as well: with the userspace datapath, tunnels lose a few packets when pods start (see watch), and one of these may be a
// SYN.
func deploymentOf(ctx context.Context, name string, replicas int32) *appsv1.Deployment {
	GinkgoHelper()
	pod := cluster.Server(serviceNamespace, name, "")
	pod.Spec.NodeSelector = onNode(suite.Workers[0])
	pod.Labels = map[string]string{"app": name}
	serves := int64(4 * calibration.slowdown) // seconds that a deleted pod still serves: all nodes remove its endpoint in this time
	pod.Spec.TerminationGracePeriodSeconds = new(serves + 6)
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: serves}}}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(1)),
			}},
		},
	}
	made, err := suite.Cluster.AppsV1().Deployments(serviceNamespace).Create(ctx, d, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	rolledOut(ctx, name)
	return made
}

// replace replaces all pods of a Deployment and waits for the rollout.
func replace(ctx context.Context, d *appsv1.Deployment) {
	GinkgoHelper()
	patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"replaced":"yes"}}}}}`)
	_, err := suite.Cluster.AppsV1().Deployments(d.Namespace).Patch(ctx, d.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	rolledOut(ctx, d.Name)
}

func rolledOut(ctx context.Context, name string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		d, err := suite.Cluster.AppsV1().Deployments(serviceNamespace).Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
		for _, n := range []int32{d.Status.UpdatedReplicas, d.Status.AvailableReplicas, d.Status.Replicas} {
			g.Expect(n).To(Equal(*d.Spec.Replicas))
		}
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(200 * time.Millisecond).Should(Succeed())
}

// serviceOf creates a dual-stack Service for the servers.
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

// sampleService creates the sample Service in the specs' namespace.
func sampleService(ctx context.Context) *corev1.Service {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "samples", "service.yaml"))
	Expect(err).NotTo(HaveOccurred())
	s := &corev1.Service{}
	Expect(yaml.UnmarshalStrict(text, s)).To(Succeed())
	s.Namespace = serviceNamespace
	return createService(ctx, s)
}

// frontOf returns a Service's ClusterIP and port in the family of like.
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

// near4 returns the pod's IPv4 address.
func near4(p *corev1.Pod) netip.Addr {
	a, _ := cluster.InFamilyOf(cluster.PodAddrs(p), netip.IPv4Unspecified())
	return a
}

// origin runs a command at the location of a client.
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
const httpFetch = `exec 3<>"/dev/tcp/$1/$2" && cat >&3 <<<"GET $3 HTTP/1.0"$'\r\nHost: test\r\n\r' && cat <&3`

// fetchFrom returns the body of an answer, or "" if there is none.
func fetchFrom(ctx context.Context, from origin, to netip.AddrPort, path string) string {
	out, err := from(ctx, "timeout", "3", "bash", "-c", httpFetch, "http", to.Addr().String(), strconv.Itoa(int(to.Port())), path)
	if err != nil {
		return ""
	}
	_, body, _ := strings.Cut(out, "\r\n\r\n")
	return body
}

// answerOf returns the server that answers a connection. It retries, because on a busy machine an answer may take longer than the
// client waits.
func answerOf(ctx context.Context, from origin, to netip.AddrPort) (server string) {
	GinkgoHelper()
	Eventually(func() string {
		server = fetchFrom(ctx, from, to, "/hostname")
		return server
	}).WithContext(ctx).WithTimeout(20*time.Second).ShouldNot(BeEmpty(), to.String())
	return server
}

// servedBy waits until every connection is answered, by all of the servers and by no others. After that, no connection may take
// long.
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
	for range 4 {
		Expect(servers).To(ContainElement(connectsAtOnce(ctx, from, front)), front.String())
	}
}

// talkUDP repeatedly requests the server's name from one UDP port until hangUp. heard returns the answers so far, which are stored
// in a file.
func talkUDP(ctx context.Context, from origin, to netip.AddrPort) (heard func(context.Context) (string, error), hangUp func(context.Context)) {
	GinkgoHelper()
	file := fmt.Sprintf("/tmp/udp-%d", time.Now().UnixNano())
	const script = `exec 3<>"/dev/udp/$1/$2"; while :; do echo hostname >&3; timeout .5 dd bs=100 count=1 <&3; echo; sleep .5; done`
	_, err := from(ctx, "bash", "-c", fmt.Sprintf("bash -c '%s' udp %s %d </dev/null >%s 2>/dev/null & echo $! >%[4]s.pid", script, to.Addr(), to.Port(), file))
	Expect(err).NotTo(HaveOccurred())
	hangUp = func(ctx context.Context) {
		_, _ = from(ctx, "bash", "-c", "kill $(cat "+file+".pid) && rm "+file+".pid")
	}
	DeferCleanup(func(ctx SpecContext) { hangUp(ctx) }, NodeTimeout(time.Minute)) // if the spec fails earlier
	return func(ctx context.Context) (string, error) { return from(ctx, "cat", file) }, hangUp
}
