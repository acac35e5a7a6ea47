// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/eventually"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

func TestAPodGetsItsNetworkInOneTransactionAndOnePatch(t *testing.T) {
	for protocol, cidr := range map[string]string{
		"IPv4": "10.16.0.0/24",
		"IPv6": "fd00:10:16::/112",
		"Dual": "10.16.0.0/24,fd00:10:16::/112",
	} {
		t.Run(protocol, func(t *testing.T) {
			w := newWorld(t)
			subnet := w.subnet("ovn-default", cidr)
			process := w.start()
			p := w.pod("default", "web")

			network := w.allocated(p)
			cidrs := ipfamily.Join(network.CIDRs)
			if len(network.Addresses) != len(network.CIDRs) || cidrs != cidr || ipfamily.Join(network.Gateways) != subnet.Spec.Gateway {
				t.Errorf("network is %+v", network)
			}
			if network.LogicalSwitch != "ovn-default" || network.LogicalRouter != "ovn-cluster" || network.NICType != "veth-pair" {
				t.Errorf("network is %+v", network)
			}
			port := w.port(p)
			want := network.MAC.String() + " " + strings.ReplaceAll(ipfamily.Join(network.Addresses), ",", " ")
			if got := port.Strings("addresses"); len(got) != 1 || got[0] != want {
				t.Errorf("port has %v, want %s", got, want)
			}
			if len(port.Strings("port_security")) != 0 {
				t.Errorf("port security is on")
			}
			var left []string // by the pod's own node
			for _, set := range w.Database.Rows("Address_Set") {
				if strings.Contains(fmt.Sprint(set["external_ids"]), "n1") {
					left = append(left, set.Strings("addresses")...)
				} else if others := set.Strings("addresses"); len(others) > 0 {
					t.Errorf("%v is in a set of another node", others)
				}
			}
			slices.Sort(left)
			if got, want := strings.Join(left, ","), ipfamily.Join(network.Addresses); got != want {
				t.Errorf("the sets of the node hold %s, want %s", got, want)
			}
			ip := w.ipObject(p)
			if ip.Spec.NodeName != "n1" || ip.Spec.Subnet != "ovn-default" || ip.Spec.MACAddress != network.MAC.String() ||
				ip.Labels["ovn.kubernetes.io/subnet"] != "ovn-default" || ip.Labels["ovn.kubernetes.io/node-name"] != "n1" {
				t.Errorf("IP object has %+v and labels %v", ip.Spec, ip.Labels)
			}
			if n := process.Writes(http.MethodPatch, "/pods/web"); n != 1 {
				t.Errorf("%d patches", n)
			}
			if n := process.Transactions(); n != 1 {
				t.Errorf("%d transactions", n)
			}
		})
	}
}

// The metrics measure a pod that gets its network once: each leg of docs/operations/metrics.md, and the whole path.
func TestWhatIsMeasuredOfAPod(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	left, _ := w.Metric("kiln_pod_records_held") // from processes of other tests, which stopped with unwritten IP objects
	w.start()
	w.pod("default", "first")
	count := func(leg string) float64 {
		n, _ := w.Metric("kiln_pod_leg_seconds", "leg", leg)
		return n
	}
	legs := []string{"seen", "address", "committed", "annotated"}
	w.Eventually(func() string { // the measurement of the first pod may not have ended yet
		if count("annotated") == 0 {
			return "no pod is measured"
		}
		return ""
	})
	before := map[string]float64{}
	for _, leg := range legs {
		before[leg] = count(leg)
	}
	whole, _ := w.Metric("kiln_pod_network_seconds")
	p := w.pod("default", "second")
	w.Measures(whole+1, "kiln_pod_network_seconds")
	for _, leg := range legs {
		w.Measures(before[leg]+1, "kiln_pod_leg_seconds", "leg", leg)
	}
	w.ipObject(p)
	w.Measures(left, "kiln_pod_records_held")
}

