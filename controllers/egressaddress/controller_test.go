// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/egressaddress"
	"github.com/kiln-net/kiln/internal/gateway"
)

func TestSelectedPodsLeaveThroughTheNodeOfTheAddresses(t *testing.T) {
	w := newWorld(t)
	web, other, foreign := w.pod("team-a", "web", "web"), w.pod("team-a", "other", "db"), w.pod("team-b", "web", "web")
	out := onNodes("out", "a", "172.30.0.210", "fd00:172:30::d2")
	w.Create(out)
	w.Ready(out)
	w.has("out", web)
	w.actions("reroute", "reroute")
	w.count(out, 1)
	if out.Status.Node == "n3" || out.Status.Standby == "n3" || out.Status.Node == "" || out.Status.Standby == "" || !slices.Equal(out.Status.Addresses, out.Spec.Addresses) {
		t.Errorf("the status is %+v", out.Status)
	}
	w.routers("out on " + out.Status.Node)
	w.Measures(1, "kiln_egress_address_info", "egress_address", "out", "node", out.Status.Node, "standby", out.Status.Standby, "addresses", "172.30.0.210,fd00:172:30::d2")
	w.Measures(1, "kiln_egress_address_pods", "egress_address", "out")
	if expected := w.leases.Expecting(); !slices.Equal(expected, []string{"n1", "n2"}) {
		t.Errorf("%v are expected to renew Leases", expected)
	}

	// Labels of pods and of namespaces, and new and deleted pods.
	w.label(other, "web")
	w.has("out", web, other)
	w.count(out, 2)
	w.label(web, "db")
	w.has("out", other)
	ns := w.namespace("team-b", "a")
	w.has("out", other, foreign)
	w.Change(ns, func() { ns.Labels = nil })
	w.has("out", other)
	late := w.pod("team-a", "late", "web")
	w.has("out", other, late)
	w.Delete(other)
	w.has("out", late)

	w.run()
	w.has("out", late)
	w.Rests("egressaddress")
	w.process.Stop()
	w.Delete(late)
	w.run()
	w.has("out")
	w.count(out, 0)

	w.Delete(out)
	w.routers()
	w.actions()
	w.NoRows("EgressAddress//out")
	w.Eventually(func() string {
		if _, measured := w.Metric("kiln_egress_address_pods", "egress_address", "out"); measured {
			return "the deleted EgressAddress has a metric"
		}
		return ""
	})
}

func TestAddressesFailOverAndPacketsAreDroppedWithoutANode(t *testing.T) {
	w := newWorld(t)
	w.pod("team-a", "web", "web")
	out := onNodes("out", "a", "172.30.0.210")
	w.Create(out)
	w.Ready(out)
	first, second := out.Status.Node, out.Status.Standby
	w.routers("out on " + first)
	failovers, _ := w.Metric("kiln_egress_address_failovers_total", "egress_address", "out")
	w.leases.Set(second, gateway.Alive)
	w.leases.Set(first, gateway.Stopped)
	w.routers("out on " + second)
	w.Event(out, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: egressaddress.ReasonMoved, Note: first + " stopped serving: packets now leave through " + second})
	w.Measures(failovers+1, "kiln_egress_address_failovers_total", "egress_address", "out")
	w.Eventually(func() string {
		if w.Get(out); out.Status.Node != second || out.Status.Standby != "" {
			return fmt.Sprintf("the nodes are %s and %s", out.Status.Node, out.Status.Standby)
		}
		return ""
	})

	// The last node may work.
	w.leases.Set(second, gateway.Stopped)
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonNoNode, "packets are still sent to "+second)
	w.routers("out on " + second)
	w.Measures(0, "kiln_egress_address_info", "egress_address", "out", "node", second, "standby", "", "addresses", "172.30.0.210")

	for _, name := range []string{"n1", "n2"} {
		w.Get(w.nodes[name])
		w.Change(w.nodes[name], func() { w.nodes[name].Labels = nil })
	}
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonNoNode, "dropped")
	w.routers()
	w.actions("drop")
	if w.Get(out); out.Status.Node != "" || len(out.Status.Addresses) > 0 {
		t.Errorf("without a node the status is %+v", out.Status)
	}
	w.Get(w.nodes["n3"])
	w.Change(w.nodes["n3"], func() { w.nodes["n3"].Labels = map[string]string{"gateway": "yes"} })
	w.Ready(out)
	w.routers("out on n3")
	w.actions("reroute")
}

