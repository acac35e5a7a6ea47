// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

const here, elsewhere = "node-a", "node-b"

// The objects of the tests. Each function returns a new one.

func node(change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: here}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	for _, c := range change {
		c(n)
	}
	return n
}

func bgp(value string) map[string]string {
	return map[string]string{kubeovnv1.AnnotationBGP.Key(): value}
}

func webSubnet(value string, change ...func(*kubeovnv1.Subnet)) *kubeovnv1.Subnet {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: bgp(value)}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.1.0.0/24,fd00::/112"}}
	s.Status.Conditions = []metav1.Condition{{Type: kubeovnv1.ConditionValidated, Status: metav1.ConditionTrue}}
	for _, c := range change {
		c(s)
	}
	return s
}

func newPod(name, on string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: on}}
	p.Annotations = kubeovnv1.PodNetwork{
		UID: p.UID, Allocated: true, LogicalSwitch: "web", LogicalRouter: kubeovnv1.DefaultVpc,
		Addresses: []netip.Addr{netip.MustParseAddr("10.1.0." + name), netip.MustParseAddr("fd00::" + name)},
	}.Annotations()
	for _, c := range change {
		c(p)
	}
	return p
}

func annotated(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[kubeovnv1.AnnotationBGP.Key()] = value }
}

func webService(value string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: bgp(value)}}
	s.Spec.ClusterIPs = []string{"10.96.0.7"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
	for _, c := range change {
		c(s)
	}
	return s
}

func externalLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func slice(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, Endpoints: endpoints,
	}
}

func endpoint(on string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{NodeName: &on, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready}}
}

// fill puts objects into a table.
func fill(t *Table, objects ...any) {
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Node:
			t.SetNode(o)
		case *kubeovnv1.Subnet:
			t.SetSubnet(o)
		case *corev1.Pod:
			t.SetPod(o)
		case *corev1.Service:
			t.SetService(o)
		case *discoveryv1.EndpointSlice:
			t.SetSlice(o)
		case []string:
			t.SetNamespaces(o)
		default:
			panic(fmt.Sprintf("%T", o))
		}
	}
}

// state returns the announced prefixes and the reasons of refusals.
func state(t *Table) (announced, refused string) {
	t.Changes()
	var texts []string
	for _, p := range t.Announced() {
		texts = append(texts, p.String())
	}
	var reasons []string
	for owner, reason := range t.Refused() {
		reasons = append(reasons, owner.String()+": "+reason)
	}
	return strings.Join(texts, " "), strings.Join(reasons, "; ")
}

