// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kiln-net/kiln/test/cluster"
)

// pod returns a pod that runs netprobe's server.
func pod(name, node string) *corev1.Pod {
	p := cluster.Server(namespace, name, node)
	c := &p.Spec.Containers[0]
	c.Command, c.Args = []string{program, "serve", fmt.Sprint(port), fmt.Sprint(ports)}, nil
	c.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "bench", MountPath: directory}}
	p.Spec.Volumes = []corev1.Volume{{Name: "bench", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: directory}}}}
	return p
}

// paths makes the pods and Services, and returns the paths through Kiln's data plane.
func (b *bench) paths(ctx context.Context) ([]path, error) {
	_, err := b.cluster.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	pods := map[string]*corev1.Pod{}
	for name, node := range map[string]string{"client": b.near, "neighbour": b.near, "remote": b.far} {
		if pods[name], err = b.cluster.Run(ctx, pod(name, node)); err != nil {
			return nil, err
		}
	}
	client := func(ctx context.Context, command ...string) (string, error) {
		return b.cluster.Exec(ctx, pods["client"], command...)
	}
	one, err := b.service(ctx, "one", 1, pods["remote"])
	if err != nil {
		return nil, err
	}
	many, err := b.service(ctx, "many", b.endpoints, pods["remote"])
	if err != nil {
		return nil, err
	}
	if err := serve(ctx, b.on(outside)); err != nil {
		return nil, err
	}
	across := geneve
	if !b.lab.KernelDatapath() {
		across = ovsBridge
	}
	var all []path
	add := func(name, reference string, from runner, to netip.Addr, at uint16) {
		all = append(all, path{name: name, reference: reference, client: from, to: netip.AddrPortFrom(to, at)})
	}
	nodes := map[string][]netip.Addr{}
	for _, n := range b.lab.Nodes() {
		nodes[n.Name] = n.Addresses()
	}
	for _, like := range cluster.PodAddrs(pods["client"]) {
		near, _ := cluster.InFamilyOf(cluster.PodAddrs(pods["neighbour"]), like)
		far, _ := cluster.InFamilyOf(cluster.PodAddrs(pods["remote"]), like)
		outer, _ := cluster.InFamilyOf(b.lab.OutsideAddresses(), like)
		node, _ := cluster.InFamilyOf(nodes[b.near], like)
		add(sameNode, linuxBridge, client, near, port)
		add(acrossNodes, across, client, far, port)
		add("pod → ClusterIP, 1 endpoint on another node", across, client, clusterIP(one, like), port)
		add(fmt.Sprintf("pod → ClusterIP, %d endpoints", b.endpoints), across, client, clusterIP(many, like), port)
		add("node → its node port → pod on another node", across, b.on(b.near), node, uint16(nodePort["one"]))
		all[len(all)-1].loopback = true
		add("pod → outside host, source NAT", across, client, outer, port)
	}
	return all, nil
}

// Names of the paths that are measured with policies, too.
const (
	sameNode    = "pod → pod on its node"
	acrossNodes = "pod → pod on another node"
)

func clusterIP(s *corev1.Service, like netip.Addr) netip.Addr {
	for _, text := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() == like.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// service makes a Service without a selector, whose n endpoints are ports of one pod: a slice for each, because the ports of a slice have names.
func (b *bench) service(ctx context.Context, name string, n int, of *corev1.Pod) (*corev1.Service, error) {
	policy := corev1.IPFamilyPolicyRequireDualStack
	services := b.cluster.CoreV1().Services(namespace)
	_, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, IPFamilyPolicy: &policy, Ports: []corev1.ServicePort{
			{Name: "tcp", Port: port, NodePort: nodePort[name]}, {Name: "udp", Port: port, NodePort: nodePort[name], Protocol: corev1.ProtocolUDP},
		}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create Service %s: %w", name, err)
	}
	service, err := services.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get Service %s: %w", name, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, a := range cluster.PodAddrs(of) {
		for i := range n {
			group.Go(func() error { return b.endpoint(ctx, name, a, i) })
		}
	}
	return service, group.Wait()
}

// nodePort has the node ports of Services: the client needs the same one for TCP and UDP.
var nodePort = map[string]int32{"one": 30700, "many": 30701}

// endpoint makes the slice of an endpoint: the pod's address and the i-th port of its server.
func (b *bench) endpoint(ctx context.Context, service string, a netip.Addr, i int) error {
	kind, number := discoveryv1.AddressTypeIPv4, int32(port+i)
	if a.Is6() {
		kind = discoveryv1.AddressTypeIPv6
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%s-%d", service, strings.ToLower(string(kind)), i), Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: kind, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{a.String()}}},
		Ports: []discoveryv1.EndpointPort{
			{Name: new("tcp"), Port: &number, Protocol: new(corev1.ProtocolTCP)}, {Name: new("udp"), Port: &number, Protocol: new(corev1.ProtocolUDP)},
		},
	}
	_, err := b.cluster.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create EndpointSlice %s: %w", slice.Name, err)
	}
	return nil
}
