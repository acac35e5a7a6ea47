// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/agent/services"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// service creates a Service with TCP and UDP port 80. The test's API server has IPv4 only, so IPv6 is tested with external addresses.
func (w *world) service(name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	w.Helper()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "tcp", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP},
		}},
	}
	if change != nil {
		change(&s.Spec)
	}
	must.Succeed(w, w.client.Create(w.Context(), s))
	w.Cleanup(func() { w.delete(s) })
	return s
}

func (w *world) delete(o client.Object) {
	ctx := w.Context()
	if ctx.Err() != nil {
		ctx = context.Background()
	}
	must.Succeed(w, client.IgnoreNotFound(w.client.Delete(ctx, o)))
}

// endpoint is a pod with its node and conditions.
type endpoint struct {
	*pod
	node       string
	conditions discoveryv1.EndpointConditions
}

func here(p *pod) endpoint { return endpoint{p, nodeName, discoveryv1.EndpointConditions{}} }

func elsewhere(p *pod) endpoint { return endpoint{p, "elsewhere", discoveryv1.EndpointConditions{}} }

func (e endpoint) draining() endpoint {
	e.conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	return e
}

func (e endpoint) unready() endpoint {
	e.conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(false)}
	return e
}

// serves creates or updates the EndpointSlices of a Service, one for each family.
func (w *world) serves(service string, endpoints ...endpoint) {
	w.Helper()
	for i, of := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("%s-%d", service, i), Labels: map[string]string{discoveryv1.LabelServiceName: service},
			},
			AddressType: of,
			Ports: []discoveryv1.EndpointPort{
				{Name: new("tcp"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)},
				{Name: new("udp"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolUDP)},
			},
		}
		for _, e := range endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{e.ips[i].String()}, NodeName: new(e.node), Conditions: e.conditions,
			})
		}
		if err := w.client.Create(w.Context(), slice); err == nil {
			w.Cleanup(func() { w.delete(slice) })
			continue
		}
		must.Succeed(w, w.client.Update(w.Context(), slice))
	}
}

// expect waits until 20 consecutive connections succeed, exactly the given servers have served them, and each saw clientAddress as the
// source.
func (w *world) expect(from ns.NetNS, network string, to netip.AddrPort, clientAddress netip.Addr, servers ...string) {
	w.Helper()
	slices.Sort(servers)
	w.eventually(func() string {
		seen := map[string]bool{}
		for range 20 {
			a := w.ask(from, network, to, shortly)
			if a.err != nil || a.client != clientAddress.String() {
				return fmt.Sprintf("%s %s: %s, want %v with the client address %s", network, to, a, servers, clientAddress)
			}
			seen[a.server] = true
		}
		for _, s := range servers {
			if !seen[s] {
				return fmt.Sprintf("%s %s: served by %v, want %v", network, to, seen, servers)
			}
			delete(seen, s)
		}
		if len(seen) > 0 {
			return fmt.Sprintf("%s %s: served by %v as well", network, to, seen)
		}
		return ""
	})
}

// fails waits until connections fail with an error.
func (w *world) fails(from ns.NetNS, network string, to netip.AddrPort, want error) {
	w.Helper()
	w.eventually(func() string {
		a := w.ask(from, network, to, shortly)
		if errors.Is(want, errTimeout) {
			var timeout net.Error
			if !errors.As(a.err, &timeout) || !timeout.Timeout() {
				return fmt.Sprintf("%s %s: %s, want no answer", network, to, a)
			}
			return ""
		}
		if !errors.Is(a.err, want) {
			return fmt.Sprintf("%s %s: %s, want %v", network, to, a, want)
		}
		return ""
	})
}

var errTimeout = errors.New("timeout")

func at(address string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), port)
}

func clusterIP(s *corev1.Service) netip.AddrPort { return at(s.Spec.ClusterIP, 80) }

