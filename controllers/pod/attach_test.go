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
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

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

func TestAnnotationsWithoutEffectGetOneEvent(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	p := w.pod("default", "wishful", "activation_strategy", "none", "mirror", "true", "default_route", "true", "port_security", "true")
	w.warnedOf(p, "AnnotationNotSupported", "nothing about ovn.kubernetes.io/activation_strategy")

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
	marker := w.pod("default", "marker", "activation_strategy", "none")
	w.warnedOf(marker, "AnnotationNotSupported", "activation_strategy") // events are sent in order
	if n := w.events(p, "AnnotationNotSupported"); n != 1 {
		t.Errorf("it has %d events", n)
	}
	if n := w.events(plain, "AnnotationNotSupported"); n != 0 {
		t.Errorf("a pod without a request has %d events", n)
	}
}

func TestBadRequestsGetAnEventAndHurtNoOtherPod(t *testing.T) {
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

func TestPodsWaitForTheObjectsThatTheyName(t *testing.T) {
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
	vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: kubeovnv1.VipSpec{
		Subnet: "ovn-default", AllowedNamespaces: []kubeovnv1.AllowedNamespace{"default"},
	}}
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

// An invalid request keeps a new pod waiting. On a connected pod it has no effect. Events name the annotation.
func TestRequestsThatAreNotValidAreReported(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.start()
	long := "dns_server={" + strings.Repeat("1.1.1.1,", 17_000) + "}"
	for i, request := range [][2]string{
		{"logical_switch", "../ovn-default"}, {"ip_pool", "a\x00b"}, {"vip", "a,b"}, {"north_gateway", "\x1b[2J"}, {"port_vips", strings.Repeat("10.16.0.2,", 9_000)},
		{"dhcp-v4-options", long}, {"dhcp-v4-options", "dns_server={" + strings.Repeat("1.1.1.1,", 64) + "}"},
	} {
		p := newPod("default", fmt.Sprint("waiting-", i), request[0], request[1])
		w.Create(p)
		w.warned(p, "annotation ovn.kubernetes.io/"+request[0]+"=")
	}
	p := w.pod("default", "lenient", "port_security", "yes", "aaps", "a/b", "layer2_forward", "1")
	for _, name := range []string{"port_security", "aaps", "layer2_forward"} {
		w.warnedOf(p, "AnnotationInvalid", "annotation ovn.kubernetes.io/"+name+"=")
	}
	p = w.pod("default", "changed")
	w.Change(p, func() { p.Annotations[kubeovnv1.AnnotationNorthGateway.Key()] = "nowhere" })
	w.warnedOf(p, "AnnotationInvalid", `north_gateway="nowhere"`)
}

// TestAPodThatIsCreatedWithItsSubnetIsNotWarned: charts create both at once. A subnet with a real problem is explained by its own message,
// because tenants cannot read Subnets.
func TestAPodThatIsCreatedWithItsSubnetIsNotWarned(t *testing.T) {
	w := newWorld(t)
	logged := w.Logged()
	w.namespace("shop", nil)
	process := w.start()
	create := func(name, cidr, gateway string) *kubeovnv1.Subnet {
		t.Helper()
		s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, Gateway: gateway}}
		w.Create(s)
		return s
	}
	s := create("shop", "10.20.0.0/24", "10.20.0.1")
	p := newPod("shop", "web", "logical_switch", "shop")
	w.Create(p)
	logged(`"a pod waits"`, "subnet shop is not validated yet")
	w.Must(process.Allocator.SetSubnet("shop", ipam.Subnet{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/24")}}))
	w.Must(process.Engine.Apply(t.Context(), translate.SubnetOwner("shop"), translate.Subnet(translate.SubnetInputs{
		Name: "shop", Vpc: kubeovnv1.DefaultVpc, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/24")}, Gateways: []netip.Addr{netip.MustParseAddr("10.20.0.1")},
	})))
	w.InForce(s)
	w.allocated(p)
	if n := w.events(p, "AcquireAddressFailed"); n > 0 {
		t.Errorf("%d events about a pod that was created with its subnet", n)
	}

	wrong := create("wrong", "10.16.0.0/24", "10.16.0.1")
	q := newPod("shop", "other", "logical_switch", "wrong")
	w.Create(q)
	logged(`"a pod waits"`, "subnet wrong is not validated yet")
	w.Refuse(wrong, "cidrBlock 10.16.0.0/24 overlaps with another subnet")
	w.warned(q, "subnet wrong is not valid: cidrBlock 10.16.0.0/24 overlaps with another subnet")
}

// TestAPodHasTheCauseOfItsPool: a pod may be created together with its IPPool, and tenants cannot read IPPools.
func TestAPodHasTheCauseOfItsPool(t *testing.T) {
	w := newWorld(t)
	logged := w.Logged()
	w.subnet("ovn-default", "10.16.0.0/24")
	w.start()
	pool := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "few"}, Spec: kubeovnv1.IPPoolSpec{Subnet: "ovn-default", IPs: []string{"10.99.0.1"}}}
	w.Create(pool)
	p := newPod("default", "web", "ip_pool", "few")
	w.Create(p)
	logged(`"a pod waits"`, "IPPool few is not validated yet")
	k8s.SetConditions(&pool.Status.Conditions, pool.Generation, k8s.Validated(validation.Invalid("ips: 10.99.0.1 is outside of the subnet")))
	w.Must(w.Client.Status().Update(w.Context(), pool))
	w.warned(p, "IPPool few is not valid: ips: 10.99.0.1 is outside of the subnet")
}