func TestWhatANodeAnnounces(t *testing.T) {
	cordoned := node(func(n *corev1.Node) { n.Spec.Unschedulable = true })
	notReady := node(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
	permitted := []string{"shop"}
	const cidrs, first, second, cluster, external = "10.1.0.0/24 fd00::/112", "10.1.0.1/32 fd00::1/128", "10.1.0.2/32 fd00::2/128", "10.96.0.7/32", "203.0.113.9/32"
	for name, test := range map[string]struct {
		objects       []any
		want, refused string
	}{
		"a Subnet, from every node": {[]any{node(), webSubnet("true"), newPod("1", here)}, cidrs, ""},
		"the word cluster":          {[]any{node(), webSubnet("cluster")}, cidrs, ""},
		"no annotation":             {[]any{node(), webSubnet(""), newPod("1", here)}, "", ""},
		"a value of no meaning":     {[]any{node(), webSubnet("yes")}, "", "Subnet web: annotation ovn.kubernetes.io/bgp must be true, cluster, local or false"},
		"a Subnet that is deleted": {
			[]any{node(), webSubnet("true", func(s *kubeovnv1.Subnet) { s.DeletionTimestamp = new(metav1.Now()) })}, "", "Subnet web: the Subnet is deleted, or its condition Validated is not True",
		},
		"a Subnet of a custom VPC": {
			[]any{node(), webSubnet("true", func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "red" })}, "",
			"Subnet web: it is in VPC red: only nodes' own VPC ovn-cluster can be reached from outside through nodes",
		},
		"an underlay":                  {[]any{node(), webSubnet("true", func(s *kubeovnv1.Subnet) { s.Spec.Vlan = "v" })}, "", "Subnet web: " + underlay},
		"no node":                      {[]any{webSubnet("true")}, "", ""},
		"a Subnet on a cordoned node":  {[]any{cordoned, webSubnet("true")}, "", ""},
		"a Subnet on a node not ready": {[]any{notReady, webSubnet("true")}, "", ""},
		"the pods of a local Subnet":   {[]any{node(), webSubnet("local"), newPod("1", here), newPod("2", elsewhere)}, first, ""},
		"its pods on a cordoned node":  {[]any{cordoned, webSubnet("local"), newPod("1", here)}, first, ""},
		"a pod that terminates serves": {[]any{node(), webSubnet("local"), newPod("1", here, func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })}, first, ""},
		"a pod whose containers ended": {[]any{node(), webSubnet("local"), newPod("1", here, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, "", ""},
		"a pod on the host network":    {[]any{node(), webSubnet("local"), newPod("1", here, func(p *corev1.Pod) { p.Spec.HostNetwork = true })}, "", ""},
		"results of another pod":       {[]any{node(), webSubnet("local"), newPod("1", here, func(p *corev1.Pod) { p.UID = "other" })}, "", ""},
		"a pod that opts out":          {[]any{node(), webSubnet("local"), newPod("1", here, annotated("false"))}, "", ""},
		"a pod, from every node":       {[]any{node(), permitted, newPod("2", elsewhere, annotated("true"))}, second, ""},
		"a pod, from every ready node": {[]any{cordoned, permitted, newPod("2", elsewhere, annotated("true"))}, "", ""},
		"a pod, from its node":         {[]any{node(), permitted, newPod("1", here, annotated("local")), newPod("2", elsewhere, annotated("local"))}, first, ""},
		"a pod before its Subnet":      {[]any{node(), newPod("1", here), webSubnet("local")}, first, ""},
		"its annotation comes first":   {[]any{node(), webSubnet("cluster"), newPod("1", here, annotated("local"))}, "10.1.0.0/24 10.1.0.1/32 fd00::/112 fd00::1/128", ""},
		"every namespace":              {[]any{node(), []string{"*"}, newPod("1", here, annotated("local"))}, first, ""},
		"a namespace without permission": {
			[]any{node(), []string{"other"}, webSubnet(""), newPod("1", here, annotated("true"))}, "",
			"Pod shop/1: spec.speaker.namespaces of the OVNCluster does not contain shop: add it, or annotate its Subnet",
		},
		"a pod of a custom VPC": {
			[]any{node(), permitted, newPod("1", here, annotated("true"), func(p *corev1.Pod) { p.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()] = "red" })}, "",
			"Pod shop/1: it is in VPC red: only nodes' own VPC ovn-cluster can be reached from outside through nodes",
		},
		"a pod with a value of no meaning": {
			[]any{node(), permitted, newPod("1", here, annotated("x"))}, "", "Pod shop/1: annotation ovn.kubernetes.io/bgp must be true, cluster, local or false",
		},

		"a Service":                      {[]any{node(), permitted, webService("true"), slice(endpoint(elsewhere, true))}, cluster + " " + external, ""},
		"a Service on a cordoned node":   {[]any{cordoned, permitted, webService("true"), slice(endpoint(here, true))}, "", ""},
		"a Service before its endpoints": {[]any{node(), permitted, slice(endpoint(elsewhere, true)), webService("true")}, cluster + " " + external, ""},
		"a Service without endpoints":    {[]any{node(), permitted, webService("true"), slice(endpoint(here, false))}, "", ""},
		"external addresses, local":      {[]any{node(), permitted, webService("true", externalLocal), slice(endpoint(here, true))}, cluster + " " + external, ""},
		"external addresses elsewhere":   {[]any{node(), permitted, webService("true", externalLocal), slice(endpoint(elsewhere, true))}, cluster, ""},
		"local endpoints, cordoned":      {[]any{cordoned, permitted, webService("true", externalLocal), slice(endpoint(here, true))}, external, ""},
		"all addresses local":            {[]any{node(), permitted, webService("local"), slice(endpoint(here, false), endpoint(elsewhere, true))}, "", ""},
		"all addresses local, endpoint":  {[]any{node(), permitted, webService("local"), slice(endpoint(here, true))}, cluster + " " + external, ""},
		"a headless Service":             {[]any{node(), permitted, webService("true", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"None"}; s.Status = corev1.ServiceStatus{} }), slice(endpoint(here, true))}, "", ""},
		"an ExternalName":                {[]any{node(), permitted, webService("true", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName })}, "", ""},
		"a Service that is deleted":      {[]any{node(), permitted, webService("true", func(s *corev1.Service) { s.DeletionTimestamp = new(metav1.Now()) }), slice(endpoint(here, true))}, "", ""},
		"a Service without permission":   {[]any{node(), webService("true"), slice(endpoint(here, true))}, "", "Service shop/web: spec.speaker.namespaces of the OVNCluster does not contain shop: add it"},
		"a Service of a custom VPC": {
			[]any{node(), permitted, webService("true", func(s *corev1.Service) { s.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()] = "red" }), slice(endpoint(here, true))}, "",
			"Service shop/web: it is in VPC red: only nodes' own VPC ovn-cluster can be reached from outside through nodes",
		},
		"an address of the node": {
			[]any{node(), permitted, webService("true", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }), slice(endpoint(here, true))}, cluster,
			"Service shop/web: one of its addresses belongs to the node",
		},
		"addresses that are not unicast": {
			[]any{node(), permitted, webService("true", func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{"224.0.0.1", "127.0.0.1", "0.0.0.0", "169.254.0.1"}
			}), slice(endpoint(here, true))},
			cluster + " " + external, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(here)
			fill(table, test.objects...)
			announced, refused := state(table)
			if announced != test.want || refused != test.refused {
				t.Errorf("announced %q, want %q; refused %q, want %q", announced, test.want, refused, test.refused)
			}
		})
	}
}

