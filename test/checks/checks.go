// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package checks proves with real packets that a cluster's network works, in each of its pods' address families. The demo prints
// the results, and the end-to-end tests assert them.
package checks

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kiln-net/kiln/test/cluster"
)

// Node runs commands on a node, outside of pods.
type Node interface {
	Exec(ctx context.Context, node string, command ...string) (string, error)
}

// Env is the environment that the checks run in.
type Env struct {
	Cluster   *cluster.Cluster
	Node      Node
	Namespace string
	// Near and Far are two schedulable nodes.
	Near, Far string
	// Outside are the addresses of a host outside of the cluster that runs agnhost's netexec on OutsidePort.
	Outside     []netip.Addr
	OutsidePort int
}

// Result is one check in one family.
type Result struct {
	Name   string
	Family string
	Took   time.Duration
	Detail string
	Err    error
}

// fixture holds the pods and the Services that the checks use.
type fixture struct {
	Env
	client, neighbour, remote *corev1.Pod
	service                   *corev1.Service
	nodes                     map[string]*corev1.Node
	apiServer                 *corev1.Service
	apiServers                *discoveryv1.EndpointSliceList
}

// check is one line of the table. run checks the family of one of the client's addresses, and returns a detail to print.
type check struct {
	name string
	run  func(ctx context.Context, f *fixture, family netip.Addr) (string, error)
}

var table = []check{
	{"pod → pod, same node, ICMP", func(ctx context.Context, f *fixture, a netip.Addr) (string, error) {
		return f.ping(ctx, f.neighbour, a)
	}},
	{"pod → pod, across nodes, ICMP", func(ctx context.Context, f *fixture, a netip.Addr) (string, error) { return f.ping(ctx, f.remote, a) }},
	{"pod → pod, across nodes, TCP, 20 kB each way", largePayload},
	{"pod → Service ClusterIP", clusterIP},
	{"pod → Service by DNS name", dnsName},
	{"pod → API server", apiServer},
	{"node → pod", nodeToPod},
	{"node → ClusterIP → pod", nodeToClusterIP},
	{"kubelet probe → pod", probe},
	{"pod → outside host, source NAT seen there", outside},
}

// Run prepares the pods, runs every check in every family and reports each result at once. It returns only errors of the
// preparation.
func Run(ctx context.Context, env Env, report func(Result)) error {
	f, err := prepare(ctx, env)
	if err != nil {
		return err
	}
	for _, c := range table {
		for _, addr := range cluster.PodAddrs(f.client) {
			start := time.Now()
			checkCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
			detail, err := c.run(checkCtx, f, addr)
			cancel()
			report(Result{Name: c.name, Family: family(addr), Took: time.Since(start), Detail: detail, Err: err})
		}
	}
	return nil
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func prepare(ctx context.Context, env Env) (*fixture, error) {
	f := &fixture{Env: env, nodes: map[string]*corev1.Node{}}
	c := env.Cluster
	_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: env.Namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace %s: %w", env.Namespace, err)
	}
	for _, p := range []struct {
		name, node string
		pod        **corev1.Pod
	}{{"client", env.Near, &f.client}, {"neighbour", env.Near, &f.neighbour}, {"remote", env.Far, &f.remote}} {
		if *p.pod, err = c.Run(ctx, cluster.Server(env.Namespace, p.name, p.node)); err != nil {
			return nil, err
		}
	}
	policy := corev1.IPFamilyPolicyPreferDualStack
	want := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: "remote"},
		Spec: corev1.ServiceSpec{
			Selector:       map[string]string{"app": "remote"},
			IPFamilyPolicy: &policy,
			Ports:          []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)}},
		},
	}
	if _, err = c.CoreV1().Services(env.Namespace).Create(ctx, want, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create service: %w", err)
	}
	if f.service, err = c.CoreV1().Services(env.Namespace).Get(ctx, "remote", metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("get service: %w", err)
	}
	if f.apiServer, err = c.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("get service kubernetes: %w", err)
	}
	f.apiServers, err = c.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return nil, fmt.Errorf("list endpoints of service kubernetes: %w", err)
	}
	if err := awaitDNS(ctx, c); err != nil {
		return nil, err
	}
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		f.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	return f, nil
}

