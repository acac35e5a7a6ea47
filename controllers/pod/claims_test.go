// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/address/ipam"
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

// After a restart the controller gives a pod, from its annotations, only the allocations that the pod could have requested.
func TestARestartGrantsAllocationsThatAPodMayRequest(t *testing.T) {
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
		if allocation, held := process.Allocator.Lookup("honest.default"); !held || allocation.Addresses[0].String() != "10.16.0.50" {
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
		if allocation, held := process.Allocator.Lookup(name + ".default"); held {
			t.Errorf("pod %s holds %v of %s", name, allocation.Addresses, allocation.Subnet)
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

// The same for nodes: a kubelet can write the annotations of its Node.
func TestARestartGrantsNodesTheirProvenAddresses(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	w.subnet(kubeovnv1.JoinSubnet, "100.64.0.0/24,fd00:64::/112")
	claim := kubeovnv1.PodNetwork{Allocated: true, LogicalSwitch: kubeovnv1.JoinSubnet, Addresses: addrs("100.64.0.5", "fd00:64::5"), MAC: []byte{2, 0, 0, 0, 0, 5}}
	w.Joined("victim", "100.64.0.5,fd00:64::5")
	for i := range 16 { // the order of the claims is random
		name := fmt.Sprint("stolen-", i)
		if i == 8 {
			name = "victim"
		}
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: claim.Annotations()}})
	}
	w.held(w.start(), "node-victim", "100.64.0.5,fd00:64::5")
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
		return errors.Join(pods(ctx, p), // then the controller of OvnEips, which is not part of this test, restores its allocations
			p.Allocator.Restore(translate.OvnEipHolder(eip.Name), ipam.Allocation{Subnet: "ovn-default", Addresses: addrs(eip.Status.V4IP, eip.Status.V6IP)}))
	}
	process = w.Start(steps)
	w.held(process, translate.OvnEipHolder(eip.Name), "10.16.0.70,fd00:10:16::70")
	w.held(process, "honest.default", "10.16.0.90,fd00:10:16::90")
	w.held(process, "web-0.default", "10.16.0.50,fd00:10:16::50")
	w.held(process, "reserved", "10.16.0.60,fd00:10:16::60")
	w.held(process, translate.QuerierHolder("ovn-default"), "10.16.0.80")
	w.ipObject(member)
	for name, network := range forged {
		allocation, held := process.Allocator.Lookup(name + ".default")
		if name != "honest" && held && slices.ContainsFunc(allocation.Addresses, func(a netip.Addr) bool {
			return slices.Contains(network.Addresses, a) && slices.Contains(addrs("10.16.0.70", "fd00:10:16::70"), a)
		}) {
			t.Errorf("pod %s holds %v of an OvnEip", name, allocation.Addresses)
		}
	}
}