// TestEventsWithdraw applies an event to a table with one object of each kind, and undoes it.
func TestEventsWithdraw(t *testing.T) {
	key := types.NamespacedName{Namespace: "shop", Name: "1"}
	web := types.NamespacedName{Namespace: "shop", Name: "web"}
	for name, test := range map[string]struct {
		event    func(*Table)
		withdraw string
		undo     any
	}{
		"the pod is deleted":          {func(t *Table) { t.DeletePod(key) }, "[10.1.0.1/32 fd00::1/128]", newPod("1", here, annotated("local"))},
		"the pod lost its annotation": {func(t *Table) { t.SetPod(newPod("1", here)) }, "[10.1.0.1/32 fd00::1/128]", newPod("1", here, annotated("local"))},
		"the pod has moved":           {func(t *Table) { t.SetPod(newPod("1", elsewhere, annotated("local"))) }, "[10.1.0.1/32 fd00::1/128]", newPod("1", here, annotated("local"))},
		"the Subnet is deleted":       {func(t *Table) { t.DeleteSubnet("web") }, "[10.1.0.0/24 fd00::/112]", webSubnet("true")},
		"the Service is deleted":      {func(t *Table) { t.DeleteService(web) }, "[10.96.0.7/32 203.0.113.9/32]", webService("true", externalLocal)},
		"the endpoint is not ready":   {func(t *Table) { t.SetSlice(slice(endpoint(here, false), endpoint(elsewhere, true))) }, "[203.0.113.9/32]", slice(endpoint(here, true))},
		"no endpoint is ready":        {func(t *Table) { t.SetSlice(slice(endpoint(here, false))) }, "[10.96.0.7/32 203.0.113.9/32]", slice(endpoint(here, true))},
		"the slice is deleted":        {func(t *Table) { t.DeleteSlice(types.NamespacedName{Namespace: "shop", Name: "web-1"}) }, "[10.96.0.7/32 203.0.113.9/32]", slice(endpoint(here, true))},
		"the slice has another Service": {func(t *Table) {
			s := slice(endpoint(here, true))
			s.Labels[discoveryv1.LabelServiceName] = "other"
			t.SetSlice(s)
		}, "[10.96.0.7/32 203.0.113.9/32]", slice(endpoint(here, true))},
		"the node is drained":   {func(t *Table) { t.SetNode(node(func(n *corev1.Node) { n.Spec.Unschedulable = true })) }, "[10.1.0.0/24 10.96.0.7/32 fd00::/112]", node()},
		"the node is not ready": {func(t *Table) { t.SetNode(node(func(n *corev1.Node) { n.Status.Conditions = nil })) }, "[10.1.0.0/24 10.96.0.7/32 fd00::/112]", node()},
		"the node is deleted":   {func(t *Table) { t.SetNode(nil) }, "[10.1.0.0/24 10.96.0.7/32 fd00::/112]", node()},
		"the namespace is not permitted": {
			func(t *Table) { t.SetNamespaces(nil) }, "[10.96.0.7/32 203.0.113.9/32]", []string{"shop"}, // the Subnet permits its pods
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(here)
			fill(table, node(), []string{"shop"}, webSubnet("true"), newPod("1", here, annotated("local")), webService("true", externalLocal), slice(endpoint(here, true)))
			all, _ := table.Changes()
			test.event(table)
			announce, withdraw := table.Changes()
			if got := fmt.Sprint(withdraw); len(announce) > 0 || got != test.withdraw {
				t.Errorf("announces %v and withdraws %s, want %s", announce, got, test.withdraw)
			}
			fill(table, test.undo)
			if announce, _ = table.Changes(); fmt.Sprint(announce) != test.withdraw || len(table.Announced()) != len(all) {
				t.Errorf("announces %v again, want %s", announce, test.withdraw)
			}
			if announce, withdraw = table.Changes(); len(announce)+len(withdraw) > 0 {
				t.Errorf("without an event: announces %v, withdraws %v", announce, withdraw)
			}
		})
	}
}

