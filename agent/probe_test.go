// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/probes"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

// Ports of the test pods. Nothing listens on deadPort.
const (
	probePort uint16 = 8080
	deadPort  uint16 = 8081
	otherPort uint16 = 9000
)

// probing returns the spec of a pod with TCP probes, in one container per port.
func probing(ports ...uint16) corev1.PodSpec {
	var spec corev1.PodSpec
	for _, port := range ports {
		probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(int32(port))}}}
		spec.Containers = append(spec.Containers, corev1.Container{ReadinessProbe: probe})
	}
	return spec
}

// probeRoutes returns the node's routes of probes as "port address".
func probeRoutes(t *testing.T) (routes []string) {
	t.Helper()
	list, err := netlinksafe.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: 76}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	must(t, err)
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
		must(t, err)
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
func (n *node) hasProbes(t *testing.T, routes, rules []string) {
	t.Helper()
	want := slices.Sorted(slices.Values(rules))
	n.eventually(fmt.Sprintf("routes %q and rules %q", routes, want), func() bool {
		return slices.Equal(probeRoutes(t), routes) && slices.Equal(slices.Sorted(slices.Values(probeRules(t))), want)
	})
}

// device returns the device through which the node itself sends to a TCP port.
func device(t *testing.T, address netip.Addr, port uint16) string {
	t.Helper()
	// `ip route get` includes the port in the lookup; the netlink library does not support that.
	out, err := exec.Command("ip", "route", "get", address.String(), "ipproto", "tcp", "dport", fmt.Sprint(port)).CombinedOutput()
	must(t, err)
	_, rest, _ := strings.Cut(string(out), " dev ")
	name, _, _ := strings.Cut(rest, " ")
	return name
}

func probeLinks(t *testing.T) (names []string) {
	t.Helper()
	links, err := netlinksafe.LinkList()
	must(t, err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, sandbox.ProbePrefix) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// tenant adds a pod of a custom VPC with probes of probePort and deadPort.
func (n *node) tenant(name string, number int) *container {
	n.Helper()
	return n.tenantOf(name, number, "blue", probing(probePort, deadPort))
}

// tenantOf adds a pod of a custom VPC.
func (n *node) tenantOf(name string, number int, vpc string, spec corev1.PodSpec) *container {
	n.Helper()
	pod := n.createPodOf(name, spec)
	n.annotateIn(pod, number, vpc)
	return n.added(pod)
}

func (n *node) added(pod *corev1.Pod) *container {
	n.Helper()
	c := n.sandbox(pod, newID())
	c.mustAdd()
	n.Cleanup(c.mustDel)
	return c
}

// far are networks of a custom VPC to which the node has only default routes.
var far = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:51::/112")}

// tenantAt adds a pod of a custom VPC with a probe of probePort, in a subnet with these networks.
func (n *node) tenantAt(name string, networks []netip.Prefix, addresses ...netip.Addr) *container {
	n.Helper()
	var gateways []netip.Addr
	for _, network := range networks {
		gateways = append(gateways, network.Masked().Addr().Next())
	}
	subnet := subnetOf(name, ipfamily.Join(networks))
	subnet.Spec.Vpc, subnet.Spec.Gateway = "blue", ipfamily.Join(gateways)
	n.create(subnet)
	pod := n.createPodOf(name, probing(probePort))
	n.writeNetwork(pod, v1.PodNetwork{
		UID: pod.UID, Allocated: true, Routed: true, Addresses: addresses, MAC: net.HardwareAddr{0x02, 0, 0, 0x33, 0, 1},
		CIDRs: networks, Gateways: gateways, LogicalSwitch: name, LogicalRouter: "blue",
	})
	return n.added(pod)
}

// warned waits for a warning event on a pod whose message contains the parts.
func (n *node) warned(pod *corev1.Pod, reason string, parts ...string) {
	n.Helper()
	n.eventually(fmt.Sprintf("event %s with %q", reason, parts), func() bool {
		var list corev1.EventList
		must(n.TB, n.api.List(n.Context(), &list, client.InNamespace(pod.Namespace)))
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.UID == pod.UID && e.Type == corev1.EventTypeWarning && e.Reason == reason &&
				!slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(e.Message, part) })
		})
	})
}