// TestAPodHasTheCauseOfItsSubnet: a valid subnet is not applied while its Vlan does not exist, and tenants cannot read either.
func TestAPodHasTheCauseOfItsSubnet(t *testing.T) {
	w := newWorld(t)
	logged := w.Logged()
	w.subnet("ovn-default", "10.16.0.0/24")
	w.start()
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "tagged"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.17.0.0/24", Gateway: "10.17.0.1", Vlan: "missing"}}
	w.Create(s)
	k8s.SetConditions(&s.Status.Conditions, s.Generation, k8s.Validated(nil))
	w.Must(w.Client.Status().Update(w.Context(), s))
	p := newPod("default", "web", "logical_switch", "tagged")
	w.Create(p)
	logged(`"a pod waits"`, "subnet tagged is not applied yet")
	k8s.SetConditions(&s.Status.Conditions, s.Generation, k8s.NotReady(kubeovnv1.ReasonWaiting, "Vlan missing does not exist: create it"))
	w.Must(w.Client.Status().Update(w.Context(), s))
	w.Change(p, func() { p.Annotations["ovn.kubernetes.io/ip_family"] = "ipv4" })
	w.warned(p, "subnet tagged is not applied yet: Vlan missing does not exist: create it")
}

// TestPodsUseTheLastValidSpec: an invalid change affects neither running nor new pods, and a valid one reaches the running ones.
func TestPodsUseTheLastValidSpec(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	running := w.pod("default", "running")
	w.Change(s, func() { s.Spec.MTU, s.Spec.CIDRBlock, s.Spec.Gateway = 1300, "10.99.0.0/24", "10.99.0.1" })
	w.Refuse(s, "mtu: too small")
	fresh := w.pod("default", "fresh")
	for _, p := range []*corev1.Pod{running, fresh} {
		w.Get(p)
		if got := p.Annotations[kubeovnv1.AnnotationCIDR.Key()]; got != "10.16.0.0/24" || p.Annotations[kubeovnv1.AnnotationMTU.Key()] == "1300" {
			t.Errorf("pod %s has %v", p.Name, p.Annotations)
		}
	}
	process.Stop()
	w.Get(s)
	s.Spec.CIDRBlock, s.Spec.Gateway = "10.16.0.0/24", "10.16.0.1"
	w.Must(w.Client.Update(w.Context(), s))
	w.start()
	w.InForce(s)
	for _, p := range []*corev1.Pod{running, fresh} {
		w.Eventually(func() string {
			if w.Get(p); p.Annotations[kubeovnv1.AnnotationMTU.Key()] != "1300" {
				return fmt.Sprintf("pod %s has %v", p.Name, p.Annotations)
			}
			return ""
		})
	}
}