func TestServicesFromTheNodeAndFromOutside(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", 2), w.pod("b", 3)
	s := w.service("web", func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.ExternalIPs = []string{"192.0.2.80", "2001:db8::80"}
	})
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.80"}, {IP: "198.51.100.81", IPMode: new(corev1.LoadBalancerIPModeProxy)}}
	must.Succeed(t, w.client.Status().Update(t.Context(), s))
	nodePorts := map[string]uint16{"tcp": uint16(s.Spec.Ports[0].NodePort), "udp": uint16(s.Spec.Ports[1].NodePort)}

	w.fails(nil, "tcp", clusterIP(s), syscall.ECONNREFUSED)
	w.fails(w.far, "udp", at("192.0.2.80", 80), syscall.ECONNREFUSED)
	w.fails(w.far, "tcp", at("192.0.2.80", 80), syscall.ECONNREFUSED)
	w.fails(w.far, "tcp", netip.AddrPortFrom(nodeIPs[0].Addr(), nodePorts["tcp"]), syscall.ECONNREFUSED)
	w.fails(nil, "tcp", at(s.Spec.ClusterIP, 81), syscall.ECONNREFUSED)

	w.serves("web", here(a), elsewhere(b))
	for _, network := range []string{"tcp", "udp"} {
		w.expect(nil, network, clusterIP(s), nodeIPs[0].Addr(), "a", "b")
		w.expect(nil, network, at("192.0.2.80", 80), nodeIPs[0].Addr(), "a", "b")
		for i, external := range []string{"192.0.2.80", "2001:db8::80"} {
			w.expect(w.far, network, at(external, 80), joinIPs[i].Addr(), "a", "b")
		}
		w.expect(nil, network, at("198.51.100.80", 80), nodeIPs[0].Addr(), "a", "b") // an address of the load balancer
		w.expect(w.far, network, at("198.51.100.80", 80), joinIPs[0].Addr(), "a", "b")
		w.expect(w.far, network, netip.AddrPortFrom(nodeIPs[0].Addr(), nodePorts[network]), joinIPs[0].Addr(), "a", "b")
		w.expect(nil, network, netip.AddrPortFrom(nodeIPs[0].Addr(), nodePorts[network]), nodeIPs[0].Addr(), "a", "b")
		w.expect(b.ns, network, netip.AddrPortFrom(nodeIPs[0].Addr(), nodePorts[network]), joinIPs[0].Addr(), "a", "b") // a pod reaches itself, too
	}
	w.fails(w.far, "tcp", at("198.51.100.81", 80), errTimeout) // ipMode Proxy: only the load balancer serves it
	w.fails(nil, "tcp", at("198.51.100.81", 80), errTimeout)

	w.serves("web", here(a).draining(), elsewhere(b))
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "b")
	w.serves("web", here(a).draining(), elsewhere(b).unready())
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a")
	w.serves("web")
	w.fails(w.far, "tcp", at("2001:db8::80", 80), syscall.ECONNREFUSED)
	w.delete(s)
	w.fails(nil, "tcp", clusterIP(s), syscall.ECONNREFUSED)
	w.fails(w.far, "tcp", at("192.0.2.80", 80), errTimeout) // the node has no rule for it
}

func TestTrafficPolicies(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", 2), w.pod("b", 3)
	s := w.service("local", func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.ExternalTrafficPolicy, s.InternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal, new(corev1.ServiceInternalTrafficPolicyLocal)
		s.ExternalIPs = []string{"192.0.2.81", "2001:db8::81"}
	})
	nodePort := netip.AddrPortFrom(nodeIPs[0].Addr(), uint16(s.Spec.Ports[0].NodePort))
	health := fmt.Sprintf("http://127.0.0.1:%d/healthz", s.Spec.HealthCheckNodePort)
	healthy := func(want int) {
		t.Helper()
		w.eventually(func() string {
			response, err := http.Get(health)
			if err != nil {
				return err.Error()
			}
			defer response.Body.Close()
			if response.StatusCode != want {
				return fmt.Sprintf("health check is %d, want %d", response.StatusCode, want)
			}
			return ""
		})
	}

	w.serves("local", here(a), elsewhere(b))
	healthy(http.StatusOK)
	for i, external := range []string{"192.0.2.81", "2001:db8::81"} {
		w.expect(w.far, "tcp", at(external, 80), farIPs[i].Addr(), "a") // the client's own address is kept
	}
	w.expect(w.far, "tcp", nodePort, farIPs[0].Addr(), "a")
	w.expect(nil, "tcp", at("192.0.2.81", 80), nodeIPs[0].Addr(), "a", "b") // the policy applies to clients outside only
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a")
	w.expect(b.ns, "tcp", nodePort, joinIPs[0].Addr(), "a") // a pod may be on another node, so it counts as outside
	w.expect(b.ns, "tcp", clusterIP(s), joinIPs[0].Addr(), "a")

	w.serves("local", here(a).draining(), elsewhere(b))
	healthy(http.StatusServiceUnavailable)
	w.expect(w.far, "tcp", nodePort, farIPs[0].Addr(), "a")
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a")

	w.serves("local", elsewhere(b))
	w.fails(w.far, "tcp", at("192.0.2.81", 80), errTimeout)
	w.fails(w.far, "tcp", nodePort, errTimeout)
	w.fails(b.ns, "tcp", nodePort, errTimeout)
	w.fails(nil, "tcp", clusterIP(s), errTimeout)
	w.fails(b.ns, "tcp", clusterIP(s), errTimeout)
	w.expect(nil, "tcp", at("192.0.2.81", 80), nodeIPs[0].Addr(), "b")
	w.delete(s)
	w.eventually(func() string {
		if response, err := http.Get(health); err == nil {
			_ = response.Body.Close()
			return "the health check still answers"
		}
		return ""
	})
}