func TestTheNodeProbesPodsOfCustomVPCs(t *testing.T) {
	n := serving(t)
	plain := n.sandbox(n.pod("plain", 400), newID())
	plain.mustAdd()
	t.Cleanup(plain.mustDel)
	if names := probeLinks(t); len(names) != 0 {
		t.Errorf("a pod of the default VPC has %v", names)
	}
	tenant := n.tenant("tenant", 300)
	sources := []netip.Addr{netip.MustParseAddr("169.254.254.3"), netip.MustParseAddr("fe80::a9fe:fe03")}
	for i, podIP := range addressesOf(300) {
		if from := exchangeAt(t, nil, tenant.ns, netip.AddrPortFrom(podIP, probePort), strings.Repeat("k", 200_000)); from.WithZone("") != sources[i] {
			t.Errorf("the pod sees %s, want %s", from, sources[i])
		}
		if _, err := net.DialTimeout("tcp", netip.AddrPortFrom(podIP, deadPort).String(), patience); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a port of %s without a listener: %v", podIP, err)
		}
		if got := device(t, podIP, otherPort); got != "ovn0" {
			t.Errorf("a port of %s that is not probed is reached by %s", podIP, got)
		}
		n.cannotReachTheNode(tenant, sources[i])
	}

	t.Run("the older of two pods with one address keeps it, and the other has it after that", func(t *testing.T) {
		n := n.in(t)
		second := n.tenantOf("second", 300, "red", probing(probePort))
		for _, podIP := range addressesOf(300) {
			exchangeAt(t, nil, tenant.ns, netip.AddrPortFrom(podIP, probePort), "to the older one")
		}
		tenant.mustDel()
		n.hasProbes(t, routesTo(addressesOf(300), probePort), rulesOf(probePort))
		for _, podIP := range addressesOf(300) {
			exchangeAt(t, nil, second.ns, netip.AddrPortFrom(podIP, probePort), "to the one that is left")
		}
	})
	n.hasProbes(t, nil, nil)
	if names := probeLinks(t); len(names) != 0 {
		t.Errorf("after DEL there are %v", names)
	}
}

func TestAPortThatIsNotProbedGoesItsNormalWay(t *testing.T) {
	n := serving(t)
	addresses := []netip.Addr{far[0].Addr().Next().Next(), far[1].Addr().Next().Next()}
	elsewhere := n.beyond("eth0-out", func(link netlink.Link) error {
		var own []netip.Prefix
		for _, address := range addresses {
			own = append(own, netip.PrefixFrom(address, address.BitLen()))
		}
		return errors.Join(addAddresses(link, outside...), addAddresses(link, own...))
	})
	tenant := n.tenantAt("tenant", far, addresses...)
	for i, address := range addresses {
		exchangeAt(t, nil, tenant.ns, netip.AddrPortFrom(address, probePort), "a probe")
		if from := exchangeAt(t, nil, elsewhere, netip.AddrPortFrom(address, otherPort), "to the host that has the address"); from != nodeIPs[i].Addr() {
			t.Errorf("the host sees %s", from)
		}
	}
}

func TestAProbeDivertsNothingThatIsSentToOtherPods(t *testing.T) {
	n := serving(t)
	n.tenantOf("first", 300, "blue", probing(probePort))
	n.tenantOf("second", 301, "blue", probing(otherPort))
	none := n.tenantOf("none", 302, "blue", corev1.PodSpec{Containers: []corev1.Container{{}}})
	both := append(routesTo(addressesOf(300), probePort), routesTo(addressesOf(301), otherPort)...)
	slices.Sort(both)
	n.hasProbes(t, both, rulesOf(probePort, otherPort))
	for i := range addressesOf(300) {
		for _, way := range []struct {
			to   netip.Addr
			port uint16
			want bool
		}{
			{addressesOf(300)[i], probePort, true}, {addressesOf(300)[i], otherPort, false},
			{addressesOf(301)[i], probePort, false}, {addressesOf(301)[i], otherPort, true},
			{addressesOf(302)[i], probePort, false}, {addressesOf(302)[i], otherPort, false},
		} {
			if got := device(t, way.to, way.port); strings.HasPrefix(got, sandbox.ProbePrefix) != way.want {
				t.Errorf("port %d of %s is reached by %s", way.port, way.to, got)
			}
		}
	}
	if links := probeLinks(t); len(links) != 2 {
		t.Errorf("there are probe links %v, and %s has no probe", links, none.pod.Name)
	}
}

