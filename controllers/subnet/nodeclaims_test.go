// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/node"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

// recorded waits until the record of a node has these addresses in use.
func (n *network) recorded(name, want string) {
	n.Helper()
	n.Eventually(func() string {
		if got := n.record(name); got != want {
			return fmt.Sprintf("node %s has the addresses %q in its record, want %q", name, got, want)
		}
		return ""
	})
}

func (n *network) record(name string) string {
	n.Helper()
	ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.NodePortName(name)}}
	n.Get(ip)
	return ip.Annotations[kubeovnv1.AnnotationNodeAddresses.Key()]
}

// failing is a client whose patches of one object fail, like the requests of a process that ends before it sends them.
type failing struct {
	client.Client

	// object is the name of the object; empty if no patch fails.
	object   atomic.Value
	attempts atomic.Int64
}

var errEnded = errors.New("the process ended before this request")

// over makes a client that uses another one.
func (f *failing) over(c client.Client) client.Client {
	f.Client = c
	return f
}

func (f *failing) fails(o client.Object) bool {
	if name, _ := f.object.Load().(string); name != o.GetName() {
		return false
	}
	f.attempts.Add(1)
	return true
}

func (f *failing) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.PatchOption) error {
	if f.fails(o) {
		return errEnded
	}
	return f.Client.Patch(ctx, o, p, options...)
}

// failingStatus fails for patches of the status alone.
type failingStatus struct{ *failing }

func (f failingStatus) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.PatchOption) error {
	return f.Client.Patch(ctx, o, p, options...)
}

func (f failingStatus) Status() client.SubResourceWriter {
	return failingWriter{f.Client.Status(), f.failing}
}

type failingWriter struct {
	client.SubResourceWriter
	of *failing
}

func (f failingWriter) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
	if f.of.fails(o) {
		return errEnded
	}
	return f.SubResourceWriter.Patch(ctx, o, p, options...)
}

// attempted waits until a patch has failed.
func (n *network) attempted(f *failing) {
	n.Helper()
	n.Eventually(func() string {
		if f.attempts.Load() == 0 {
			return fmt.Sprintf("no patch of %v", f.object.Load())
		}
		return ""
	})
}

// A node claims an address while a subnet with this address becomes applied: neither sees the other. The subnet stays valid, and the node loses the
// address, also if the controller ends before it has recorded that the subnet is valid.
func TestASubnetAndANodeGetOneAddressAtOnce(t *testing.T) {
	for name, restart := range map[string]bool{"in one process": false, "with a restart between": true} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			var status failing
			status.object.Store("shop")
			n.runWith(cache.Options{}, func(r *subnet.Reconciler) { r.Client = failingStatus{status.over(r.Client).(*failing)} })
			s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:20::/64"}}
			n.Create(s)
			n.rows("Logical_Switch", "name", "join", "ovn-default", "shop")
			n.attempted(&status)
			o := n.node("n1", "10.20.0.9", "fd00:20::9")
			n.connected(o)
			n.recorded("n1", "10.20.0.9,fd00:20::9")

			status.object.Store("")
			if restart {
				n.run()
			} else {
				n.Get(s)
				n.Change(s, func() { s.Labels = map[string]string{"again": ""} })
			}
			n.condition("shop", kubeovnv1.ConditionValidated, metav1.ConditionTrue)
			n.recorded("n1", "")
			n.nodePolicies()
			n.ignored(o, "InternalIP 10.20.0.9 is ignored: it is in subnet shop: give the node an address outside")
			n.condition("shop", kubeovnv1.ConditionValidated, metav1.ConditionTrue)

			// The claim waits for the address, and another one has no effect.
			n.setAddresses(o, "8.8.8.8")
			n.Rests("node")
			n.nodePolicies()
			n.Get(s)
			n.Delete(s)
			n.recorded("n1", "10.20.0.9,fd00:20::9")
			n.nodePolicies("ip4.dst == 10.20.0.9 via 100.64.0.2", "ip6.dst == fd00:20::9 via fd00:100:64::2")
		})
	}
}