// awaitDNS waits until the cluster's DNS serves: on a new network its pods get their addresses at about the same time as the
// checks' pods.
func awaitDNS(ctx context.Context, c *cluster.Cluster) error {
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		list, err := c.DiscoveryV1().EndpointSlices("kube-system").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kube-dns"})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			for _, e := range list.Items[i].Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					return true, nil
				}
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait for a ready endpoint of Service kube-system/kube-dns: %w", err)
	}
	return nil
}

// addressOf returns the pod's address in the family of like.
func addressOf(p *corev1.Pod, like netip.Addr) (netip.Addr, error) {
	a, ok := cluster.InFamilyOf(cluster.PodAddrs(p), like)
	if !ok {
		return a, fmt.Errorf("pod %s has no %s address", p.Name, family(like))
	}
	return a, nil
}

func (f *fixture) ping(ctx context.Context, to *corev1.Pod, like netip.Addr) (string, error) {
	a, err := addressOf(to, like)
	if err != nil {
		return "", err
	}
	out, err := f.Cluster.Exec(ctx, f.client, "ping", "-n", "-c", "3", "-i", "0.2", "-W", "2", a.String())
	if err != nil {
		return "", err
	}
	_, rtt, _ := strings.Cut(out, "rtt ")
	return strings.TrimSpace(a.String() + " " + strings.TrimSpace(rtt)), nil
}

// httpScript fetches path $3 from host $1, port $2, with bash only, so that it runs in any image and on any node. cat writes the request at
// once: printf would write line by line, and a server that rejects the first line closes the connection before the next one.
const httpScript = `exec 3<>"/dev/tcp/$1/$2" && cat >&3 <<<"GET $3 HTTP/1.0"$'\r\nHost: test\r\n\r' && cat <&3`

func httpCommand(host string, port int, path string) []string {
	return []string{"timeout", "10", "bash", "-c", httpScript, "http", host, fmt.Sprint(port), path}
}

// body returns the content after the headers of an HTTP response with status 200.
func body(response string) (string, error) {
	head, rest, ok := strings.Cut(response, "\r\n\r\n")
	if !ok || !strings.Contains(strings.SplitN(head, "\r\n", 2)[0], " 200 ") {
		return "", fmt.Errorf("unexpected answer %.200q", response)
	}
	return rest, nil
}

func (f *fixture) fetch(ctx context.Context, host string, port int, path string) (string, error) {
	out, err := f.Cluster.Exec(ctx, f.client, httpCommand(host, port, path)...)
	if err != nil {
		return "", err
	}
	return body(out)
}

func largePayload(ctx context.Context, f *fixture, like netip.Addr) (string, error) {
	a, err := addressOf(f.remote, like)
	if err != nil {
		return "", err
	}
	payload := strings.Repeat("0123456789", 2000)
	got, err := f.fetch(ctx, a.String(), cluster.HTTPPort, "/echo?msg="+payload)
	if err != nil {
		return "", err
	}
	if got != payload {
		return "", fmt.Errorf("sent %d bytes and got %d back, or others", len(payload), len(got))
	}
	return a.String(), nil
}

// expectRemote checks that the pod remote has answered.
func (f *fixture) expectRemote(got string, err error) error {
	if err == nil && got != f.remote.Name {
		err = fmt.Errorf("pod %q answered instead of %q", got, f.remote.Name)
	}
	return err
}