func TestEveryProbeAndHookReachesThePod(t *testing.T) {
	n := serving(t)
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
	tenant := n.tenantOf("tenant", 300, "blue", spec)
	n.hasProbes(t, routesTo(addressesOf(300), 8001, 8002, 8003, 8004), rulesOf(8001, 8002, 8003, 8004))
	for _, podIP := range addressesOf(300) {
		for port := uint16(8001); port <= 8004; port++ {
			exchangeAt(t, nil, tenant.ns, netip.AddrPortFrom(podIP, port), "a probe")
		}
	}
	var ports []uint16
	for port := uint16(7001); port <= 7020; port++ {
		ports = append(ports, port)
	}
	greedy := n.tenantOf("greedy", 301, "blue", probing(ports...))
	n.warned(greedy.pod, probes.ReasonTooManyPorts, "16")
	if got := len(probeRules(t)); got != 2*(4+16) {
		t.Errorf("there are %d rules", got)
	}
}

// join creates the IP object of a node, as the controller would. The returned function deletes it.
func (n *node) join(name string, addresses ...netip.Addr) (leave func()) {
	n.Helper()
	ip := &v1.IP{
		ObjectMeta: metav1.ObjectMeta{
			Name: v1.NodePortName(name), Labels: map[string]string{v1.LabelSubnet: v1.JoinSubnet},
			Annotations: map[string]string{v1.AnnotationStatusAddresses.Key(): ipfamily.Join(addresses)},
		},
		Spec: v1.IPSpec{Subnet: v1.JoinSubnet, NodeName: name, IPAddress: "100.64.0.9"},
	}
	must(n.TB, n.api.Create(n.Context(), ip))
	return func() { must(n.TB, client.IgnoreNotFound(n.api.Delete(n.root.Context(), ip))) }
}

func TestAddressesThatTheNodeMustReachAreNotDiverted(t *testing.T) {
	n := serving(t)
	addresses := []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:51::7")}
	routes, rules := routesTo(addresses, probePort), rulesOf(probePort)

	t.Run("a node that joins, until it leaves", func(t *testing.T) {
		n := n.in(t)
		tenant := n.tenantAt("joining", far, addresses...)
		n.hasProbes(t, routes, rules)
		leave := n.join("node-2", addresses...)
		defer leave()
		n.hasProbes(t, nil, nil)
		n.warned(tenant.pod, probes.ReasonAddressReserved, "198.51.100.7 is an address of node node-2", "2001:db8:51::7 is an address of node node-2")
		leave()
		n.hasProbes(t, routes, rules)
	})
	t.Run("external addresses of a Service, for pods that start later", func(t *testing.T) {
		n := n.in(t)
		n.tenantAt("older", far, addresses...)
		n.hasProbes(t, routes, rules)
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "taken", Namespace: "default"}, Spec: corev1.ServiceSpec{
			ExternalIPs: []string{addresses[0].String()}, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		must(t, n.api.Create(t.Context(), s))
		defer func() { must(t, n.api.Delete(n.root.Context(), s)) }()
		younger := n.tenantAt("younger", far[:1], addresses[0])
		n.warned(younger.pod, probes.ReasonAddressReserved, "198.51.100.7 is an external address of Service default/taken")
		n.hasProbes(t, routes, rules) // the older pod's
		n.agent.Kill()
		n.startAgent()
		n.waitReady()
		n.hasProbes(t, routes, rules)
		s.Spec.ExternalIPs = []string{"198.51.100.8"}
		must(t, n.api.Update(t.Context(), s))
		both := slices.Sorted(slices.Values(append(routesTo(addresses[:1], probePort), routes...)))
		n.hasProbes(t, both, rules)
	})
	t.Run("a network that is connected later, until it is disconnected", func(t *testing.T) {
		n := n.in(t)
		tenant := n.tenantAt("connecting", far, addresses...)
		n.hasProbes(t, routes, rules)
		link, err := netlink.LinkByName("eth1")
		must(t, err)
		address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 51, 100, 200), Mask: net.CIDRMask(24, 32)}}
		must(t, netlink.AddrAdd(link, address))
		defer func() { _ = netlink.AddrDel(link, address) }()
		n.hasProbes(t, routesTo(addresses[1:], probePort), rules[1:])
		n.warned(tenant.pod, probes.ReasonAddressReserved, "198.51.100.7 is in 198.51.100.0/24, a network connected to the node by interface eth1")
		must(t, netlink.AddrDel(link, address))
		n.hasProbes(t, routes, rules)
	})
	t.Run("a pod on a connected network starts all the same", func(t *testing.T) {
		n := n.in(t)
		neighbours := []netip.Addr{netip.MustParseAddr("172.30.0.9"), netip.MustParseAddr("fd00:172:30::9")}
		tenant := n.tenantAt("neighbour", []netip.Prefix{nodeIPs[0].Masked(), nodeIPs[1].Masked()}, neighbours...)
		n.hasProbes(t, nil, nil)
		n.warned(tenant.pod, probes.ReasonAddressReserved, "172.30.0.9 is in 172.30.0.0/24", "fd00:172:30::9 is in fd00:172:30::/64", "eth0")
	})
	t.Run("a pod in a CIDR of Services", func(t *testing.T) {
		n := n.in(t)
		tenant := n.tenantAt("service", []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, netip.MustParseAddr("10.96.0.10"))
		n.hasProbes(t, nil, nil)
		n.warned(tenant.pod, probes.ReasonAddressReserved, "10.96.0.10 is in 10.96.0.0/12, a CIDR of Services")
	})
}