// A subnet that was never applied does not get the address of a node, whichever is processed first after a restart.
func TestANodeKeepsItsAddressFromANewSubnet(t *testing.T) {
	n := start(t)
	o := n.host("n1", "10.20.0.9")
	const conflict = "cidrBlock 10.20.0.0/24 holds 10.20.0.9, the address of node n1: choose another one"
	n.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"}})
	for range 2 {
		if c := n.condition("shop", kubeovnv1.ConditionValidated, metav1.ConditionFalse); c.Message != conflict {
			t.Errorf("the new subnet: %s", c.Message)
		}
		n.nodePolicies("ip4.dst == 10.20.0.9 via 100.64.0.2")
		n.run()
		n.touch(o)
	}
	n.Delete(o)
	n.condition("shop", kubeovnv1.ConditionValidated, metav1.ConditionTrue)
}

// Kiln cannot refuse a CIDR of Services. So the first one wins: a node keeps its address, and does not get one of an existing CIDR.
func TestANodeAndAServiceCIDRWithOneAddress(t *testing.T) {
	n := start(t)
	before := n.node("before", "10.201.0.9")
	n.connected(before)
	more := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.201.0.0/16", "fd00:201::/112"}},
	}
	n.Create(more)
	n.Event(before, eventsv1.Event{Type: "Warning", Reason: node.ReasonAddressConflict, Note: "InternalIP 10.201.0.9 is in 10.201.0.0/16, a CIDR of Services that is " +
		"newer than the node: delete the ServiceCIDR, or give the node an address outside"})
	after := n.node("after", "10.201.0.10", "fd00:201::10")
	n.connected(after)
	for _, address := range []string{"10.201.0.10 is ignored: it is in 10.201.0.0/16", "fd00:201::10 is ignored: it is in fd00:201::/112"} {
		n.ignored(after, "InternalIP "+address+", a CIDR of Services: give the node an address outside")
	}
	n.nodePolicies("ip4.dst == 10.201.0.9 via 100.64.0.2")
	n.run()
	n.touch(before)
	n.touch(after)
	n.nodePolicies("ip4.dst == 10.201.0.9 via 100.64.0.2")

	n.Get(more)
	n.Change(more, func() { more.Finalizers = nil }) // no controller of ServiceCIDRs runs here
	n.Delete(more)
	n.nodePolicies("ip4.dst == 10.201.0.10 via 100.64.0.3", "ip4.dst == 10.201.0.9 via 100.64.0.2", "ip6.dst == fd00:201::10 via fd00:100:64::3")
}

// An allocation in an underlay subnet takes no address from a node that has it. The allocator does not know the addresses of nodes.
func TestANodeKeepsItsAddressInAnUnderlaySubnet(t *testing.T) {
	n := start(t)
	n.vlan("v", 0)
	n.ready("office", kubeovnv1.SubnetSpec{CIDRBlock: "10.30.0.0/24", Gateway: "10.30.0.254", Vlan: "v"})
	o := n.node("n1", "10.30.0.9")
	n.connected(o)
	n.nodePolicies("ip4.dst == 10.30.0.9 via 100.64.0.2")
	_, err := n.process.Allocator.Allocate("vip/office", ipam.Request{Subnet: "office", Addresses: []netip.Addr{netip.MustParseAddr("10.30.0.9")}})
	n.Must(err)
	n.touch(o)
	n.Rests("node")
	n.nodePolicies("ip4.dst == 10.30.0.9 via 100.64.0.2")
}