// TestNodePortsOfOtherNodes connects to the node port of another node of a Service with the policy Local. The node itself chooses among
// the endpoints of that node, and the endpoint sees the node's own address. The other node would have to translate it.
func TestNodePortsOfOtherNodes(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", 2), w.pod("b", 3)
	s := w.service("local", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
	})
	w.serves("local", here(a), elsewhere(b))
	port := netip.AddrPortFrom(netip.MustParseAddr("172.30.0.12"), uint16(s.Spec.Ports[0].NodePort))
	ip := w.node("elsewhere", "172.30.0.12,fd00:172:30::12")
	w.expect(nil, "tcp", port, nodeIPs[0].Addr(), "b")
	w.serves("local", here(a), elsewhere(b).draining())
	w.expect(nil, "tcp", port, nodeIPs[0].Addr(), "b")
	w.serves("local", here(a))
	w.fails(nil, "tcp", port, syscall.EHOSTUNREACH) // packets go to that node, which does not exist
	w.serves("local", here(a), elsewhere(b))
	w.expect(nil, "tcp", port, nodeIPs[0].Addr(), "b")
	must.Succeed(t, w.client.Delete(t.Context(), ip))
	w.fails(nil, "tcp", port, syscall.EHOSTUNREACH)
	w.delete(s)
}

// node creates the IP object from which other nodes read a node's addresses.
func (w *world) node(name, addresses string) *v1.IP {
	w.Helper()
	ip := &v1.IP{
		ObjectMeta: metav1.ObjectMeta{
			Name: v1.NodePortName(name), Labels: map[string]string{v1.LabelSubnet: v1.JoinSubnet},
			Annotations: map[string]string{v1.AnnotationNodeAddresses.Key(): addresses},
		},
		Spec: v1.IPSpec{Subnet: v1.JoinSubnet, NodeName: name, IPAddress: "100.64.0.9"},
	}
	must.Succeed(w, w.client.Create(w.Context(), ip))
	return ip
}