// cannotReachTheNode checks that the link passes only replies.
func (n *node) cannotReachTheNode(c *container, address netip.Addr) {
	n.Helper()
	to := address
	if to.Is6() {
		to = to.WithZone("probe0")
	}
	listener, err := net.Listen("tcp", "[::]:0")
	must(n.TB, err)
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
	must(n.TB, c.ns.Do(func(ns.NetNS) error {
		connection, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), time.Second)
		if err == nil {
			n.Errorf("a pod reached its node at %s", to)
			return connection.Close()
		}
		return nil
	}))
}

func TestProbesOutliveTheAgent(t *testing.T) {
	n := serving(t)
	tenant := n.tenant("tenant", 300)
	exchanges := func(text string) {
		t.Helper()
		for _, podIP := range addressesOf(300) {
			exchangeAt(t, nil, tenant.ns, netip.AddrPortFrom(podIP, probePort), text)
		}
	}
	routes, rules := routesTo(addressesOf(300), probePort, deadPort), rulesOf(probePort, deadPort)
	n.agent.Kill()
	exchanges("while the agent is away")
	shell(t, "for f in -4 -6; do while ip $f rule del priority 75; do :; done; ip $f rule add priority 75 iif lo ipproto tcp dport 1 lookup 1802502145; done")
	n.startAgent()
	n.hasProbes(t, routes, rules)
	exchanges("once it is back")
	n.waitReady()
	tenant.vanish()
	n.hasProbes(t, nil, nil)
	if links := probeLinks(t); len(links) != 0 {
		t.Errorf("there are still %v", links)
	}
}

// An earlier version had one rule for all ports, and did not record the ports of pods.
func TestProbesOfAnEarlierVersionGetTheirPorts(t *testing.T) {
	n := serving(t)
	tenant := n.tenant("tenant", 300)
	routes, rules := routesTo(addressesOf(300), probePort, deadPort), rulesOf(probePort, deadPort)
	n.hasProbes(t, routes, rules)
	n.agent.Kill()
	port, _ := tenant.port()
	n.vsctl("remove", "Interface", port, "external_ids", "probe_ports")
	shell(t, "for f in -4 -6; do ip $f rule flush protocol 76; done")
	shell(t, "for f in -4 -6; do ip $f route flush table all protocol 76; ip $f rule add priority 75 iif lo lookup 1802071152 protocol 76; done")
	link := probeLinks(t)[0]
	for i, podIP := range addressesOf(300) {
		shell(t, fmt.Sprintf("ip route add %s dev %s table 1802071152 protocol 76 scope link src %s", podIP, link, []string{"169.254.254.3", "fe80::a9fe:fe03"}[i]))
		exchangeAt(t, nil, tenant.ns, netip.AddrPortFrom(podIP, probePort), "before the upgrade")
	}
	n.startAgent()
	n.hasProbes(t, routes, rules)
	for _, podIP := range addressesOf(300) {
		exchangeAt(t, nil, tenant.ns, netip.AddrPortFrom(podIP, probePort), "after the upgrade")
	}
	if _, ids := tenant.port(); ids["probe_ports"] != "8080,8081" {
		t.Errorf("Open vSwitch has %v", ids)
	}
	n.waitReady()
}

// shell sets up interfaces and routes with the program ip, as an administrator or an earlier version would, and not with the tested code.
func shell(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}