// A node whose record, or whose claim, the cache does not have yet claims no other addresses.
func TestTheRecordOfANodeIsReadFromTheAPIServer(t *testing.T) {
	for name, stale := range map[string]cache.ByObject{
		"no record": without("node-n1"),
		"no claim": {Transform: func(o any) (any, error) {
			if ip, ok := o.(*kubeovnv1.IP); ok && ip.Name == "node-n1" {
				ip.Annotations = nil
			}
			return o, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			o := n.node("n1", "192.0.2.1", "2001:db8::1")
			n.connected(o)
			n.recorded("n1", "192.0.2.1,2001:db8::1")
			n.process.Stop()
			n.setAddresses(o, "8.8.8.8", "2001:db8::8888")
			n.runWith(cache.Options{ByObject: map[client.Object]cache.ByObject{&kubeovnv1.IP{}: stale}})
			n.ignored(o, "InternalIP 8.8.8.8 is ignored, because the node joined with 192.0.2.1,2001:db8::1: if its address has changed, "+
				"delete the IP object node-n1")
			n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.2", "ip6.dst == 2001:db8::1 via fd00:100:64::2")
		})
	}
}

// takeover makes a node silent whose address another node claims.
func takeover(t *testing.T) (n *network, ips *failing, after *corev1.Node) {
	t.Helper()
	n, ips = start(t), &failing{}
	n.nodeClient = ips.over
	n.run()
	before := n.node("before", "192.0.2.1", "2001:db8::1")
	n.setReady(before, corev1.ConditionTrue)
	n.connected(before)
	after = n.node("after", "192.0.2.1", "2001:db8::1")
	n.setReady(after, corev1.ConditionTrue)
	n.connected(after)
	n.ignored(after, "InternalIP 192.0.2.1 is ignored: node before has it")
	n.setReady(before, corev1.ConditionUnknown)
	n.recorded("before", "192.0.2.1,2001:db8::1")
	n.Rests("node")
	n.advance(5 * time.Minute)
	return n, ips, after
}

// An address passes from a silent node to another one by two writes. A crash before or between them leaves it with one node at most, and with the
// node that answers in the end.
func TestACrashWhileAnAddressPassesToAnotherNode(t *testing.T) {
	for name, at := range map[string]struct{ fails, record string }{
		"before the first write": {"node-before", "192.0.2.1,2001:db8::1"},
		"between the writes":     {"node-after", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n, ips, after := takeover(t)
			ips.object.Store(at.fails)
			n.touch(after)
			n.attempted(ips)
			n.Rests("node")
			n.recorded("before", at.record)
			n.recorded("after", "")
			n.process.Stop()

			n.nodeClient = nil
			n.run()
			n.recorded("after", "192.0.2.1,2001:db8::1")
			n.recorded("before", "")
			n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.3", "ip6.dst == 2001:db8::1 via fd00:100:64::3")
			n.run()
			n.recorded("after", "192.0.2.1,2001:db8::1")
			n.recorded("before", "")
		})
	}
}

// A node that does not answer claims nothing until it does.
func TestASilentNodeClaimsNoAddress(t *testing.T) {
	n := start(t)
	o := n.node("n1")
	n.setReady(o, corev1.ConditionUnknown)
	n.setAddresses(o, "192.0.2.1")
	n.connected(o)
	n.ignored(o, "InternalIP 192.0.2.1 is ignored: the node does not answer: start its kubelet, or delete the Node")
	n.nodePolicies()
	n.setReady(o, corev1.ConditionFalse)
	n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.2")
}

// endpoints creates an EndpointSlice of the API server.
func (n *network) endpoints(name string, family discoveryv1.AddressType, addresses ...string) *discoveryv1.EndpointSlice {
	n.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: family,
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	n.Create(slice)
	return slice
}

// apiServers waits until the cache has a number of addresses of the API server.
func (n *network) apiServers(number int) {
	n.Helper()
	n.Eventually(func() string {
		if addresses, err := n.process.Networks.APIServers(n.Context()); err != nil || len(addresses) != number {
			return fmt.Sprintf("the API server has the addresses %v (%v)", addresses, err)
		}
		return ""
	})
}