func TestRequestsOfAPod(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	w.subnet("other", "10.17.0.0/24", func(s *kubeovnv1.SubnetSpec) {
		s.GatewayType = kubeovnv1.GatewayCentralized
		s.MTU = 1300
	})
	w.start()

	p := w.pod("default", "fixed", "ip_address", "10.16.0.77", "mac_address", "02:00:00:00:00:77", "port_security", "true")
	if got := address(p); !strings.HasPrefix(got, "10.16.0.77,fd00:10:16::") {
		t.Errorf("static address became %s", got)
	}
	if got := w.port(p).Strings("port_security"); len(got) != 1 || !strings.HasPrefix(got[0], "02:00:00:00:00:77 10.16.0.77 fd00:") {
		t.Errorf("port security is %v", got)
	}
	if got := address(w.pod("default", "v6", "ip_family", "ipv6")); !strings.HasPrefix(got, "fd00:10:16::") || strings.Contains(got, ",") {
		t.Errorf("a pod of one family has %s", got)
	}
	appliance := w.pod("default", "appliance", "layer2_forward", "true", "north_gateway", "10.16.0.200", "ip_family", "ipv4")
	if got := w.port(appliance).Strings("addresses"); len(got) != 2 || !slices.Contains(got, "unknown") {
		t.Errorf("the port of a pod that forwards has %v", got)
	}
	north := func() (found []string) {
		for _, row := range w.Database.Rows("Logical_Router_Policy") {
			if fmt.Sprint(row["priority"]) == "29250" {
				found = append(found, fmt.Sprint(row["match"], " to ", row.Strings("nexthops")))
			}
		}
		return found
	}
	if got, want := fmt.Sprint(north()), "[ip4.src == "+address(appliance)+" to [10.16.0.200]]"; got != want {
		t.Errorf("policies are %s, want %s", got, want)
	}
	w.Change(appliance, func() {
		delete(appliance.Annotations, "ovn.kubernetes.io/north_gateway")
		delete(appliance.Annotations, "ovn.kubernetes.io/layer2_forward")
	})
	w.Eventually(func() string {
		if got := north(); len(got) > 0 {
			return fmt.Sprint("policies are ", got)
		}
		if got := w.portNow(appliance).Strings("addresses"); len(got) != 1 {
			return fmt.Sprint("the port of a pod that no longer forwards has ", got)
		}
		return ""
	})
	network := w.allocated(w.pod("default", "elsewhere", "logical_switch", "other"))
	if network.LogicalSwitch != "other" || network.MTU != 1300 {
		t.Errorf("network is %+v", network)
	}
}

func TestAnnotationsWithoutEffectAreToldOnce(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	p := w.pod("default", "wishful", "eip", "192.0.2.1", "mirror", "true", "default_route", "true", "port_security", "true")
	w.warnedOf(p, "AnnotationNotSupported", "nothing about ovn.kubernetes.io/eip, ovn.kubernetes.io/mirror")

	process.Stop()
	w.start()
	w.Get(p)
	w.Change(p, func() {
		p.Annotations["ovn.kubernetes.io/ip_family"] = "ipv4"
		delete(p.Annotations, "ovn.kubernetes.io/mac_address")
	})
	w.Eventually(func() string { // the second process has reconciled the pod
		if w.Get(p); p.Annotations["ovn.kubernetes.io/mac_address"] == "" {
			return "the annotation with the MAC address is not there again"
		}
		return ""
	})
	plain := w.pod("default", "plain")
	marker := w.pod("default", "marker", "eip", "192.0.2.2")
	w.warnedOf(marker, "AnnotationNotSupported", "eip") // events are sent in order
	if n := w.events(p, "AnnotationNotSupported"); n != 1 {
		t.Errorf("it has %d events", n)
	}
	if n := w.events(plain, "AnnotationNotSupported"); n != 0 {
		t.Errorf("a pod without a request has %d events", n)
	}
}

