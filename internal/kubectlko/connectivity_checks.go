// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/internal/netprobe"
)

// Families in the output.
const (
	ipv4 = "IPv4"
	ipv6 = "IPv6"
)

// connectivityCheck is a line of the output for each family.
type connectivityCheck struct {
	name string
	// before changes the cluster for the check, if it is set.
	before func(ctx context.Context) error
	// ways are none if their pods do not run.
	ways func() []way
}

// probedProtocols are the protocols between two pods.
var probedProtocols = []string{netprobe.ICMP, netprobe.TCP, netprobe.UDP}

// table returns the checks in their order.
func (c *connectivity) table() []connectivityCheck {
	first, last := fmt.Sprintf(clientPod, 0), c.served()
	checks := []connectivityCheck{{name: "pod → pod, same node", ways: func() []way { return c.to(first, neighbourPod, false, probedProtocols...) }}}
	for _, protocol := range probedProtocols {
		checks = append(checks, connectivityCheck{name: "pod → pod, across nodes, " + protocol, ways: func() []way { return c.mesh(clientPod, protocol) }})
	}
	checks = append(checks,
		connectivityCheck{name: "pod → Service", ways: func() []way { return c.toService(clientPod) }},
		connectivityCheck{name: "pod → name of the Service", ways: c.toName},
		connectivityCheck{name: "pod → API server", ways: c.toAPIServer},
		connectivityCheck{name: "node → pod, tcp", ways: func() []way { return c.mesh(hostPod, netprobe.TCP) }},
		connectivityCheck{name: "node → pod, udp", ways: func() []way { return c.mesh(hostPod, netprobe.UDP) }},
		connectivityCheck{name: "node → Service", ways: func() []way { return c.toService(hostPod) }},
		connectivityCheck{name: "pod → outside", ways: c.toOutside},
	)
	checks = append(checks, c.policyChecks(first)...)
	inVPC, other := fmt.Sprintf(vpcPod, 0), fmt.Sprintf(vpcPod, 1)
	return append(checks,
		connectivityCheck{name: "pod → pod in a VPC", ways: func() []way { return c.to(inVPC, other, false, probedProtocols...) }},
		connectivityCheck{name: "pod in a VPC ↛ pod outside of it", ways: func() []way { return c.to(inVPC, last, true, probedProtocols...) }},
		connectivityCheck{name: "pod ↛ pod in a VPC", ways: func() []way { return c.to(first, other, true, probedProtocols...) }},
	)
}

// policyChecks check a NetworkPolicy that admits one pod to the port of TCP.
func (c *connectivity) policyChecks(from string) []connectivityCheck {
	policies := c.pods.NetworkingV1().NetworkPolicies(c.name)
	both := func() []way {
		return append(c.to(from, closedPod, false, netprobe.TCP), c.to(admittedPod, closedPod, false, netprobe.TCP)...)
	}
	return []connectivityCheck{
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

// to returns the ways from one pod to another, with each protocol and in each family that both have.
func (c *connectivity) to(from, to string, blocked bool, protocols ...string) (ways []way) {
	source, target := c.running[from], c.running[to]
	if source == nil || target == nil {
		return nil
	}
	for _, a := range addressesOf(target) {
		for _, protocol := range protocols {
			t := netprobe.Target{Protocol: protocol, Address: a.String(), Want: to, Blocked: blocked, Within: reachTime}
			if protocol != netprobe.ICMP {
				t.Address = netip.AddrPortFrom(a, probedPort).String()
			}
			ways = c.add(ways, source, t, a, fmt.Sprintf("pod %s (%s %s)", to, protocol, t.Address), target.Spec.NodeName)
		}
	}
	return ways
}

// add appends a way if its pod has an address of the family.
func (c *connectivity) add(ways []way, from *corev1.Pod, target netprobe.Target, family netip.Addr, to, node string) []way {
	for _, a := range addressesOf(from) {
		if a.Is4() == family.Is4() {
			target.Within = reachTime
			return append(ways, way{from: from, target: target, to: to, node: node, family: familyOf(family.String())})
		}
	}
	return ways
}

// each returns the running pods of a name with a number.
func (c *connectivity) each(name string) (pods []*corev1.Pod) {
	for i := range c.hosts {
		if pod := c.running[fmt.Sprintf(name, i)]; pod != nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

// mesh returns the ways from the pods of a name to the servers on other nodes; from pods in the network of the node also to the server there.
func (c *connectivity) mesh(from, protocol string) (ways []way) {
	for _, source := range c.each(from) {
		for _, target := range c.each(clientPod) {
			if source.Spec.NodeName != target.Spec.NodeName || source.Spec.HostNetwork {
				ways = append(ways, c.to(source.Name, target.Name, false, protocol)...)
			}
		}
	}
	return ways
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
				ways = c.add(ways, source, t, a, fmt.Sprintf("Service %s %s", protocol, t.Address), server.Spec.NodeName)
			}
		}
	}
	return ways
}

func (c *connectivity) toName() (ways []way) {
	for _, source := range c.each(clientPod) {
		for _, a := range clusterIPs(c.service) {
			t := netprobe.Target{Protocol: netprobe.Name, Address: c.service.Name, Want: a.String()}
			ways = c.add(ways, source, t, a, "name "+c.service.Name+" by the DNS server of the cluster", "")
		}
	}
	return ways
}

func (c *connectivity) toAPIServer() (ways []way) {
	for _, source := range c.each(clientPod) {
		for _, a := range clusterIPs(c.apiServer) {
			for _, port := range c.apiServer.Spec.Ports {
				t := netprobe.Target{Protocol: netprobe.Connect, Address: net.JoinHostPort(a.String(), strconv.Itoa(int(port.Port)))}
				ways = c.add(ways, source, t, a, "Service default/kubernetes "+t.Address, "")
			}
		}
	}
	return ways
}

func (c *connectivity) toOutside() (ways []way) {
	for _, source := range c.each(clientPod) {
		for _, to := range c.outsideTargets {
			t := netprobe.Target{Protocol: netprobe.Connect, Address: to.String()}
			ways = c.add(ways, source, t, to.Addr(), t.Address, "")
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

func addressesOf(pod *corev1.Pod) (addresses []netip.Addr) {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

func clusterIPs(service *corev1.Service) (addresses []netip.Addr) {
	for _, ip := range service.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(ip); err == nil {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// familyOf returns the family of an address.
func familyOf(address string) string {
	if strings.Contains(address, ":") {
		return ipv6
	}
	return ipv4
}
