// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
)

func of(vpc string) func(*kubeovnv1.SubnetSpec) {
	return func(s *kubeovnv1.SubnetSpec) { s.Vpc = vpc }
}

// tenants creates VPCs that every namespace may use.
func (w world) tenants(names ...string) {
	w.Helper()
	for _, name := range names {
		w.vpc(name, kubeovnv1.VpcSpec{AllowedNamespaces: []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}})
	}
}

// on creates a pod of a subnet on a node.
func (w world) on(node, subnet, name string, annotations ...string) *corev1.Pod {
	w.Helper()
	p := newPod("default", name, append(annotations, "logical_switch", subnet)...)
	p.Spec.NodeName = node
	w.Create(p)
	w.allocated(p)
	return p
}

func (w world) has(p *corev1.Pod, addresses string) {
	w.Helper()
	if got := p.Annotations[kubeovnv1.AnnotationIPAddress.Key()]; got != addresses {
		w.Errorf("pod %s has %s, want %s", p.Name, got, addresses)
	}
}

// ambiguous waits for the event on a pod that another pod has its address, too.
func (w world) ambiguous(p *corev1.Pod, other string) {
	w.Helper()
	w.Eventually(func() string {
		var events eventsv1.EventList
		w.Must(w.Client.List(w.Context(), &events))
		for i := range events.Items {
			if e := &events.Items[i]; e.Regarding.UID == p.UID && e.Reason == "AddressAmbiguous" && strings.Contains(e.Note, other) {
				return ""
			}
		}
		return fmt.Sprintf("pod %s has no event about %s", p.Name, other)
	})
}

func TestAddressesThatANodeReachesArePodsOfOneVpc(t *testing.T) {
	w := newWorld(t)
	w.tenants("blue", "red")
	const cidrs = "10.16.0.0/24,fd00:10:16::/120"
	w.subnet("ovn-default", cidrs)
	w.subnet("blue-net", cidrs, of("blue"))
	w.subnet("red-net", cidrs, of("red"))
	p := w.start()
	w.has(w.on("n1", "ovn-default", "d1"), "10.16.0.2,fd00:10:16::2")
	w.has(w.on("n1", "blue-net", "b1"), "10.16.0.3,fd00:10:16::3")
	w.has(w.on("n1", "red-net", "r1"), "10.16.0.4,fd00:10:16::4")
	w.has(w.on("n2", "red-net", "r2"), "10.16.0.5,fd00:10:16::5")
	w.has(w.on("n2", "ovn-default", "d2"), "10.16.0.6,fd00:10:16::6")

	asked := w.on("n1", "red-net", "r3", "ip_address", "10.16.0.3,fd00:10:16::3")
	w.has(asked, "10.16.0.3,fd00:10:16::3")
	w.ambiguous(asked, "b1.default")
	asked = w.on("n1", "ovn-default", "d3", "ip_address", "10.16.0.4,fd00:10:16::7")
	w.ambiguous(asked, "r1.default")

	p.Stop()
	w.start()
	w.has(w.on("n1", "red-net", "r4"), "10.16.0.7,fd00:10:16::8") // the first that no pod on the node or in the default VPC has
}

// Every node reaches the pods of the default VPC. A pod of a custom VPC with the address of one of them would divert what its node sends there.
func TestAPodOfACustomVPCGetsNoAddressOfTheDefaultVPC(t *testing.T) {
	w := newWorld(t)
	w.tenants("blue")
	w.subnet("ovn-default", "10.16.0.0/29")
	w.subnet("blue-net", "10.16.0.0/30", of("blue"))
	p := w.start()
	first := w.on("n1", "ovn-default", "d1")
	w.has(first, "10.16.0.2")

	asked := newPod("default", "asked", "logical_switch", "blue-net", "ip_address", "10.16.0.2")
	w.Create(asked)
	w.warned(asked, "address 10.16.0.2 is taken by d1.default in subnet ovn-default, which every node reaches: ask for another one")
	full := newPod("default", "full", "logical_switch", "blue-net") // no address rather than this one
	w.Create(full)
	w.warned(full, "subnet blue-net is full")
	w.warned(full, "(a pod of a custom VPC gets no address of a pod in subnet ovn-default, because every node reaches those)")
	w.has(w.on("n1", "ovn-default", "d2"), "10.16.0.3") // the refused pod claims no address

	w.Delete(full)
	w.Delete(first)
	w.allocated(asked)
	w.agree(p)
}

