// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kiln-net/kiln/test/cluster"
	"github.com/kiln-net/kiln/test/oracle"
)

// matrix is a set of pods that connect to each other on every port in every family, and a model of the connections that policies
// allow. The model is independent of the implementation.
type matrix struct {
	namespaces map[string]labels.Set
	pods       []*corev1.Pod
	nodes      map[string][]netip.Addr
}

// matrixPorts are the ports of each pod on the pod network. All TCP ports and UDP port 80 have names.
var matrixPorts = []corev1.ContainerPort{
	{Name: "web-80", Protocol: corev1.ProtocolTCP, ContainerPort: 80},
	{Name: "web-81", Protocol: corev1.ProtocolTCP, ContainerPort: 81},
	{Name: "dns-80", Protocol: corev1.ProtocolUDP, ContainerPort: 80},
	{Protocol: corev1.ProtocolUDP, ContainerPort: 81},
}

// hostPort is the port of host-network pods.
var hostPort = corev1.ContainerPort{Protocol: corev1.ProtocolTCP, ContainerPort: 18080}

// attempt is a connection from one pod to another.
type attempt struct {
	from, to *corev1.Pod
	address  netip.Addr
	port     corev1.ContainerPort
}

func (a attempt) String() string {
	return fmt.Sprintf("%s/%s to %s/%s %s %s/%d", a.from.Namespace, a.from.Name, a.to.Namespace, a.to.Name, a.address, a.port.Protocol, a.port.ContainerPort)
}

func (a attempt) target() target {
	return target{strings.ToLower(string(a.port.Protocol)), netip.AddrPortFrom(a.address, uint16(a.port.ContainerPort))}
}

