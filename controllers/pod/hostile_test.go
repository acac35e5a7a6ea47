// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

func addrs(s ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range s {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// forge writes results on a pod, as its user can without admission policies.
func (w world) forge(p *corev1.Pod, results kubeovnv1.PodNetwork) {
	w.Helper()
	w.Get(p)
	w.Change(p, func() {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		results.UID, results.Allocated = p.UID, true
		for key, value := range results.Annotations() {
			p.Annotations[key] = value
		}
	})
}

// forgeAll creates pods with forged results, by name.
func (w world) forgeAll(results map[string]kubeovnv1.PodNetwork) {
	for name, network := range results {
		p := newPod("default", name)
		w.Create(p)
		w.forge(p, network)
	}
}

// After a restart the controller gives a pod, from its annotations, only the leases that the pod could have requested.
func TestARestartGrantsNoMoreThanARequest(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Vips = []string{"10.16.0.88"} })
	w.Subnet(kubeovnv1.JoinSubnet, func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "100.64.0.0/16" })
	vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "front"}, Spec: kubeovnv1.VipSpec{Subnet: "ovn-default"}}
	w.Create(vip)
	vip.Status.V4IP = "10.16.0.77"
	w.Must(w.Client.Status().Update(w.Context(), vip))
	forged := map[string]kubeovnv1.PodNetwork{
		"gateway": {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.1")},
		"outside": {LogicalSwitch: "ovn-default", Addresses: addrs("10.17.0.9")},
		"join":    {LogicalSwitch: kubeovnv1.JoinSubnet, Addresses: addrs("100.64.0.9")},
		"vip":     {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.77")},
		"shared":  {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.88")},
		"honest":  {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.50")},
	}
	w.forgeAll(forged)
	process := w.start()
	w.Eventually(func() string {
		if lease, held := process.Allocator.Lookup("honest.default"); !held || lease.Addresses[0].String() != "10.16.0.50" {
			return "the pod whose claim is one that it may make does not hold its address"
		}
		return ""
	})
}

// After a restart without the database, a pod keeps an address that its namespace may not use only if the pod's IP object proves it.
func TestARestartGrantsMembersOnly(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	vpc := w.vpc("blue", kubeovnv1.VpcSpec{AllowedNamespaces: []kubeovnv1.AllowedNamespace{"default"}})
	w.subnet("blue-net", "10.17.0.0/24", of("blue"))
	w.Create(&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "bound"}, Spec: kubeovnv1.IPPoolSpec{
		Subnet: "ovn-default", Namespaces: []string{"other"}, IPs: []string{"10.16.0.100..10.16.0.110"},
	}})
	process := w.start()
	member := w.pod("default", "member", "logical_switch", "blue-net", "ip_address", "10.17.0.9")
	w.ipObject(member)
	process.Stop()
	w.losePorts()
	w.Change(vpc, func() { vpc.Spec.AllowedNamespaces = nil })
	forged := map[string]kubeovnv1.PodNetwork{
		"vpc":    {LogicalSwitch: "blue-net", Addresses: addrs("10.17.0.20")},
		"used":   {LogicalSwitch: "blue-net", Addresses: addrs("10.17.0.9")},
		"pool":   {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.105")},
		"honest": {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.50")},
	}
	w.forgeAll(forged)
	process = w.start()
	w.port(member)
	w.has(member, "10.17.0.9")
	honest := newPod("default", "honest")
	w.Get(honest)
	w.port(honest)
	for name, why := range map[string]string{
		"vpc": "VPC blue does not list namespace default", "used": "VPC blue does not list namespace default", "pool": "10.16.0.105 is taken by IPPool bound",
	} {
		p := newPod("default", name)
		w.Get(p)
		w.warned(p, why)
		if lease, held := process.Allocator.Lookup(name + ".default"); held {
			t.Errorf("pod %s holds %v of %s", name, lease.Addresses, lease.Subnet)
		}
	}
}

// After a restart without the database, pods with forged claims do not get the address of the pod whose IP object proves its claim.
func TestARestartGrantsProvenClaimsFirst(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	process := w.start()
	holder := w.pod("default", "holder", "ip_address", "10.16.0.50,fd00:10:16::50")
	w.ipObject(holder)
	process.Stop()
	w.losePorts()
	forged := map[string]kubeovnv1.PodNetwork{}
	for i := range 16 { // the order of the claims is random
		forged[fmt.Sprint("forged-", i)] = kubeovnv1.PodNetwork{LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.50", "fd00:10:16::50")}
	}
	w.forgeAll(forged)
	process = w.start()
	w.port(holder)
	w.held(process, "holder.default", "10.16.0.50,fd00:10:16::50")
	w.Get(holder)
	w.has(holder, "10.16.0.50,fd00:10:16::50")
}

// The addresses that IP objects retain, and those of OvnEips and multicast queriers, are restored after those of pods.
func TestARestartGrantsNoAddressOfOthers(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	set := w.statefulSet("web", 0, 1)
	process := w.start()
	member := replica(set, 0, "n1", "ip_address", "10.16.0.50,fd00:10:16::50")
	w.Create(member)
	w.allocated(member)
	w.ipObject(member)
	w.Delete(member)
	w.away(process, member)
	reserved := reservation("reserved", kubeovnv1.IPSpec{Subnet: "ovn-default", V4IPAddress: "10.16.0.60", V6IPAddress: "fd00:10:16::60"})
	w.Create(reserved)
	w.held(process, "reserved", "10.16.0.60,fd00:10:16::60")
	process.Stop()
	w.losePorts()
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "outside"}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "ovn-default"}}
	w.Create(eip)
	eip.Status.V4IP, eip.Status.V6IP = "10.16.0.70", "fd00:10:16::70"
	w.Must(w.Client.Status().Update(w.Context(), eip))
	w.Get(s)
	s.Status.McastQuerierIP, s.Status.McastQuerierMAC = "10.16.0.80", "02:00:00:00:00:80"
	w.Must(w.Client.Status().Update(w.Context(), s))
	forged := map[string]kubeovnv1.PodNetwork{"honest": {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.90", "fd00:10:16::90")}}
	for i, last := range []string{"50", "60", "70", "80"} {
		forged[fmt.Sprint("forged-", i)] = kubeovnv1.PodNetwork{LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0."+last, "fd00:10:16::99")}
		forged[fmt.Sprint("forged6-", i)] = kubeovnv1.PodNetwork{LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.9"+fmt.Sprint(i+1), "fd00:10:16::"+last)}
	}
	delete(forged, "forged6-3") // a querier has no IPv6 address
	w.forgeAll(forged)
	steps := stepsAt(ipobject.Pace{})
	pods := steps.Restore
	steps.Restore = func(ctx context.Context, p *controllertest.Process) error {
		return errors.Join(pods(ctx, p), // then the controller of OvnEips, which is not part of this test, restores its leases
			p.Allocator.Restore(translate.OvnEipHolder(eip.Name), ipam.Lease{Subnet: "ovn-default", Addresses: addrs(eip.Status.V4IP, eip.Status.V6IP)}))
	}
	process = w.Start(steps)
	w.held(process, translate.OvnEipHolder(eip.Name), "10.16.0.70,fd00:10:16::70")
	w.held(process, "honest.default", "10.16.0.90,fd00:10:16::90")
	w.held(process, "web-0.default", "10.16.0.50,fd00:10:16::50")
	w.held(process, "reserved", "10.16.0.60,fd00:10:16::60")
	w.held(process, translate.QuerierHolder("ovn-default"), "10.16.0.80")
	w.ipObject(member)
	for name, network := range forged {
		lease, held := process.Allocator.Lookup(name + ".default")
		if name != "honest" && held && slices.ContainsFunc(lease.Addresses, func(a netip.Addr) bool {
			return slices.Contains(network.Addresses, a) && slices.Contains(addrs("10.16.0.70", "fd00:10:16::70"), a)
		}) {
			t.Errorf("pod %s holds %v of an OvnEip", name, lease.Addresses)
		}
	}
}

// An invalid spec of a subnet does not open its pools: a claim is checked with the addresses that the allocator has.
func TestAnInvalidSubnetOpensNoPool(t *testing.T) {
	w := newWorld(t)
	invalid := w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112").DeepCopy() // a copy: the test world uses the specs of its subnets
	w.Create(&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "bound"}, Spec: kubeovnv1.IPPoolSpec{
		Subnet: "ovn-default", Namespaces: []string{"other"}, IPs: []string{"10.16.0.100..10.16.0.110", "fd00:10:16::100"},
	}})
	w.Change(invalid, func() { invalid.Spec.CIDRBlock = "10.99.0.0/24,fd00:10:99::/112" })
	w.forgeAll(map[string]kubeovnv1.PodNetwork{
		"pool":   {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.105", "fd00:10:16::105")},
		"pool-6": {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.51", "fd00:10:16::100")},
		"honest": {LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.50", "fd00:10:16::50")},
	})
	process := w.start()
	w.Eventually(func() string {
		if _, held := process.Allocator.Lookup("honest.default"); !held {
			return "the pod whose claim is one that it may make does not hold its address"
		}
		return ""
	})
	for _, name := range []string{"pool", "pool-6"} {
		if lease, held := process.Allocator.Lookup(name + ".default"); held {
			t.Errorf("pod %s holds %v of a pool of another namespace", name, lease.Addresses)
		}
	}
	if pools := process.Allocator.Pools("ovn-default"); !slices.Equal(pools, []string{"bound"}) {
		t.Errorf("the allocator has the pools %v, want bound", pools)
	}
}

// A port with port security accepts the subnet's vips that its pod requests, and no other addresses.
func TestAPodSharesTheVipsOfItsSubnetOnly(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Vips = []string{"10.16.0.100"} })
	process := w.start()
	p := w.pod("default", "p", "port_security", "true", "port_vips", "10.16.0.100,169.254.107.105,10.16.0.100,10.16.0.1,8.8.8.8")
	w.warnedOf(p, "AddressNotShared", "169.254.107.105,10.16.0.1,8.8.8.8")
	secured := func(want string) {
		w.Eventually(func() string {
			if got := w.port(p).Strings("port_security"); len(got) != 1 || got[0] != want {
				return "the port passes " + slices.Concat(got, []string{"nothing"})[0]
			}
			return ""
		})
	}
	mac := p.Annotations[kubeovnv1.AnnotationMACAddress.Key()]
	secured(mac + " " + address(p) + " 10.16.0.100")
	w.Change(s, func() { s.Spec.Vips = nil })
	w.InForce(s, process)
	secured(mac + " " + address(p))
}

// No pod takes over an address that the pods of its subnet share, by no request.
func TestAPodGetsNoVipOfItsSubnetAsItsOwn(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112", func(s *kubeovnv1.SubnetSpec) {
		s.Vips = []string{"10.16.0.100", "fd00:10:16::100"}
	})
	process := w.start()
	reservation := &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: "reserved.default"},
		Spec:       kubeovnv1.IPSpec{Subnet: "ovn-default", Namespace: "default", PodName: "reserved", V4IPAddress: "10.16.0.100"},
	}
	w.Create(reservation)
	w.hasEvent(reservation, "is one of the vips of subnet ovn-default")
	for name, request := range map[string][]string{
		"v4":       {"ip_address", "10.16.0.100"},
		"v6":       {"ip_address", "10.16.0.9,fd00:10:16::100"},
		"list":     {"ip_pool", "10.16.0.100,10.16.0.100"},
		"reserved": nil,
	} {
		p := newPod("default", name, request...)
		w.Create(p)
		w.warned(p, "is one of the vips of subnet ovn-default, which pods share")
		if lease, held := process.Allocator.Lookup(name + ".default"); held {
			t.Errorf("pod %s holds %v", name, lease.Addresses)
		}
		if name != "v6" {
			w.Delete(p)
		}
	}
	v6 := newPod("default", "v6")
	w.Get(v6)
	w.Change(s, func() { s.Spec.Vips = []string{"10.16.0.100"} })
	w.InForce(s, process)
	w.allocated(v6)
	w.has(v6, "10.16.0.9,fd00:10:16::100")
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