func serviceAddr(s *corev1.Service, like netip.Addr) (netip.Addr, error) {
	for _, ip := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(ip); err == nil && a.Is4() == like.Is4() {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("service %s has no %s ClusterIP", s.Name, family(like))
}

func clusterIP(ctx context.Context, f *fixture, like netip.Addr) (string, error) {
	a, err := serviceAddr(f.service, like)
	if err != nil {
		return "", err
	}
	return a.String(), f.expectRemote(f.fetch(ctx, a.String(), 80, "/hostname"))
}

// dnsName resolves the Service's name in the family's record type and connects to the result.
func dnsName(ctx context.Context, f *fixture, like netip.Addr) (string, error) {
	name := fmt.Sprintf("%s.%s.svc.cluster.local", f.service.Name, f.Namespace)
	database := map[bool]string{true: "ahostsv4", false: "ahostsv6"}[like.Is4()]
	out, err := f.Cluster.Exec(ctx, f.client, "getent", database, name)
	if err != nil {
		return "", err
	}
	fields := strings.Fields(out)
	want, err := serviceAddr(f.service, like)
	if err != nil {
		return "", err
	}
	if len(fields) == 0 || fields[0] != want.String() {
		return "", fmt.Errorf("%s resolves to %q, want %s", name, out, want)
	}
	return name, f.expectRemote(f.fetch(ctx, fields[0], 80, "/hostname"))
}

// apiServer connects to the API server by the ClusterIP of its Service. In a family that the Service lacks, it uses the address of
// a node whose address is an endpoint of the Service. It sends plain HTTP to a TLS port and expects the API server's own error
// message.
func apiServer(ctx context.Context, f *fixture, like netip.Addr) (string, error) {
	a, err := serviceAddr(f.apiServer, like)
	port := 443
	if err != nil {
		port = 6443
		for _, n := range f.nodes {
			addrs := cluster.NodeAddrs(n)
			if addr, ok := cluster.InFamilyOf(addrs, like); ok && slices.ContainsFunc(addrs, f.isAPIServer) {
				a, err = addr, nil
			}
		}
	}
	if err != nil {
		return "", err
	}
	out, err := f.Cluster.Exec(ctx, f.client, httpCommand(a.String(), port, "/version")...)
	if err != nil {
		return "", err
	}
	if !strings.Contains(out, "HTTP request to an HTTPS server") {
		return "", fmt.Errorf("%s answered %.200q, which is not the API server", a, out)
	}
	return netip.AddrPortFrom(a, uint16(port)).String(), nil
}

func (f *fixture) isAPIServer(a netip.Addr) bool {
	return slices.ContainsFunc(f.apiServers.Items, func(s discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return slices.Contains(e.Addresses, a.String()) })
	})
}

func (f *fixture) fetchFromNode(ctx context.Context, host string, port int) error {
	out, err := f.Node.Exec(ctx, f.Near, httpCommand(host, port, "/hostname")...)
	if err != nil {
		return err
	}
	return f.expectRemote(body(out))
}

func nodeToPod(ctx context.Context, f *fixture, like netip.Addr) (string, error) {
	a, err := addressOf(f.remote, like)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s → %s", f.Near, a), f.fetchFromNode(ctx, a.String(), cluster.HTTPPort)
}

func nodeToClusterIP(ctx context.Context, f *fixture, like netip.Addr) (string, error) {
	a, err := serviceAddr(f.service, like)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s → %s", f.Near, a), f.fetchFromNode(ctx, a.String(), 80)
}

// probe makes a pod whose kubelet probes its address of the family, and waits until it is ready.
func probe(ctx context.Context, f *fixture, like netip.Addr) (string, error) {
	name := "probed-" + strings.ToLower(family(like))
	pod := cluster.Server(f.Namespace, name, f.Far)
	delete(pod.Labels, "app")
	if !like.Is4() {
		// The kubelet probes a pod's first address, so the annotation puts the other family first.
		pod.Annotations = map[string]string{"ovn.kubernetes.io/ip_family": "ipv6"}
	}
	ready, err := f.Cluster.Run(ctx, pod)
	if err != nil {
		return "", err
	}
	return ready.Status.PodIP, nil
}

// outside fetches the client address that a host outside of the cluster sees, which must be the address of the pod's node.
func outside(ctx context.Context, f *fixture, like netip.Addr) (string, error) {
	host, ok := cluster.InFamilyOf(f.Outside, like)
	if !ok {
		return "", fmt.Errorf("the outside host has no %s address", family(like))
	}
	got, err := f.fetch(ctx, host.String(), f.OutsidePort, "/clientip")
	if err != nil {
		return "", err
	}
	seen, err := netip.ParseAddrPort(got)
	if err != nil {
		return "", fmt.Errorf("the outside host answered %q: %w", got, err)
	}
	node, _ := cluster.InFamilyOf(cluster.NodeAddrs(f.nodes[f.Near]), like)
	if seen.Addr() != node {
		return "", fmt.Errorf("the outside host saw %s, want the node's address %s", seen.Addr(), node)
	}
	return fmt.Sprintf("%s seen as %s", host, seen.Addr()), nil
}
