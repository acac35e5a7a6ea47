// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// probeRoutes returns the node's routes of probes as "port address".
func probeRoutes(t *testing.T) (routes []string) {
	t.Helper()
	list, err := netlinksafe.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: 76}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	must.Succeed(t, err)
	for _, r := range list {
		routes = append(routes, fmt.Sprintf("%d %s", r.Table&0xffff, r.Dst.IP))
	}
	slices.Sort(routes)
	return routes
}

// probeRules returns the selectors of the rules of probes, of both families, as `ip rule` shows them.
func probeRules(t *testing.T) (rules []string) {
	t.Helper()
	for _, family := range []string{"-4", "-6"} {
		// The program ip reads the rules independently of our code and its library.
		out, err := exec.Command("ip", family, "rule", "show", "priority", "75").CombinedOutput()
		must.Succeed(t, err)
		for line := range strings.Lines(string(out)) {
			what, _, _ := strings.Cut(line, " lookup")
			rules = append(rules, family+" "+strings.TrimPrefix(what, "75:\tfrom all "))
		}
	}
	return rules
}

// rulesOf returns the rules for ports in the form of probeRules.
func rulesOf(ports ...uint16) (rules []string) {
	for _, family := range []string{"-4", "-6"} {
		for _, port := range ports {
			rules = append(rules, fmt.Sprintf("%s iif lo ipproto tcp dport %d", family, port))
		}
	}
	return rules
}

// routesTo returns the routes to ports of addresses in the form of probeRoutes.
func routesTo(addresses []netip.Addr, ports ...uint16) (routes []string) {
	for _, address := range addresses {
		for _, port := range ports {
			routes = append(routes, fmt.Sprintf("%d %s", port, address))
		}
	}
	slices.Sort(routes)
	return routes
}

// hasProbes waits until the node has exactly these routes and rules.
func hasProbes(t *testing.T, n *agenttest.Node, routes, rules []string) {
	t.Helper()
	want := slices.Sorted(slices.Values(rules))
	n.Eventually(fmt.Sprintf("routes %q and rules %q", routes, want), func() bool {
		return slices.Equal(probeRoutes(t), routes) && slices.Equal(slices.Sorted(slices.Values(probeRules(t))), want)
	})
}

// device returns the device through which the node itself sends to a TCP port.
func device(t *testing.T, address netip.Addr, port uint16) string {
	t.Helper()
	// `ip route get` includes the port in the lookup; the netlink library does not support that.
	out, err := exec.Command("ip", "route", "get", address.String(), "ipproto", "tcp", "dport", fmt.Sprint(port)).CombinedOutput()
	must.Succeed(t, err)
	_, rest, _ := strings.Cut(string(out), " dev ")
	name, _, _ := strings.Cut(rest, " ")
	return name
}

func probeLinks(t *testing.T) (names []string) {
	t.Helper()
	links, err := netlinksafe.LinkList()
	must.Succeed(t, err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, sandbox.ProbePrefix) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// far are networks of a custom VPC to which the node has only default routes.
var far = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:51::/112")}

// tenantAt adds a pod of a custom VPC with a probe of ProbePort, in a subnet with these networks.
func tenantAt(n *agenttest.Node, name string, networks []netip.Prefix, addresses ...netip.Addr) *agenttest.Container {
	n.Helper()
	var gateways []netip.Addr
	for _, network := range networks {
		gateways = append(gateways, network.Masked().Addr().Next())
	}
	subnet := agenttest.SubnetOf(name, ipfamily.Join(networks))
	subnet.Spec.Vpc, subnet.Spec.Gateway = "blue", ipfamily.Join(gateways)
	n.Create(subnet)
	pod := n.CreatePodOf(name, agenttest.Probing(agenttest.ProbePort))
	n.WriteNetwork(pod, v1.PodNetwork{
		UID: pod.UID, Allocated: true, Routed: true, Addresses: addresses, MAC: net.HardwareAddr{0x02, 0, 0, 0x33, 0, 1},
		CIDRs: networks, Gateways: gateways, LogicalSwitch: name, LogicalRouter: "blue",
	})
	return n.Added(pod)
}

// warned waits for a warning event on a pod whose message contains the parts.
func warned(n *agenttest.Node, pod *corev1.Pod, reason string, parts ...string) {
	n.Helper()
	n.Eventually(fmt.Sprintf("event %s with %q", reason, parts), func() bool {
		var list corev1.EventList
		must.Succeed(n.TB, n.API.List(n.Context(), &list, client.InNamespace(pod.Namespace)))
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.UID == pod.UID && e.Type == corev1.EventTypeWarning && e.Reason == reason &&
				!slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(e.Message, part) })
		})
	})
}