func TestAffinity(t *testing.T) {
	w := newWorld(t)
	pods := []*pod{w.pod("a", 2), w.pod("b", 3), w.pod("c", 4)}
	all := []endpoint{here(pods[0]), elsewhere(pods[1]), elsewhere(pods[2])}
	s := w.service("sticky", func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeNodePort
		s.SessionAffinity = corev1.ServiceAffinityClientIP
		s.ExternalIPs = []string{"192.0.2.82", "2001:db8::82"}
	})
	w.serves("sticky", all...)
	fronts := []netip.AddrPort{
		at("192.0.2.82", 80), at("2001:db8::82", 80), netip.AddrPortFrom(nodeIPs[0].Addr(), uint16(s.Spec.Ports[0].NodePort)),
	}
	for _, front := range fronts {
		var first answer
		w.eventually(func() string { first = w.ask(w.far, "tcp", front, shortly); return errorText(first.err) })
		for range 20 {
			if a := w.ask(w.far, "tcp", front, shortly); a.server != first.server {
				t.Fatalf("%s: %s after %s", front, a, first)
			}
		}
		w.stop()
		w.start() // session affinity survives a restart
		others := slices.DeleteFunc(slices.Clone(all), func(e endpoint) bool { return e.name == first.server })
		for range 20 {
			if a := w.ask(w.far, "tcp", front, shortly); a.server != first.server {
				t.Fatalf("%s: %s after %s and a restart", front, a, first)
			}
		}
		w.serves("sticky", others...)
		var second answer
		w.eventually(func() string {
			second = w.ask(w.far, "tcp", front, shortly)
			if second.err != nil || second.server == first.server {
				return fmt.Sprintf("%s: %s, but %s was deleted", front, second, first.server)
			}
			return ""
		})
		w.serves("sticky", all...)
		for range 20 {
			if a := w.ask(w.far, "tcp", front, shortly); a.server != second.server {
				t.Fatalf("%s: %s after %s", front, a, second)
			}
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A UDP client that keeps its source port moves from a removed endpoint to another one.
func TestUDPFollowsEndpoints(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", 2), w.pod("b", 3)
	s := w.service("udp", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalIPs = corev1.ServiceTypeNodePort, []string{"192.0.2.83", "2001:db8::83"}
	})
	w.serves("udp", here(a))
	for _, front := range []netip.AddrPort{
		at("192.0.2.83", 80), at("2001:db8::83", 80), netip.AddrPortFrom(nodeIPs[0].Addr(), uint16(s.Spec.Ports[1].NodePort)),
	} {
		w.serves("udp", here(a))
		w.eventually(func() string {
			if got := w.ask(w.far, "udp", front, shortly); got.server != "a" {
				return got.String()
			}
			return ""
		})
		var c net.Conn
		must.Succeed(t, w.far.Do(func(ns.NetNS) (err error) {
			c, err = net.Dial("udp", front.String())
			return err
		}))
		from := func(server string) {
			t.Helper()
			w.eventually(func() string {
				got, err := talk(c, "udp", shortly)
				if err != nil || !strings.HasPrefix(got, server+" ") {
					return fmt.Sprintf("%s: %q %v, want %s", front, got, err, server)
				}
				return ""
			})
		}
		from("a")
		w.serves("udp", elsewhere(b))
		from("b")
		w.stop()
		w.serves("udp", here(a))
		w.start() // the change occurred while no proxy ran
		from("a")
		_ = c.Close()
	}
}

func TestClientsOfLoadBalancers(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a", 2)
	s := w.service("guarded", func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.LoadBalancerSourceRanges = []string{"203.0.113.0/24", " 203.0.113.0/25"}
	})
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.84"}}
	must.Succeed(t, w.client.Status().Update(t.Context(), s))
	w.serves("guarded", here(a))
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a")
	w.fails(w.far, "tcp", at("198.51.100.84", 80), errTimeout)
	s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, " 172.30.0.99/32 ") // the API allows spaces
	must.Succeed(t, w.client.Update(t.Context(), s))
	w.expect(w.far, "tcp", at("198.51.100.84", 80), joinIPs[0].Addr(), "a")
}

// loadBalancerSourceRanges apply to the node and to its pods, too.
func TestSourceRangesHoldForPodsAndNodes(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", 2), w.pod("b", 3)
	s := w.service("guarded", func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.LoadBalancerSourceRanges = []string{"172.30.0.99/32"} // the host outside
	})
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.84"}}
	must.Succeed(t, w.client.Status().Update(t.Context(), s))
	w.serves("guarded", here(a))
	front := at("198.51.100.84", 80)
	allow := func(ranges ...string) {
		t.Helper()
		must.Succeed(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(s), s))
		s.Spec.LoadBalancerSourceRanges = ranges
		must.Succeed(t, w.client.Update(t.Context(), s))
	}
	serves := func(from ns.NetNS, client string) {
		t.Helper()
		w.eventually(func() string {
			if got := w.ask(from, "tcp", front, shortly); got.server != "a" {
				return fmt.Sprintf("%s: %s, want an answer of a", client, got)
			}
			return ""
		})
	}
	serves(w.far, "the host outside")
	w.fails(nil, "tcp", front, errTimeout)
	w.fails(b.ns, "tcp", front, errTimeout)
	allow(nodeIPs[0].Addr().String() + "/32")
	serves(nil, "the node")
	w.fails(b.ns, "tcp", front, errTimeout)
	w.fails(w.far, "tcp", front, errTimeout)
	allow(b.ips[0].String() + "/32")
	serves(b.ns, "the pod")
	w.fails(nil, "tcp", front, errTimeout)
	w.fails(w.far, "tcp", front, errTimeout)
}