func TestBadRequestsAreToldAndHurtNoOtherPod(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	holder := w.pod("default", "holder")

	bad := map[string]*corev1.Pod{}
	for name, c := range map[string]struct{ key, value, says string }{
		"taken":   {"ip_address", address(holder), "taken by holder.default"},
		"gateway": {"ip_address", "10.16.0.1", "taken by gateway"},
		"outside": {"ip_address", "10.99.0.1", "10.99.0.1 is not one that a port of subnet ovn-default (10.16.0.0/24) can have"},
		"garbled": {"ip_address", "10.16.0.300", "ovn.kubernetes.io/ip_address"},
		"mac":     {"mac_address", "ff:ff:ff:ff:ff:ff", "ovn.kubernetes.io/mac_address"},
		"family":  {"ip_family", "ipv6", "no CIDR of the family"},
		"join":    {"logical_switch", "join", "for nodes"},
		"missing": {"logical_switch", "nowhere", "subnet nowhere does not exist"},
	} {
		p := newPod("default", name, c.key, c.value)
		w.Create(p)
		w.warned(p, c.says)
		bad[name] = p
	}
	w.pod("default", "other")
	for name, p := range bad {
		if w.portNow(p) != nil || process.Writes(http.MethodPatch, "/pods/"+name) != 0 {
			t.Errorf("pod %s got something", name)
		}
	}

	w.Change(bad["garbled"], func() { bad["garbled"].Annotations["ovn.kubernetes.io/ip_address"] = "10.16.0.200" })
	w.allocated(bad["garbled"])
	w.subnetIn(process, "nowhere", "10.20.0.0/24")
	w.allocated(bad["missing"])
	was := address(holder)
	w.Delete(holder)
	w.allocated(bad["taken"])
	if got := address(bad["taken"]); got != was {
		t.Errorf("the pod that waited for %s got %s", was, got)
	}
}

func TestAPodWithANodesPortNameIsRefused(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.namespace("b", nil)
	process := w.start()
	join, err := ipfamily.ParseCIDRs("100.64.0.0/16")
	w.Must(err)
	w.Must(process.Allocator.SetSubnet("join", ipam.Subnet{CIDRs: join}))
	if _, err := process.Allocator.Allocate("node-a.b", ipam.Request{Subnet: "join"}); err != nil {
		t.Fatal(err)
	}
	p := newPod("b", "node-a")
	w.Create(p)
	w.warned(p, "port name node-a.b belongs to a node")
	w.Delete(p)
	w.pod("b", "after") // reconciled after the deletion
	if _, held := process.Allocator.Lookup("node-a.b"); !held {
		t.Error("the node's lease was released with the pod")
	}
}

func TestAPodIsToldThatItsPortIsRefused(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.namespace("b", nil)
	w.Repeats()
	w.start()
	foreign := nbtest.Where("name", "==", "foreign")
	w.Database.Transact(
		nbtest.Op{"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "port", "row": map[string]any{"name": "a.b"}},
		nbtest.Op{"op": "insert", "table": "Logical_Switch", "row": map[string]any{"name": "foreign", "ports": []any{"named-uuid", "port"}}},
	)
	p := newPod("b", "a")
	w.Create(p)
	w.warned(p, "the northbound database refuses the port of this pod")
	w.pod("b", "other")
	w.Database.Transact(nbtest.Op{"op": "delete", "table": "Logical_Switch", "where": foreign})
	w.allocated(p)
}

func TestANodeTakesItsPortNameFromAPod(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.namespace("b", nil)
	process := w.start()
	p, other := w.pod("b", "node-a"), w.pod("b", "node-c")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a.b"}}
	w.Create(node)
	w.warned(p, "port name node-a.b belongs to a node")
	if w.portNow(p) != nil {
		t.Error("the pod keeps a port with the name of a node's")
	}
	if lease, held := process.Allocator.Lookup("node-a.b"); held {
		t.Errorf("the pod keeps %v", lease)
	}
	if w.portNow(other) == nil {
		t.Error("a pod whose port has another name lost it")
	}
	w.Delete(node)
	eventually.Wait{For: "the pod must get a port once there is no such node"}.Holds(t, func() bool { return w.portNow(p) != nil })
}

func TestPodsWaitForWhatTheyName(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	// The test plays the controllers of IPPools and Vips.
	ofPool, ofVip := netip.MustParseAddr("10.16.0.40"), netip.MustParseAddr("10.16.0.50")
	w.Must(process.Allocator.SetPools("ovn-default", []ipam.Pool{{Name: "late", Ranges: []ipfamily.Range{{From: ofPool, To: ofPool}}}}))
	_, err := process.Allocator.Allocate(translate.VipHolder("late"), ipam.Request{Subnet: "ovn-default", Addresses: []netip.Addr{ofVip}})
	w.Must(err)

	pooled, user := newPod("default", "pooled", "ip_pool", "late"), newPod("default", "user", "vip", "late")
	w.Create(pooled, user)
	w.warned(pooled, "IPPool late, which annotation")
	w.warned(user, "Vip late, which annotation")
	w.Rests("pod")
	w.Create(&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: kubeovnv1.IPPoolSpec{Subnet: "ovn-default", IPs: []string{ofPool.String()}}})
	if w.allocated(pooled); address(pooled) != ofPool.String() {
		t.Errorf("the pod of the pool has %s", address(pooled))
	}
	w.Rests("pod")
	vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: kubeovnv1.VipSpec{Subnet: "ovn-default"}}
	w.Create(vip)
	vip.Status.V4IP = ofVip.String()
	w.Must(w.Client.Status().Update(w.Context(), vip))
	if w.allocated(user); address(user) != ofVip.String() {
		t.Errorf("the pod of the Vip has %s", address(user))
	}
}