// TestAPrefixOfTwoObjectsStays withdraws it with the last of them.
func TestAPrefixOfTwoObjectsStays(t *testing.T) {
	table := New(here)
	fill(table, node(), []string{"shop"}, webService("true"), slice(endpoint(here, true)))
	second, secondSlice := webService("true"), slice(endpoint(here, true))
	second.Name, second.Spec.ClusterIPs = "copy", nil
	secondSlice.Name, secondSlice.Labels = "copy-1", map[string]string{discoveryv1.LabelServiceName: "copy"}
	fill(table, second, secondSlice)
	table.Changes()
	table.DeleteService(types.NamespacedName{Namespace: "shop", Name: "web"})
	if _, withdraw := table.Changes(); fmt.Sprint(withdraw) != "[10.96.0.7/32]" {
		t.Errorf("withdraws %v", withdraw)
	}
	if owner := table.OwnersOf()[netip.MustParsePrefix("203.0.113.9/32")]; owner.String() != "Service shop/copy" {
		t.Errorf("the owner is %s", owner)
	}
}

// TestATableForgetsOrdinaryPods checks that pods of other nodes cost no memory, and that deleted objects leave nothing behind.
func TestATableForgetsOrdinaryPods(t *testing.T) {
	table := New(here)
	fill(table, node(), webSubnet("local"), newPod("1", here), newPod("2", elsewhere), webService("true"), slice(endpoint(here, true)))
	if len(table.pods) != 1 {
		t.Errorf("the table has %d pods", len(table.pods))
	}
	table.DeletePod(types.NamespacedName{Namespace: "shop", Name: "1"})
	table.DeleteSubnet("web")
	table.DeleteService(types.NamespacedName{Namespace: "shop", Name: "web"})
	table.DeleteSlice(types.NamespacedName{Namespace: "shop", Name: "web-1"})
	table.Changes()
	if n := len(table.pods) + len(table.members) + len(table.subnets) + len(table.services) + len(table.slices) + len(table.endpoints) + len(table.offers) + len(table.counts) + len(table.changed); n != 0 {
		t.Errorf("%d entries are left: %+v", n, table)
	}
}

// BenchmarkAnEvent measures one event in a table of 5,000 pods.
func BenchmarkAnEvent(b *testing.B) {
	table := New(here)
	fill(table, node(), []string{"*"})
	for i := range 5000 {
		p := newPod("1", here, annotated("local"))
		p.Name = fmt.Sprint(i)
		address := netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})
		p.Annotations[kubeovnv1.AnnotationIPAddress.Key()] = address.String()
		table.SetPod(p)
	}
	table.Changes()
	changed := []*corev1.Pod{newPod("1", here, annotated("local")), newPod("1", elsewhere, annotated("local"))}
	b.ResetTimer()
	for i := range b.N {
		table.SetPod(changed[i%2])
		table.Changes()
	}
}