// setLabel gives a node a label, or removes it.
func (n *network) setLabel(o *corev1.Node, label string, has bool) {
	n.Helper()
	n.Get(o)
	n.Change(o, func() {
		if o.Labels = map[string]string{}; has {
			o.Labels[label] = "true"
		}
	})
}

// A control plane outside of the cluster has no Node, so that a stolen node could claim its addresses. Only nodes with a label that no kubelet can set
// claim addresses of the API server, and nodes that have them keep them.
func TestANodeDoesNotClaimAnAddressOfTheAPIServer(t *testing.T) {
	n := start(t)
	first := n.node("first", "192.0.2.1")
	n.connected(first)
	n.recorded("first", "192.0.2.1")
	v4 := n.endpoints("v4", discoveryv1.AddressTypeIPv4, "192.0.2.1", "192.0.2.2", "192.0.2.3")
	n.endpoints("v6", discoveryv1.AddressTypeIPv6, "2001:db8::2", "2001:db8::3")
	n.apiServers(5)
	const first4 = "ip4.dst == 192.0.2.1 via 100.64.0.2"

	// The node whose API server starts later keeps its address.
	n.touch(first)
	n.nodePolicies(first4)

	refused := map[string]string{}
	for _, a := range []string{"192.0.2.2", "2001:db8::2", "192.0.2.3"} {
		refused[a] = "InternalIP " + a + " is ignored: it is an address of the API server: if the node runs one, label it with node-role.kubernetes.io/control-plane"
	}
	stolen := n.node("stolen", "192.0.2.2", "2001:db8::2")
	n.connected(stolen)
	n.ignored(stolen, refused["192.0.2.2"]+"; "+refused["2001:db8::2"])
	mistakes.Sees(t, 52, refused["192.0.2.2"])
	n.recorded("stolen", "")

	// While the API server restarts, its address is not an endpoint.
	n.Change(v4, func() { v4.Endpoints = v4.Endpoints[:1] })
	n.apiServers(3)
	n.touch(stolen)
	n.Rests("node")
	n.recorded("stolen", "")
	n.nodePolicies(first4)

	moved := n.node("moved", "192.0.2.3")
	n.connected(moved)
	n.ignored(moved, refused["192.0.2.3"])

	// kubeadm and k3s set the label after the kubelet has created the Node.
	n.setLabel(stolen, v1alpha1.ControlPlaneLabel, true)
	n.nodePolicies(first4, "ip4.dst == 192.0.2.2 via 100.64.0.3", "ip6.dst == 2001:db8::2 via fd00:100:64::3")
	n.setLabel(stolen, v1alpha1.ControlPlaneLabel, false)

	// The address of an API server that is removed for good is free after an hour.
	n.advance(time.Hour)
	n.touch(moved)
	n.recorded("moved", "192.0.2.3")
	n.run()
	n.touch(stolen)
	n.nodePolicies(first4, "ip4.dst == 192.0.2.2 via 100.64.0.3", "ip4.dst == 192.0.2.3 via 100.64.0.4", "ip6.dst == 2001:db8::2 via fd00:100:64::3")
}

// A silent control-plane node does not lose its address to a node that may not have it.
func TestANodeOfTheControlPlaneLosesItsAddressToOthersOfItsKindOnly(t *testing.T) {
	n, _, after := takeover(t)
	n.endpoints("v4", discoveryv1.AddressTypeIPv4, "192.0.2.1")
	n.apiServers(1)
	n.advance(time.Hour)
	n.touch(after)
	n.ignored(after, "InternalIP 192.0.2.1 is ignored: it is an address of the API server")
	n.recorded("after", "2001:db8::1")
	n.recorded("before", "192.0.2.1")
	n.setLabel(after, v1alpha1.ManagedLabel, true)
	n.recorded("after", "192.0.2.1,2001:db8::1")
	n.recorded("before", "")
}