func TestPodsOfAFullSubnetGetWhatBecomesFree(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.subnet("tiny", "10.17.0.0/29") // five addresses
	w.start()
	var running, waiting []*corev1.Pod
	for i := range 5 {
		running = append(running, w.pod("default", fmt.Sprintf("running-%d", i), "logical_switch", "tiny"))
	}
	for i := range 3 {
		p := newPod("default", fmt.Sprintf("waiting-%d", i), "logical_switch", "tiny")
		w.Create(p)
		w.warned(p, "subnet tiny is full")
		waiting = append(waiting, p)
	}
	w.pod("default", "elsewhere")
	for _, p := range running[:3] {
		w.Delete(p)
	}
	for _, p := range waiting {
		w.allocated(p)
	}
}

func TestAPodWaitsForTheFamilyThatIsFull(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/30,fd00:10:16::/112") // one IPv4 address
	process := w.start()
	first := w.pod("default", "first")
	second := newPod("default", "second")
	w.Create(second)
	w.warned(second, "subnet ovn-default is full, it has no free IPv4 address")
	w.pod("default", "third", "ip_family", "ipv6")
	if using := process.Allocator.Usage("ovn-default").IPv6().Using; using != 2 {
		t.Errorf("%v IPv6 addresses are in use", using)
	}
	w.Delete(first)
	w.allocated(second)
	w.agree(process)
}

// The admission policy denies changes of results. A user can apply again a manifest with another spelling of an address.
func TestTheSpellingOfARequestStays(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	process := w.start()
	asked := map[string]string{"ip_address": "10.16.0.9, FD00:0010:16::000B", "mac_address": "02-00-00-AB-CD-EF"}
	p := w.pod("default", "spelled", "ip_address", asked["ip_address"], "mac_address", asked["mac_address"])
	check := func(when string) {
		t.Helper()
		network := w.allocated(p)
		if got := joined(network.Addresses) + " " + network.MAC.String(); got != "10.16.0.9,fd00:10:16::b 02:00:00:ab:cd:ef" {
			t.Errorf("%s: the pod has %s", when, got)
		}
		for name, text := range asked {
			if got := p.Annotations[kubeovnv1.Annotation(name).Key()]; got != text {
				t.Errorf("%s: annotation %s is %q, want %q as in the manifest", when, name, got, text)
			}
		}
	}
	check("allocated")
	process.Stop()
	w.losePorts()
	w.start()
	w.port(p)
	check("after a restart without the database")
	w.pod("default", "other") // its reconciles are over
	partial := w.pod("default", "partial", "ip_address", "10.16.0.77", "mac_address", "02:00:00:00:00:0A")
	if got := address(partial); !strings.HasPrefix(got, "10.16.0.77,fd00:10:16::") {
		t.Errorf("a pod that asked for one address of two has %s", got)
	}
}