func TestTheOlderEgressAddressHasAPod(t *testing.T) {
	w := newWorld(t)
	web := w.pod("team-a", "web", "web")
	older, younger := onNodes("a-older", "a", "172.30.0.210"), onNodes("b-younger", "a", "172.30.0.211")
	w.Create(older)
	w.Ready(older)
	w.Create(younger)
	w.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonOverlap, "1 of EgressAddress a-older")
	w.has("a-older", web)
	w.has("b-younger")
	w.count(older, 1)
	w.count(younger, 0)

	w.run()
	w.Rests("egressaddress")
	w.has("a-older", web)
	w.has("b-younger")

	w.Get(older)
	w.Change(older, func() { older.Spec.PodSelector.MatchLabels["app"] = "db" })
	w.has("b-younger", web)
	w.Ready(younger)
	w.has("a-older")
	w.Get(older)
	w.Change(older, func() { older.Spec.PodSelector.MatchLabels["app"] = "web" })
	w.has("a-older", web)
	w.has("b-younger")
	w.Delete(older)
	w.has("b-younger", web)
	w.Ready(younger)
}

func TestAnAddressBelongsToOneObject(t *testing.T) {
	w := newWorld(t)
	w.external()
	older, younger := onNodes("a-older", "a", "172.30.0.210"), onNodes("b-younger", "b", "172.30.0.210")
	w.Create(older)
	w.Ready(older)
	w.Create(younger)
	w.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonConflict, "172.30.0.210: the older EgressAddress a-older has it", "dropped")
	w.routers("a-older on " + older.Status.Node)
	w.actions("reroute", "drop")
	w.Rests("egressaddress")
	w.Get(older)
	w.Change(older, func() { older.Spec.Addresses = []string{"172.30.0.212"} })
	w.Ready(younger)
	w.actions("reroute", "reroute")

	for address, words := range map[string]string{
		"10.16.0.77": "Subnet ovn-default has it", "100.64.0.99": "Subnet join has it", "10.96.0.10": "the ClusterIPs 10.96.0.0/12 have it", "172.30.0.11": "node n1 has it",
		"192.0.2.7": "Subnet ext has it", "2001:db8:2::7": "Subnet ext has it",
	} {
		w.Get(younger)
		w.Change(younger, func() { younger.Spec.Addresses = []string{address} })
		w.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonConflict, address+": "+words)
	}
	// A node may be in a network that a Subnet describes, at an address that Kiln does not give to pods.
	w.Get(younger)
	w.Change(younger, func() { younger.Spec.Addresses = []string{"192.0.2.207"} })
	w.Ready(younger)
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "ext"}}
	w.Get(subnet)
	// An object can request such an address, unless an EgressAddress has it.
	eip := func(name, address string) *kubeovnv1.OvnEip {
		eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "ext", V4IP: address}}
		w.Create(eip)
		return eip
	}
	late, first := eip("late", "192.0.2.207"), eip("first", "192.0.2.208")
	w.Says(late, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "address 192.0.2.207 is taken by EgressAddress b-younger")
	w.Ready(first)
	w.Get(younger)
	w.Change(younger, func() { younger.Spec.Addresses = []string{"192.0.2.208"} })
	w.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonConflict, "192.0.2.208: ", "first", "in Subnet ext has it")
	w.Ready(late)
	w.Delete(first)
	w.Ready(younger)
	w.Get(subnet)
	w.Change(subnet, func() { subnet.Spec.ExcludeIPs = nil })
	w.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonConflict, "Subnet ext has it")
	w.Get(younger)
	w.Change(younger, func() { younger.Spec.Addresses = []string{"172.30.0.13", "fd00:172:30::d2"} })
	w.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonConflict, "node n3 has it")
	w.Delete(w.nodes["n3"])
	w.Ready(younger)
}

func TestAnInvalidChangeLeavesTheLastValidSpec(t *testing.T) {
	w := newWorld(t)
	web := w.pod("team-a", "web", "web")
	out := onNodes("out", "a", "172.30.0.210")
	w.Create(out)
	w.Ready(out)
	w.Get(out)
	w.Change(out, func() {
		out.Spec.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like", Values: []string{"web"}}}}
	})
	w.Says(out, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "podSelector")
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, "the last valid spec stays applied")
	w.run()
	w.Rests("egressaddress")
	w.has("out", web)
	w.actions("reroute")
	w.Get(out)
	w.Change(out, func() { out.Spec.PodSelector = nil })
	other := w.pod("team-a", "other", "db")
	w.has("out", web, other)
	w.Ready(out)
}

func TestOtherAddressesAreAnotherRouter(t *testing.T) {
	w := newWorld(t)
	out := onNodes("out", "a", "172.30.0.210")
	w.Create(out)
	w.Ready(out)
	name := func() string {
		for _, row := range w.Database.Rows("Logical_Router") {
			if name := fmt.Sprint(row["name"]); strings.HasPrefix(name, "out_egress-") {
				return name
			}
		}
		return ""
	}
	first := name()
	w.Get(out)
	w.Change(out, func() { out.Spec.Addresses = []string{"172.30.0.211"} })
	w.Eventually(func() string {
		if w.Get(out); !slices.Equal(out.Status.Addresses, out.Spec.Addresses) {
			return fmt.Sprintf("the addresses in status are %v", out.Status.Addresses)
		}
		return ""
	})
	if second := name(); second == first || second == "" {
		t.Errorf("the router is %s, and was %s", second, first)
	}
	w.routers("out on " + out.Status.Node)
}

