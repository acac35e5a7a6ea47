// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kiln-net/kiln/internal/netprobe"
)

// table returns the checks in their order.
func (c *connectivity) table() []podCheck {
	first, last := fmt.Sprintf(clientPod, 0), c.served()
	checks := []podCheck{{name: "pod → pod, same node", ways: func() []way { return c.to(first, neighbourPod, false, probedProtocols...) }}}
	for _, protocol := range probedProtocols {
		checks = append(checks, podCheck{name: "pod → pod, across nodes, " + protocol, ways: func() []way { return c.mesh(c.each(clientPod), protocol) }})
	}
	checks = append(checks,
		podCheck{name: "pod → Service", ways: func() []way { return c.toService(clientPod) }},
		podCheck{name: "pod → name of the Service", ways: c.toName},
		podCheck{name: "pod → API server", ways: c.toAPIServer},
		podCheck{name: "node → pod, tcp", ways: func() []way { return c.mesh(c.each(hostPod), netprobe.TCP) }},
		podCheck{name: "node → pod, udp", ways: func() []way { return c.mesh(c.each(hostPod), netprobe.UDP) }},
		podCheck{name: "node → Service", ways: func() []way { return c.toService(hostPod) }},
		podCheck{name: "pod → outside", ways: c.toOutside},
	)
	checks = append(checks, c.policyChecks(first)...)
	inVPC, other := fmt.Sprintf(vpcPod, 0), fmt.Sprintf(vpcPod, 1)
	return append(checks,
		podCheck{name: "pod → pod in a VPC", ways: func() []way { return c.to(inVPC, other, false, probedProtocols...) }},
		podCheck{name: "pod in a VPC ↛ pod outside of it", ways: func() []way { return c.to(inVPC, last, true, probedProtocols...) }},
		podCheck{name: "pod ↛ pod in a VPC", ways: func() []way { return c.to(first, other, true, probedProtocols...) }},
	)
}

// policyChecks check a NetworkPolicy that admits one pod to the port of TCP.
func (c *connectivity) policyChecks(from string) []podCheck {
	policies := c.pods.NetworkingV1().NetworkPolicies(c.name)
	both := func() []way {
		return append(c.to(from, closedPod, false, netprobe.TCP), c.to(admittedPod, closedPod, false, netprobe.TCP)...)
	}
	return []podCheck{
		{name: "without a NetworkPolicy: pod → pod", ways: both},
		{
			name: "NetworkPolicy: other pods ↛ pod", ways: func() []way { return c.to(from, closedPod, true, netprobe.TCP) },
			before: func(ctx context.Context) error {
				if _, err := policies.Create(ctx, c.closePolicy(), metav1.CreateOptions{}); err != nil {
					return fmt.Errorf("create the NetworkPolicy: %w", err)
				}
				return nil
			},
		},
		{name: "NetworkPolicy: admitted pod → port", ways: func() []way { return c.to(admittedPod, closedPod, false, netprobe.TCP) }},
		{name: "NetworkPolicy: admitted pod ↛ other protocol", ways: func() []way { return c.to(admittedPod, closedPod, true, netprobe.UDP) }},
		{
			name: "after the NetworkPolicy: pod → pod", ways: both,
			before: func(ctx context.Context) error {
				if err := policies.Delete(ctx, closedPod, metav1.DeleteOptions{}); err != nil {
					return fmt.Errorf("delete the NetworkPolicy: %w", err)
				}
				return nil
			},
		},
	}
}

// closePolicy returns the NetworkPolicy: it admits one pod to the port of TCP.
func (c *connectivity) closePolicy() *networkingv1.NetworkPolicy {
	protocol, port := corev1.ProtocolTCP, intstr.FromInt32(probedPort)
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: c.name, Name: closedPod}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{roleLabel: closedPod}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{accessLabel: ""}}}},
			Ports: []networkingv1.NetworkPolicyPort{{Protocol: &protocol, Port: &port}},
		}},
	}}
}

// toService returns the ways to the ClusterIPs of the Service, with both protocols.
func (c *connectivity) toService(from string) (ways []way) {
	server := c.running[c.served()]
	if server == nil {
		return nil
	}
	for _, source := range c.each(from) {
		for _, a := range clusterIPs(c.service) {
			for _, protocol := range []string{netprobe.TCP, netprobe.UDP} {
				t := netprobe.Target{Protocol: protocol, Address: netip.AddrPortFrom(a, 80).String(), Want: server.Name}
				ways = addWay(ways, source, t, a, fmt.Sprintf("Service %s %s", protocol, t.Address), server.Spec.NodeName)
			}
		}
	}
	return ways
}

func (c *connectivity) toName() (ways []way) {
	for _, source := range c.each(clientPod) {
		for _, a := range clusterIPs(c.service) {
			t := netprobe.Target{Protocol: netprobe.Name, Address: c.service.Name, Want: a.String()}
			ways = addWay(ways, source, t, a, "name "+c.service.Name+" by the DNS server of the cluster", "")
		}
	}
	return ways
}

func (c *connectivity) toAPIServer() (ways []way) {
	for _, source := range c.each(clientPod) {
		for _, a := range clusterIPs(c.apiServer) {
			for _, port := range c.apiServer.Spec.Ports {
				t := netprobe.Target{Protocol: netprobe.Connect, Address: net.JoinHostPort(a.String(), strconv.Itoa(int(port.Port)))}
				ways = addWay(ways, source, t, a, "Service default/kubernetes "+t.Address, "")
			}
		}
	}
	return ways
}

func (c *connectivity) toOutside() (ways []way) {
	for _, source := range c.each(clientPod) {
		for _, to := range c.outsideTargets {
			t := netprobe.Target{Protocol: netprobe.Connect, Address: to.String()}
			ways = addWay(ways, source, t, to.Addr(), t.Address, "")
		}
	}
	return ways
}

// parseOutside parses the targets of --outside.
func parseOutside(list []string) ([]netip.AddrPort, error) {
	targets := make([]netip.AddrPort, 0, len(list))
	for _, text := range list {
		target, err := netip.ParseAddrPort(text)
		if err != nil || target.Port() == 0 {
			return nil, fmt.Errorf("--outside %q is not ADDRESS:PORT, as in 192.0.2.1:443 or [2001:db8::1]:443", text)
		}
		targets = append(targets, target)
	}
	return targets, nil
}

func clusterIPs(service *corev1.Service) (addresses []netip.Addr) {
	for _, ip := range service.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(ip); err == nil {
			addresses = append(addresses, a)
		}
	}
	return addresses
}