func TestANamespacesSubnetsAreTriedInOrder(t *testing.T) {
	w := newWorld(t)
	w.namespace("shop", map[string]string{"team": "sales"})
	w.subnet("ovn-default", "10.16.0.0/24")
	w.subnet("a", "10.17.0.0/30", serving("shop")) // one address
	w.subnet("b", "10.18.0.0/30", func(s *kubeovnv1.SubnetSpec) {
		s.NamespaceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"team": "sales"}}}
	})
	process := w.start()
	for i, want := range []string{"a", "b"} {
		p := w.pod("shop", fmt.Sprintf("p%d", i))
		if got := p.Annotations["ovn.kubernetes.io/logical_switch"]; got != want {
			t.Errorf("pod %d is in subnet %s, want %s", i, got, want)
		}
	}
	p := newPod("shop", "p2")
	w.Create(p)
	w.warned(p, "subnet b is full")
	w.subnetIn(process, "c", "10.19.0.0/30", serving("shop"))
	w.allocated(p)
	if got := p.Annotations["ovn.kubernetes.io/logical_switch"]; got != "c" {
		t.Errorf("the pod that waited is in subnet %s, want c", got)
	}

	w.subnetIn(process, "d", "10.20.0.0/30", func(s *kubeovnv1.SubnetSpec) {
		s.NamespaceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"team": "support"}}}
	})
	last := newPod("shop", "p3")
	w.Create(last)
	w.warned(last, "subnet c is full")
	w.Rests("pod")
	w.namespace("shop", map[string]string{"team": "support"})
	w.allocated(last)
}

func TestAPodWaitsForItsNode(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	p := newPod("default", "early")
	p.Spec.NodeName = "n3"
	w.Create(p)
	w.pod("default", "other")
	if w.portNow(p) != nil {
		t.Error("the pod has a port without its node's groups")
	}
	w.Nodes = append(w.Nodes, "n3")
	w.subnetIn(process, "another", "10.17.0.0/24")
	w.allocated(p)
}

func TestAPodKeepsItsAddressUntilItIsGone(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()

	terminating := newPod("default", "terminating")
	terminating.Finalizers = []string{"test.kiln.io/hold"}
	w.Create(terminating)
	w.allocated(terminating)
	w.Delete(terminating)
	finished := w.pod("default", "finished")
	finished.Status.Phase = corev1.PodSucceeded
	w.Must(w.Client.Status().Update(w.Context(), finished))
	w.gone(process, finished)
	if w.portNow(terminating) == nil {
		t.Error("a terminating pod lost its port")
	}
	w.Get(terminating)
	w.Change(terminating, func() { terminating.Finalizers = nil })
	w.gone(process, terminating)
}

func TestDamageIsHealedWithTheSameAddress(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	p := w.pod("default", "web")
	was := address(p)
	ip := w.ipObject(p)

	w.Change(p, func() {
		p.Annotations["ovn.kubernetes.io/ip_address"] = "10.16.0.99"
		delete(p.Annotations, "ovn.kubernetes.io/allocated")
		delete(p.Annotations, "ovn.kubernetes.io/pod_uid")
	})
	w.allocated(p)
	if address(p) != was {
		t.Errorf("edited annotations moved the pod from %s to %s", was, address(p))
	}
	w.Database.Transact(
		nbtest.Op{"op": "mutate", "table": "Logical_Switch", "where": []any{}, "mutations": []any{
			[]any{"ports", "delete", []any{"set", []any{nbtest.UUID(w.portUUID(p))}}},
		}},
	)
	w.port(p)
	w.Delete(ip)
	w.ipObject(p)
	w.agree(process)
}

func (w world) portUUID(p *corev1.Pod) string {
	w.Helper()
	for uuid, row := range w.Database.Rows("Logical_Switch_Port") {
		if row["name"] == p.Name+"."+p.Namespace {
			return uuid
		}
	}
	w.Fatalf("pod %s has no port", p.Name)
	return ""
}