// matrixPod returns a pod that serves matrixPorts, or a host-network pod that serves hostPort.
func matrixPod(namespace, name, node string, hostNetwork bool) *corev1.Pod {
	pod := cluster.Server(namespace, name, node)
	pod.Labels = map[string]string{"pod": name}
	if hostNetwork {
		pod.Spec.HostNetwork = true
		c := &pod.Spec.Containers[0]
		c.Args = []string{"netexec", fmt.Sprintf("--http-port=%d", hostPort.ContainerPort), "--udp-port=-1"}
		c.ReadinessProbe.HTTPGet.Port.IntVal = hostPort.ContainerPort
		return pod
	}
	first := pod.Spec.Containers[0]
	pod.Spec.Containers = nil
	for _, number := range []int32{80, 81} {
		c := *first.DeepCopy()
		c.Name = fmt.Sprint("serve-", number)
		c.Args = []string{"netexec", fmt.Sprintf("--http-port=%d", number), fmt.Sprintf("--udp-port=%d", number)}
		c.ReadinessProbe.HTTPGet.Port.IntVal = number
		for _, p := range matrixPorts {
			if p.ContainerPort == number {
				c.Ports = append(c.Ports, p)
			}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod
}

func (m *matrix) attempts(from *corev1.Pod) []attempt {
	var all []attempt
	for _, to := range m.pods {
		ports := matrixPorts
		if to.Spec.HostNetwork {
			ports = []corev1.ContainerPort{hostPort}
		}
		for _, address := range cluster.PodAddrs(to) {
			for _, port := range ports {
				all = append(all, attempt{from: from, to: to, address: address, port: port})
			}
		}
	}
	return all
}

// differences makes all attempts, with one command per pod, and returns the results that differ from the model.
func (m *matrix) differences(ctx context.Context, policies []*networkingv1.NetworkPolicy) []string {
	var mu sync.Mutex
	var all []string
	var running sync.WaitGroup
	for _, from := range m.pods {
		running.Go(func() {
			attempts := m.attempts(from)
			passed, err := try(ctx, from, attempts)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				all = append(all, err.Error())
				return
			}
			for i, a := range attempts {
				if want := m.allowed(policies, a); passed[i] != want {
					all = append(all, fmt.Sprintf("%s passes: %v, want %v", a, passed[i], want))
				}
			}
		})
	}
	running.Wait()
	slices.Sort(all)
	return all
}

// try makes connections from a pod and reports for each whether it succeeded.
func try(ctx context.Context, from *corev1.Pod, attempts []attempt) ([]bool, error) {
	targets := make([]target, 0, len(attempts))
	for _, a := range attempts {
		targets = append(targets, a.target())
	}
	outcomes, err := outcomesOf(ctx, from, targets)
	if err != nil {
		return nil, err
	}
	passed := make([]bool, len(outcomes))
	for i, o := range outcomes {
		passed[i] = o == oracle.Connected
	}
	return passed, nil
}

// allowed is the model, after the API documentation of NetworkPolicy. Policies do not apply to host-network pods, in either
// direction.
func (m *matrix) allowed(policies []*networkingv1.NetworkPolicy, a attempt) bool {
	if a.from == a.to {
		return true
	}
	ownNode := a.from.Spec.HostNetwork && a.from.Spec.NodeName == a.to.Spec.NodeName
	ingress, egress := ownNode || a.to.Spec.HostNetwork, a.from.Spec.HostNetwork
	isolatedIn, isolatedOut := false, false
	for _, np := range policies {
		if selects(np, a.to) && hasType(np, networkingv1.PolicyTypeIngress) {
			isolatedIn = true
			for _, rule := range np.Spec.Ingress {
				ingress = ingress || m.anyPeer(np, rule.From, a.from, m.sourceOf(a)) && anyPort(rule.Ports, a.port)
			}
		}
		if !a.from.Spec.HostNetwork && selects(np, a.from) && hasType(np, networkingv1.PolicyTypeEgress) {
			isolatedOut = true
			for _, rule := range np.Spec.Egress {
				egress = egress || m.anyPeer(np, rule.To, a.to, a.address) && anyPort(rule.Ports, a.port)
			}
		}
	}
	return (ingress || !isolatedIn) && (egress || !isolatedOut)
}

// sourceOf returns the source address of an attempt.
func (m *matrix) sourceOf(a attempt) netip.Addr {
	addresses := cluster.PodAddrs(a.from)
	if a.from.Spec.HostNetwork {
		addresses = m.nodes[a.from.Spec.NodeName]
	}
	source, _ := cluster.InFamilyOf(addresses, a.address)
	return source
}

func selects(np *networkingv1.NetworkPolicy, pod *corev1.Pod) bool {
	return np.Namespace == pod.Namespace && matches(&np.Spec.PodSelector, pod.Labels)
}

func matches(selector *metav1.LabelSelector, set labels.Set) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	Expect(err).NotTo(HaveOccurred())
	return parsed.Matches(set)
}

func hasType(np *networkingv1.NetworkPolicy, t networkingv1.PolicyType) bool {
	return slices.Contains(np.Spec.PolicyTypes, t) // the API server sets the default
}

func (m *matrix) anyPeer(np *networkingv1.NetworkPolicy, peers []networkingv1.NetworkPolicyPeer, pod *corev1.Pod, address netip.Addr) bool {
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock != nil {
			return inside(p.IPBlock.CIDR, address) && !slices.ContainsFunc(p.IPBlock.Except, func(s string) bool { return inside(s, address) })
		}
		if p.NamespaceSelector == nil && pod.Namespace != np.Namespace ||
			p.NamespaceSelector != nil && !matches(p.NamespaceSelector, m.namespaces[pod.Namespace]) {
			return false
		}
		return p.PodSelector == nil || matches(p.PodSelector, pod.Labels)
	})
}

func inside(cidr string, address netip.Addr) bool {
	return netip.MustParsePrefix(cidr).Contains(address)
}

func anyPort(ports []networkingv1.NetworkPolicyPort, port corev1.ContainerPort) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		switch {
		case *p.Protocol != port.Protocol:
			return false
		case p.Port == nil:
			return true
		case p.Port.StrVal != "":
			return p.Port.StrVal == port.Name
		case p.EndPort != nil:
			return p.Port.IntVal <= port.ContainerPort && port.ContainerPort <= *p.EndPort
		}
		return p.Port.IntVal == port.ContainerPort
	})
}