// If two Services request the same external address and port, the older one has it until it is deleted.
func TestOneAddressOfTwoServices(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", 2), w.pod("b", 3)
	external := func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.85"} }
	first := w.service("first", external)
	w.serves("first", here(a))
	w.expect(w.far, "tcp", at("192.0.2.85", 80), joinIPs[0].Addr(), "a")
	second := w.service("second", external)
	w.serves("second", here(b))
	w.expect(nil, "tcp", clusterIP(second), nodeIPs[0].Addr(), "b")
	w.expect(w.far, "tcp", at("192.0.2.85", 80), joinIPs[0].Addr(), "a")
	w.delete(first)
	w.expect(w.far, "tcp", at("192.0.2.85", 80), joinIPs[0].Addr(), "b")
}

// An older Service gets an address that a younger one had first. The result is the same after a restart of the agent, and in OVN.
func TestTheOlderServiceTakesAnAddress(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", 2), w.pod("b", 3)
	first := w.service("a-first", nil)
	w.serves("a-first", here(a))
	w.service("b-second", func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.86"} })
	w.serves("b-second", here(b))
	w.expect(w.far, "tcp", at("192.0.2.86", 80), joinIPs[0].Addr(), "b")
	ask := func(ips ...string) {
		t.Helper()
		must.Succeed(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(first), first))
		first.Spec.ExternalIPs = ips
		must.Succeed(t, w.client.Update(t.Context(), first))
	}
	ask("192.0.2.86")
	w.expect(w.far, "tcp", at("192.0.2.86", 80), joinIPs[0].Addr(), "a")
	w.stop()
	w.start()
	w.expect(w.far, "tcp", at("192.0.2.86", 80), joinIPs[0].Addr(), "a")
	ask()
	w.expect(w.far, "tcp", at("192.0.2.86", 80), joinIPs[0].Addr(), "b")
}

func TestRemoveLeavesNothing(t *testing.T) {
	w := newWorld(t)
	s := w.service("removed", nil)
	w.serves("removed", here(w.pod("a", 2)))
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a")
	w.stop()
	nft, err := knftables.New(knftables.InetFamily, services.Table)
	must.Succeed(t, err)
	for range 2 { // the second time nothing exists
		must.Succeed(t, services.Remove(t.Context(), nft))
		if out, err := nodetest.TryNFT("list table inet " + services.Table); err == nil {
			t.Fatalf("the table is still there: %s", out)
		}
	}
}

func TestRestartMakesTheTableSo(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", 2), w.pod("b", 3)
	s := w.service("kept", nil)
	gone := w.service("gone", nil)
	w.serves("kept", here(a))
	w.serves("gone", here(a))
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a")
	w.expect(nil, "tcp", clusterIP(gone), nodeIPs[0].Addr(), "a")
	w.stop()
	w.start()
	w.stop()                                                   // before the proxy has read anything
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a") // the table still serves
	w.delete(gone)
	w.serves("kept", elsewhere(b))
	nodetest.NFT(t, "add rule inet "+services.Table+" services drop")
	w.start()
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "b")
	w.fails(nil, "tcp", clusterIP(gone), syscall.ECONNREFUSED)
}

// Services that exceed the bound of their namespace are not served until there is room. Older Services take precedence; Services of the
// same second are ordered by name.
func TestServicesThatExceedABoundAreNotServed(t *testing.T) {
	before := svc.Bounds
	w := emptyWorld(t)
	a := w.pod("a", 2)
	first, second := w.service("bound-a", nil), w.service("bound-b", nil)
	w.serves("bound-a", here(a))
	w.serves("bound-b", here(a))
	// Room for one of them.
	svc.Bounds.Group = svc.Flows(first, nil)*2 - 1
	t.Cleanup(func() { w.stop(); svc.Bounds = before })
	w.start()
	w.expect(nil, "tcp", clusterIP(first), nodeIPs[0].Addr(), "a")
	w.fails(nil, "tcp", clusterIP(second), syscall.ECONNREFUSED)
	w.eventually(func() string {
		if n := w.metric("kiln_services_refused"); n == 0 {
			return "no Service is refused"
		}
		return ""
	})
	w.delete(first)
	w.expect(nil, "tcp", clusterIP(second), nodeIPs[0].Addr(), "a")
}