func TestAFullJoinSubnetIsReported(t *testing.T) {
	w := newWorldWith(t, "10.16.0.0/16", "100.64.0.0/29") // five addresses besides the gateway, three of nodes
	var list []*kubeovnv1.EgressAddress
	for i, name := range []string{"a", "b", "c"} {
		list = append(list, onNodes(name, "a", fmt.Sprint("172.30.0.21", i), fmt.Sprint("fd00:172:30::d", i)))
		w.Create(list[i])
		if i < 2 { // the subnet has no IPv6 addresses
			w.Says(list[i], kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonNoAddress, "subnet join has no addresses of the family of fd00:172:30::d")
		}
	}
	w.Says(list[2], kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonNoAddress, "subnet join has no free address", "dropped")
	w.actions("drop", "drop", "drop", "drop", "reroute", "reroute")
	w.Get(list[0])
	w.Change(list[0], func() { list[0].Spec.Addresses = list[0].Spec.Addresses[:1] })
	w.Ready(list[0])
	w.Rests("egressaddress")
	w.Delete(list[1])
	w.Says(list[2], kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonNoAddress, "subnet join has no addresses of the family of")
}

func TestRowsAreRestoredAndRemovedAfterADeletion(t *testing.T) {
	w := newWorld(t)
	out := onNodes("out", "a", "172.30.0.210")
	w.Create(out)
	w.Ready(out)
	w.routers("out on " + out.Status.Node)
	w.Rests("egressaddress")
	w.RestoresRows("EgressAddress//out")
	w.process.Stop()
	w.Delete(out)
	w.run()
	w.routers()
	w.NoRows("EgressAddress//out")
}

func TestAddressesOfLoadBalancersAndGatewaysAreRefused(t *testing.T) {
	w := newWorld(t)
	out := onNodes("out", "a", "172.29.7.7")
	w.Create(out)
	w.Ready(out)
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}, ExternalIPs: []string{"172.29.7.7"},
	}}
	w.Create(s)
	w.Rests("egressaddress")
	w.Ready(out) // a request of a tenant is no conflict
	serve := func(address string) {
		t.Helper()
		base := s.DeepCopy()
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
		w.Must(w.Client.Status().Patch(w.Context(), s, client.MergeFrom(base)))
	}
	serve("172.29.7.7")
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonConflict, "the load balancer of Service team-a/web has it")
	serve("172.29.7.8")
	w.Ready(out)
	central := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "central"}, Spec: kubeovnv1.SubnetSpec{
		CIDRBlock: "10.60.0.0/24", GatewayType: kubeovnv1.GatewayCentralized, GatewayNode: "n1:172.29.7.7", NATOutgoing: true,
	}}
	w.Create(central)
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonConflict, "gatewayNode of Subnet central has it")
	w.Get(central)
	w.Change(central, func() { central.Spec.GatewayNode = "n1" })
	w.Ready(out)
}

func TestAddressesOfNewServicesAreRefused(t *testing.T) {
	w := newWorld(t)
	out := onNodes("out", "a", "172.29.7.7")
	w.Create(out)
	w.Ready(out)
	w.Rests("egressaddress")
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.29.0.0/16"}}}
	w.Create(more)
	t.Cleanup(func() { // no controller removes its finalizer in this test
		base := more.DeepCopy()
		more.Finalizers = nil
		if err := errors.Join(w.Client.Patch(context.Background(), more, client.MergeFrom(base)), w.Client.Delete(context.Background(), more)); err != nil {
			t.Error(err)
		}
	})
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonConflict, "the ClusterIPs 172.29.0.0/16 have it")
}

func TestANodeThatRecoversByItsLeaseIsUsed(t *testing.T) {
	w := newWorld(t)
	out := onNodes("out", "a", "172.30.0.210")
	w.Create(out)
	w.Ready(out)
	first, second := out.Status.Node, out.Status.Standby
	w.leases.Set(second, gateway.Stopped)
	w.Eventually(func() string {
		if w.Get(out); out.Status.Standby != "" {
			return "the standby is still " + out.Status.Standby
		}
		return ""
	})
	w.leases.Set(first, gateway.Stopped)
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonNoNode, "packets are still sent to "+first)
	w.Rests("egressaddress")
	w.leases.Set(second, gateway.Alive) // no event of the node
	w.routers("out on " + second)
}

func TestAddressesOfTheAPIServerAreRefused(t *testing.T) {
	w := newWorld(t)
	out := onNodes("out", "a", "172.30.0.210")
	w.Create(out)
	w.Ready(out)
	w.Rests("egressaddress")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "another", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"172.30.0.210"}}},
	}
	w.Create(slice)
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonConflict, "172.30.0.210: the API server has it")
	w.Delete(slice)
	w.Ready(out)
}
