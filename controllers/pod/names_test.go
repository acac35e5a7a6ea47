// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

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
		t.Error("the node's allocation was released with the pod")
	}
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
	if allocation, held := process.Allocator.Lookup("node-a.b"); held {
		t.Errorf("the pod keeps %v", allocation)
	}
	if w.portNow(other) == nil {
		t.Error("a pod whose port has another name lost it")
	}
	w.Delete(node)
	eventually.Wait{For: "the pod must get a port once there is no such node"}.Holds(t, func() bool { return w.portNow(p) != nil })
}

// secondIP returns the IP object of the port that pod victim/<owner> has at provider net.default. Pod `<owner>.victim.net` of namespace default has a port of the
// same name.
func secondIP(owner, v4, v6 string) *kubeovnv1.IP {
	return &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.NewPort("victim", owner, "net.default").Name},
		Spec: kubeovnv1.IPSpec{
			Subnet: "ovn-default", Namespace: "victim", PodName: owner, IPAddress: v4 + "," + v6, V4IPAddress: v4, V6IPAddress: v6, MACAddress: "0a:00:00:00:00:09",
		},
	}
}

// A tenant creates pods with the names of ports whose addresses a StatefulSet of another namespace retains: one says that a StatefulSet creates it again, and the
// other one has forged results.
func TestAPodDoesNotGetTheRetainedAddressesOfAnotherPort(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	again := newPod("default", "db-0.victim.net")
	again.OwnerReferences = replica(w.statefulSet("db", 0, 1), 0, "n1").OwnerReferences
	forged := newPod("default", "db-1.victim.net")
	w.Create(again, forged)
	w.forge(forged, kubeovnv1.PodNetwork{LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.51", "fd00:10:16::51"), MAC: []byte{10, 0, 0, 0, 0, 9}})
	retained := map[*corev1.Pod]*kubeovnv1.IP{
		again: secondIP("db-0", "10.16.0.50", "fd00:10:16::50"), forged: secondIP("db-1", "10.16.0.51", "fd00:10:16::51"),
	}
	for _, ip := range retained {
		ip.Labels, ip.Spec.PodType = map[string]string{kubeovnv1.LabelReserved: kubeovnv1.ReservedForOwner}, kubeovnv1.PodTypeStatefulSet
		if ip.Name == "db-1.victim.net.default" {
			ip.Spec.MACAddress = "0a:00:00:00:00:08"
		}
		w.Create(ip)
	}
	process := w.start()
	unchanged := func(when string) {
		t.Helper()
		for p, ip := range retained {
			if allocation, held := process.Allocator.Lookup(ip.Name); !held || joined(allocation.Addresses) != ip.Spec.IPAddress || allocation.MAC.String() != ip.Spec.MACAddress {
				t.Errorf("%s, port %s has %v with %s", when, ip.Name, allocation.Addresses, allocation.MAC)
			}
			if row := w.portNow(p); row != nil {
				t.Errorf("%s, pod %s has port %v", when, p.Name, row)
			}
			if is := ip.DeepCopy(); !w.Get(is) || is.UID != ip.UID || is.Spec.PodName != ip.Spec.PodName {
				t.Errorf("%s, the IP object is %+v", when, is.Spec)
			}
		}
	}
	for p, ip := range retained {
		w.warned(p, "port name "+ip.Name+" belongs to another pod")
	}
	unchanged("after the start")
	for p := range retained {
		w.Delete(p)
	}
	w.pod("default", "after") // reconciled after the deletions
	w.rests()
	unchanged("after the deletion of the pods")
}

// After a restart, the name and the addresses of a port in the northbound database stay with it: a pod with the same port name has forged results with them.
func TestAPodDoesNotGetTheAddressesOfAPortInTheDatabase(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	process := w.start()
	port := kubeovnv1.NewPort("victim", "web", "net.default")
	network := kubeovnv1.PodNetwork{LogicalSwitch: "ovn-default", Addresses: addrs("10.16.0.50", "fd00:10:16::50"), MAC: []byte{2, 0, 0, 0, 0, 2}}
	w.Must(process.Engine.Apply(t.Context(), translate.PodOwner(port), translate.Pod(translate.PodInputs{
		Namespace: port.Namespace, Name: port.Owner, Provider: port.Provider, UID: "u1", Subnet: network.LogicalSwitch, Addresses: network.Addresses, MAC: network.MAC,
	})))
	process.Stop()
	p := newPod("default", "web.victim.net")
	w.Create(p)
	w.forge(p, network)
	process = w.start()
	w.warned(p, "port name "+port.Name+" belongs to another pod")
	w.Delete(p)
	w.pod("default", "after") // reconciled after the deletion
	w.rests()
	if allocation, held := process.Allocator.Lookup(port.Name); !held || joined(allocation.Addresses) != "10.16.0.50,fd00:10:16::50" {
		t.Errorf("the port has %v", allocation.Addresses)
	}
}

// A reservation that names its pod is for that pod, and not for another pod whose port has the same name.
func TestAPodDoesNotGetTheReservationOfAnotherPort(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	process := w.start()
	ip := secondIP("web", "10.16.0.50", "fd00:10:16::50")
	w.Create(ip)
	w.Eventually(func() string {
		if _, held := process.Allocator.Lookup(ip.Name); !held {
			return "the addresses are not reserved"
		}
		return ""
	})
	p := newPod("default", "web.victim.net")
	w.Create(p)
	w.warned(p, "IP "+ip.Name+" has the port name for another pod: choose another name for the pod")
	if allocation, _ := process.Allocator.Lookup(ip.Name); joined(allocation.Addresses) != ip.Spec.IPAddress || w.portNow(p) != nil {
		t.Errorf("the reservation has %v, and the pod port %v", allocation.Addresses, w.portNow(p))
	}
	w.Delete(ip)
	w.allocated(p)
}