// The node of an underlay pod of a custom VPC sends probes of the kubelet to the pod itself, not to the physical network.
func TestAnUnderlayPodOfACustomVPCGetsNoAddressOfTheDefaultVPC(t *testing.T) {
	w := newWorld(t)
	w.tenants("blue")
	vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VlanSpec{ID: 30, Provider: "net1"}}
	w.Create(vlan)
	vlan.Status.ValidatedID = &vlan.Spec.ID
	w.Must(w.Client.Status().Update(w.Context(), vlan))
	w.subnet("ovn-default", "10.16.0.0/29")
	w.subnet("blue-net", "10.16.0.0/29", of("blue"), func(s *kubeovnv1.SubnetSpec) { s.Vlan = "v" })
	w.start()
	w.has(w.on("n1", "ovn-default", "d1"), "10.16.0.2")
	asked := newPod("default", "asked", "logical_switch", "blue-net", "ip_address", "10.16.0.2")
	w.Create(asked)
	w.warned(asked, "address 10.16.0.2 is taken by d1.default in subnet ovn-default, which every node reaches: ask for another one")
	w.has(w.on("n1", "blue-net", "b1"), "10.16.0.3")
}

// reservedInBlue creates two subnets with one CIDR, blue-net of VPC blue and ovn-default, and reserves 10.16.0.2 of blue-net for the pod of a
// StatefulSet that is away.
func (w world) reservedInBlue() (*controllertest.Process, *appsv1.StatefulSet) {
	w.tenants("blue")
	w.subnet("ovn-default", "10.16.0.0/24")
	w.subnet("blue-net", "10.16.0.0/24", of("blue"))
	process, set := w.start(), w.statefulSet("db", 0, 1)
	member := w.hasInBlue(set, "10.16.0.2")
	w.Delete(member)
	w.away(process, member)
	return process, set
}

// hasInBlue creates the pod of a StatefulSet in blue-net and waits for its address.
func (w world) hasInBlue(set *appsv1.StatefulSet, address string) *corev1.Pod {
	member := replica(set, 0, "n1", "logical_switch", "blue-net")
	w.Create(member)
	w.allocated(member)
	w.has(member, address)
	return member
}

// While the pod of a StatefulSet is away, a pod of the default VPC can request the address that is retained for it in a custom VPC.
func TestAKeptAddressThatTheDefaultVPCHasIsNotInherited(t *testing.T) {
	w := newWorld(t)
	_, set := w.reservedInBlue()
	w.has(w.on("n1", "ovn-default", "d1", "ip_address", "10.16.0.2"), "10.16.0.2")
	w.hasInBlue(set, "10.16.0.3")
}

// A pod of a custom VPC would be refused if a pod of the default VPC got the address that is reserved for it.
func TestAReservedAddressOfACustomVPCIsNotGivenInTheDefaultVPC(t *testing.T) {
	w := newWorld(t)
	process, set := w.reservedInBlue()
	w.Create(reservation("late", kubeovnv1.IPSpec{Subnet: "blue-net", V4IPAddress: "10.16.0.3"}))
	w.held(process, "late", "10.16.0.3")
	w.has(w.on("n1", "ovn-default", "d1"), "10.16.0.4")
	w.has(w.on("n1", "ovn-default", "d2", "ip_address", "10.16.0.9"), "10.16.0.9")
	process.Stop()
	w.start()
	w.has(w.on("n1", "ovn-default", "d3"), "10.16.0.10")
	w.hasInBlue(set, "10.16.0.2")
}

// A pod of a custom VPC never gets an address of a node or of the API server: the pod's node would send packets for that host to the pod.
func TestAddressesOfHostsAreForNoPod(t *testing.T) {
	w := newWorld(t)
	w.tenants("blue", "red")
	w.subnet("blue-net", "10.16.0.0/29,fd00:10:16::/125", of("blue"))
	host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host"}}
	w.Create(host)
	w.Joined("host", "", "10.16.0.2", "fd00:10:16::3")
	w.Create(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: "api", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.16.0.4"}}},
	})
	p := w.start()
	w.has(w.on("n1", "blue-net", "b1"), "10.16.0.3,fd00:10:16::2")
	for name, asked := range map[string][2]string{
		"node4": {"10.16.0.2", "is taken by node host"}, "node6": {"fd00:10:16::3", "is taken by node host"}, "api": {"10.16.0.4", "is taken by the API server"},
	} {
		pod := newPod("default", name, "logical_switch", "blue-net", "ip_address", asked[0])
		w.Create(pod)
		w.warned(pod, "address "+asked[0]+" "+asked[1]+": ask for another one")
		w.Delete(pod)
	}
	w.has(w.on("n1", "blue-net", "b2"), "10.16.0.5,fd00:10:16::4")
	w.has(w.on("n1", "blue-net", "b3"), "10.16.0.6,fd00:10:16::5")
	last := newPod("default", "last", "logical_switch", "blue-net") // no address rather than a host's
	w.Create(last)
	w.warned(last, "subnet blue-net is full")
	w.Delete(last)
	w.agree(p)
}

func TestAnAmbiguousAddressIsBetterThanNone(t *testing.T) {
	w := newWorld(t)
	w.tenants("blue", "red")
	w.subnet("blue-net", "10.16.0.0/30", of("blue"))
	w.subnet("red-net", "10.16.0.0/30", of("red"))
	w.start()
	w.has(w.on("n1", "blue-net", "b1"), "10.16.0.2")
	red := w.on("n1", "red-net", "r1")
	w.has(red, "10.16.0.2")
	w.ambiguous(red, "b1.default")
}