func TestAChangedSubnetReachesItsPods(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	p := w.pod("default", "web")
	w.Change(s, func() { s.Spec.MTU = 1280 })
	w.InForce(s, process)
	w.Eventually(func() string {
		w.Get(p)
		if p.Annotations["ovn.kubernetes.io/mtu"] != "1280" {
			return fmt.Sprintf("annotations are %v", p.Annotations)
		}
		return ""
	})
	w.Change(s, func() { s.Spec.MTU = 0 })
	w.InForce(s, process)
	w.Eventually(func() string {
		w.Get(p)
		if _, stays := p.Annotations["ovn.kubernetes.io/mtu"]; stays {
			return "the MTU stays"
		}
		return ""
	})
}

func TestPodsAnswerToDHCPAsTheirSubnetSays(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112", func(s *kubeovnv1.SubnetSpec) { s.EnableDHCP = true })
	process := w.start()
	both, one := w.pod("default", "both"), w.pod("default", "one", "ip_family", "ipv6")
	expect := func(p *corev1.Pod, v4, v6 int) {
		t.Helper()
		w.Eventually(func() string {
			port := w.portNow(p)
			if got4, got6 := len(port.Strings("dhcpv4_options")), len(port.Strings("dhcpv6_options")); got4 != v4 || got6 != v6 {
				return fmt.Sprintf("pod %s refers to %d rows of DHCPv4 and %d of DHCPv6, want %d and %d", p.Name, got4, got6, v4, v6)
			}
			return ""
		})
	}
	expect(both, 1, 1)
	expect(one, 0, 1)
	for _, enable := range []bool{false, true} {
		w.Change(s, func() { s.Spec.EnableDHCP = enable })
		w.InForce(s, process)
		n := map[bool]int{true: 1}[enable]
		expect(both, n, n)
		expect(one, 0, n)
	}
}

func TestDHCPOptionsOfAPod(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112", func(s *kubeovnv1.SubnetSpec) {
		s.EnableDHCP, s.DHCPV4Options, s.MTU = true, "lease_time=600,dns_server=10.96.0.10", 1400
	})
	process := w.start()
	wrong := newPod("default", "wrong", "dhcp-v6-options", "lease_time=9")
	w.Create(wrong)
	w.warned(wrong, "there is no option lease_time")
	plain, own := w.pod("default", "plain"), w.pod("default", "own", "dhcp-v4-options", "lease_time=60")
	expect := func(p *corev1.Pod, want string) {
		t.Helper()
		w.Eventually(func() string {
			of, port := map[string]string{}, w.portNow(p)
			for uuid, row := range w.Database.Rows("DHCP_Options") {
				options := row["options"].(map[string]string)
				of[uuid] = fmt.Sprintf("%s %s %s", options["lease_time"], options["dns_server"], options["mtu"])
			}
			refs := port.Strings("dhcpv4_options")
			if want == "" && len(refs) == 0 || len(refs) == 1 && of[refs[0]] == want {
				return ""
			}
			return fmt.Sprintf("pod %s has %v of %v, want %s", p.Name, refs, of, want)
		})
	}
	expect(own, "60 10.96.0.10 1400")
	if n := len(w.port(own).Strings("dhcpv6_options")); n != 1 {
		t.Errorf("%d rows of DHCPv6, which the subnet answers", n)
	}
	w.Change(s, func() { s.Spec.DHCPV4Options, s.Spec.EnableDHCP = "", false })
	w.InForce(s, process)
	expect(own, "60  1400")
	expect(plain, "")
	w.Change(own, func() { own.Annotations["ovn.kubernetes.io/dhcp-v4-options"] = "dns_server=10.96.0.11" })
	expect(own, "3600 10.96.0.11 1400")
	w.Change(own, func() { own.Annotations["ovn.kubernetes.io/dhcp-v4-options"] = "dns_server=nowhere" })
	w.warnedOf(own, "DHCPOptionsInvalid", "dns_server")
	w.Change(own, func() { delete(own.Annotations, "ovn.kubernetes.io/dhcp-v4-options") })
	expect(own, "")
	w.Eventually(func() string {
		if rows := w.Database.Rows("DHCP_Options"); len(rows) != 0 {
			return fmt.Sprintf("rows are left: %v", rows)
		}
		return ""
	})
}
