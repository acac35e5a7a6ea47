// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/probes"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// otherPort is a port without a probe.
const otherPort uint16 = 9000

func TestTheNodeProbesPodsOfCustomVPCs(t *testing.T) {
	n := agenttest.Serving(t)
	plain := n.Sandbox(n.Pod("plain", 400), agenttest.NewID())
	plain.MustAdd()
	t.Cleanup(plain.MustDel)
	if names := probeLinks(t); len(names) != 0 {
		t.Errorf("a pod of the default VPC has %v", names)
	}
	tenant := n.Tenant("tenant", 300)
	sources := []netip.Addr{netip.MustParseAddr("169.254.254.3"), netip.MustParseAddr("fe80::a9fe:fe03")}
	for i, podIP := range agenttest.AddressesOf(300) {
		if from := agenttest.ExchangeAt(t, nil, tenant.NS, netip.AddrPortFrom(podIP, agenttest.ProbePort), strings.Repeat("k", 200_000)); from.WithZone("") != sources[i] {
			t.Errorf("the pod sees %s, want %s", from, sources[i])
		}
		if _, err := net.DialTimeout("tcp", netip.AddrPortFrom(podIP, agenttest.DeadPort).String(), agenttest.Patience); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a port of %s without a listener: %v", podIP, err)
		}
		if got := device(t, podIP, otherPort); got != "ovn0" {
			t.Errorf("a port of %s that is not probed is reached by %s", podIP, got)
		}
		cannotReachTheNode(n, tenant, sources[i])
	}

	t.Run("the older of two pods with one address keeps it, and the other has it after that", func(t *testing.T) {
		n := n.In(t)
		second := n.TenantOf("second", 300, "red", agenttest.Probing(agenttest.ProbePort))
		for _, podIP := range agenttest.AddressesOf(300) {
			agenttest.ExchangeAt(t, nil, tenant.NS, netip.AddrPortFrom(podIP, agenttest.ProbePort), "to the older one")
		}
		tenant.MustDel()
		hasProbes(t, n, routesTo(agenttest.AddressesOf(300), agenttest.ProbePort), rulesOf(agenttest.ProbePort))
		for _, podIP := range agenttest.AddressesOf(300) {
			agenttest.ExchangeAt(t, nil, second.NS, netip.AddrPortFrom(podIP, agenttest.ProbePort), "to the one that is left")
		}
	})
	hasProbes(t, n, nil, nil)
	if names := probeLinks(t); len(names) != 0 {
		t.Errorf("after DEL there are %v", names)
	}
}

func TestAPortThatIsNotProbedGoesItsNormalWay(t *testing.T) {
	n := agenttest.Serving(t)
	addresses := []netip.Addr{far[0].Addr().Next().Next(), far[1].Addr().Next().Next()}
	elsewhere := n.Beyond("eth0-out", func(link netlink.Link) error {
		var own []netip.Prefix
		for _, address := range addresses {
			own = append(own, netip.PrefixFrom(address, address.BitLen()))
		}
		return errors.Join(agenttest.AddAddresses(link, agenttest.Outside...), agenttest.AddAddresses(link, own...))
	})
	tenant := tenantAt(n, "tenant", far, addresses...)
	for i, address := range addresses {
		agenttest.ExchangeAt(t, nil, tenant.NS, netip.AddrPortFrom(address, agenttest.ProbePort), "a probe")
		if from := agenttest.ExchangeAt(t, nil, elsewhere, netip.AddrPortFrom(address, otherPort), "to the host that has the address"); from != agenttest.NodeIPs[i].Addr() {
			t.Errorf("the host sees %s", from)
		}
	}
}

func TestAProbeDivertsNothingThatIsSentToOtherPods(t *testing.T) {
	n := agenttest.Serving(t)
	n.TenantOf("first", 300, "blue", agenttest.Probing(agenttest.ProbePort))
	n.TenantOf("second", 301, "blue", agenttest.Probing(otherPort))
	none := n.TenantOf("none", 302, "blue", corev1.PodSpec{Containers: []corev1.Container{{}}})
	both := append(routesTo(agenttest.AddressesOf(300), agenttest.ProbePort), routesTo(agenttest.AddressesOf(301), otherPort)...)
	slices.Sort(both)
	hasProbes(t, n, both, rulesOf(agenttest.ProbePort, otherPort))
	for i := range agenttest.AddressesOf(300) {
		for _, way := range []struct {
			to   netip.Addr
			port uint16
			want bool
		}{
			{agenttest.AddressesOf(300)[i], agenttest.ProbePort, true}, {agenttest.AddressesOf(300)[i], otherPort, false},
			{agenttest.AddressesOf(301)[i], agenttest.ProbePort, false}, {agenttest.AddressesOf(301)[i], otherPort, true},
			{agenttest.AddressesOf(302)[i], agenttest.ProbePort, false}, {agenttest.AddressesOf(302)[i], otherPort, false},
		} {
			if got := device(t, way.to, way.port); strings.HasPrefix(got, sandbox.ProbePrefix) != way.want {
				t.Errorf("port %d of %s is reached by %s", way.port, way.to, got)
			}
		}
	}
	if links := probeLinks(t); len(links) != 2 {
		t.Errorf("there are probe links %v, and %s has no probe", links, none.Pod.Name)
	}
}

func TestEveryProbeAndHookReachesThePod(t *testing.T) {
	n := agenttest.Serving(t)
	always := corev1.ContainerRestartPolicyAlways
	at := func(port intstr.IntOrString) *corev1.HTTPGetAction { return &corev1.HTTPGetAction{Port: port} }
	spec := corev1.PodSpec{
		Containers: []corev1.Container{{
			Ports:         []corev1.ContainerPort{{Name: "health", ContainerPort: 8001}},
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: at(intstr.FromString("health"))}},
			StartupProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 8002}}},
			Lifecycle:     &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: at(intstr.FromInt32(8003))}},
		}},
		InitContainers: []corev1.Container{{
			RestartPolicy: &always,
			StartupProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: at(intstr.FromInt32(8004))}},
		}},
	}
	tenant := n.TenantOf("tenant", 300, "blue", spec)
	hasProbes(t, n, routesTo(agenttest.AddressesOf(300), 8001, 8002, 8003, 8004), rulesOf(8001, 8002, 8003, 8004))
	for _, podIP := range agenttest.AddressesOf(300) {
		for port := uint16(8001); port <= 8004; port++ {
			agenttest.ExchangeAt(t, nil, tenant.NS, netip.AddrPortFrom(podIP, port), "a probe")
		}
	}
	var ports []uint16
	for port := uint16(7001); port <= 7020; port++ {
		ports = append(ports, port)
	}
	greedy := n.TenantOf("greedy", 301, "blue", agenttest.Probing(ports...))
	warned(n, greedy.Pod, probes.ReasonTooManyPorts, "16")
	if got := len(probeRules(t)); got != 2*(4+16) {
		t.Errorf("there are %d rules", got)
	}
}

// cannotReachTheNode checks that the link passes only replies.
func cannotReachTheNode(n *agenttest.Node, c *agenttest.Container, address netip.Addr) {
	n.Helper()
	to := address
	if to.Is6() {
		to = to.WithZone("probe0")
	}
	listener, err := net.Listen("tcp", "[::]:0")
	must.Succeed(n.TB, err)
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
	must.Succeed(n.TB, c.NS.Do(func(ns.NetNS) error {
		connection, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), time.Second)
		if err == nil {
			n.Errorf("a pod reached its node at %s", to)
			return connection.Close()
		}
		return nil
	}))
}
