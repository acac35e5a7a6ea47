// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

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
		case *kubeovnv1.EgressAddress:
			t.SetEgress(o)
		case *kubeovnv1.OvnEip:
			t.SetEip(o)
		case []string:
			t.Set(Settings{Namespaces: o})
		case Settings:
			t.Set(o)
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

func TestRoutesThatANodeAnnounces(t *testing.T) {
	permitted := []string{"shop"}
	const cidrs, first, second, cluster, external = "10.1.0.0/24 fd00::/112", "10.1.0.1/32 fd00::1/128", "10.1.0.2/32 fd00::2/128", "10.96.0.7/32", "203.0.113.9/32"
	for name, test := range map[string]struct {
		objects       []any
		want, refused string
	}{
		"a Subnet, from every node": {[]any{node(), webSubnet("true"), newPod("1", here)}, cidrs, ""},
		"the word cluster":          {[]any{node(), webSubnet("cluster")}, cidrs, ""},
		"no annotation":             {[]any{node(), webSubnet(""), newPod("1", here)}, "", ""},
		"an invalid value":          {[]any{node(), webSubnet("yes")}, "", "Subnet web: annotation ovn.kubernetes.io/bgp must be true, cluster, local or false"},
		"a Subnet that is deleted": {
			[]any{node(), webSubnet("true", func(s *kubeovnv1.Subnet) { s.DeletionTimestamp = new(metav1.Now()) })}, "", "Subnet web: the Subnet is deleted, or no spec of it was valid yet",
		},
		"a Subnet of a custom VPC": {
			[]any{node(), webSubnet("true", func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "red" })}, "",
			"Subnet web: it is in VPC red: only nodes' own VPC ovn-cluster can be reached from outside through nodes",
		},
		"an underlay":                  {[]any{node(), webSubnet("true", func(s *kubeovnv1.Subnet) { s.Spec.Vlan = "v" })}, "", "Subnet web: " + underlay},
		"no node":                      {[]any{webSubnet("true")}, "", ""},
		"a Subnet on a cordoned node":  {[]any{node(cordoned), other(), webSubnet("true")}, "", ""},
		"a Subnet on a node not ready": {[]any{node(notReady), other(), webSubnet("true")}, "", ""},
		"the pods of a local Subnet":   {[]any{node(), webSubnet("local"), newPod("1", here), newPod("2", elsewhere)}, first, ""},
		"its pods on a cordoned node":  {[]any{node(cordoned), other(), webSubnet("local"), newPod("1", here)}, first, ""},
		"a pod that terminates serves": {[]any{node(), webSubnet("local"), newPod("1", here, func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })}, first, ""},
		"a pod whose containers ended": {[]any{node(), webSubnet("local"), newPod("1", here, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, "", ""},
		"a pod on the host network":    {[]any{node(), webSubnet("local"), newPod("1", here, func(p *corev1.Pod) { p.Spec.HostNetwork = true })}, "", ""},
		"results of another pod":       {[]any{node(), webSubnet("local"), newPod("1", here, func(p *corev1.Pod) { p.UID = "other" })}, "", ""},
		"a pod that opts out":          {[]any{node(), webSubnet("local"), newPod("1", here, annotated("false"))}, "", ""},
		"a pod, from every node":       {[]any{node(), permitted, webSubnet(""), newPod("2", elsewhere, annotated("true"))}, second, ""},
		"a pod, from every ready node": {[]any{node(cordoned), other(), permitted, webSubnet(""), newPod("2", elsewhere, annotated("true"))}, "", ""},
		"a mirror pod":                 {[]any{node(), permitted, webSubnet(""), newPod("1", here, annotated("true"), mirror)}, "", ""},
		"a mirror pod in its Subnet":   {[]any{node(), permitted, webSubnet("local"), newPod("1", here, annotated("false"), mirror)}, first, ""},
		"a pod, from its node":         {[]any{node(), permitted, webSubnet(""), newPod("1", here, annotated("local")), newPod("2", elsewhere, annotated("local"))}, first, ""},
		"a pod before its Subnet":      {[]any{node(), newPod("1", here), webSubnet("local")}, first, ""},
		"its annotation comes first":   {[]any{node(), webSubnet("cluster"), newPod("1", here, annotated("local"))}, "10.1.0.0/24 10.1.0.1/32 fd00::/112 fd00::1/128", ""},
		"every namespace":              {[]any{node(), []string{"*"}, webSubnet(""), newPod("1", here, annotated("local"))}, first, ""},
		"a namespace without permission": {
			[]any{node(), []string{"other"}, webSubnet(""), newPod("1", here, annotated("true"))}, "",
			"Pod shop/1: spec.speaker.namespaces of the OVNCluster does not contain shop: add it, or annotate its Subnet",
		},
		"a pod of a custom VPC": {
			[]any{node(), permitted, newPod("1", here, annotated("true"), func(p *corev1.Pod) { p.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()] = "red" })}, "",
			"Pod shop/1: it is in VPC red: only nodes' own VPC ovn-cluster can be reached from outside through nodes",
		},
		"a pod with an invalid value": {
			[]any{node(), permitted, newPod("1", here, annotated("x"))}, "", "Pod shop/1: annotation ovn.kubernetes.io/bgp must be true, cluster, local or false",
		},

		"a Service":                      {[]any{node(), permitted, webService("true"), slice(endpoint(elsewhere, true))}, cluster + " " + external, ""},
		"a Service on a cordoned node":   {[]any{node(cordoned), other(), permitted, webService("true"), slice(endpoint(here, true))}, "", ""},
		"a Service before its endpoints": {[]any{node(), permitted, slice(endpoint(elsewhere, true)), webService("true")}, cluster + " " + external, ""},
		"a Service without endpoints":    {[]any{node(), permitted, webService("true"), slice(endpoint(here, false))}, "", ""},
		"external addresses, local":      {[]any{node(), permitted, webService("true", externalLocal), slice(endpoint(here, true))}, cluster + " " + external, ""},
		"external addresses elsewhere":   {[]any{node(), permitted, webService("true", externalLocal), slice(endpoint(elsewhere, true))}, cluster, ""},
		"local endpoints, cordoned":      {[]any{node(cordoned), other(), permitted, webService("true", externalLocal), slice(endpoint(here, true))}, external, ""},
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
			[]any{node(), permitted, webService("true", externalIP("192.0.2.1")), slice(endpoint(here, true))}, cluster + " " + external,
			"Service shop/web: 192.0.2.1 is an address of a node",
		},
		"an address of another node": {
			[]any{node(), other(), permitted, webService("true", externalIP("192.0.2.2")), slice(endpoint(here, true))}, cluster + " " + external,
			"Service shop/web: 192.0.2.2 is an address of a node",
		},
		"an address of a load balancer on another node": {
			[]any{node(), other(), permitted, webService("true", func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[0].IP = "192.0.2.2" }), slice(endpoint(here, true))}, cluster,
			"Service shop/web: 192.0.2.2 is an address of a node",
		},
		"an address of a peer": {
			[]any{node(), Settings{Namespaces: permitted, Peers: []netip.Addr{netip.MustParseAddr("192.0.2.254")}}, webService("true", externalIP("192.0.2.254")), slice(endpoint(here, true))},
			cluster + " " + external, "Service shop/web: 192.0.2.254 is an address of a peer of the speaker",
		},
		"an address of the API server": {
			[]any{node(), permitted, webService("true", externalIP("198.51.100.6")), slice(endpoint(here, true)), apiServers("198.51.100.6")}, cluster + " " + external,
			"Service shop/web: 198.51.100.6 is an address of the API server",
		},
		"an address of a Subnet": {
			[]any{node(), permitted, webService("true", externalIP("10.1.0.9")), slice(endpoint(here, true)), webSubnet("")}, cluster + " " + external,
			"Service shop/web: 10.1.0.9 is in Subnet web",
		},
		"an address of a Subnet of a custom VPC": {
			[]any{node(), permitted, webService("true"), slice(endpoint(here, true)), extra("203.0.113.0/24", func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "red" })}, cluster + " " + external, "",
		},
		"an address of an invalid Subnet": {
			[]any{node(), permitted, webService("true"), slice(endpoint(here, true)), extra("203.0.113.0/24", rejected)}, cluster + " " + external, "",
		},
		"an address of a Subnet whose change is invalid": {
			[]any{node(), permitted, webService("true"), slice(endpoint(here, true)), extra("10.0.0.0/8", rejected, func(s *kubeovnv1.Subnet) {
				s.Status.ValidatedSpec = &kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/24"}
			})}, cluster, "Service shop/web: 203.0.113.9 is in Subnet extra",
		},

		"all nodes are cordoned":                {[]any{node(cordoned), other(cordoned), webSubnet("true")}, cidrs, ""},
		"cordoned, the other is not ready":      {[]any{node(cordoned), other(notReady), webSubnet("true")}, cidrs, ""},
		"cordoned, the other has no network":    {[]any{node(cordoned), other(noNetwork), webSubnet("true")}, cidrs, ""},
		"cordoned, the other has no speaker":    {[]any{Settings{Nodes: map[string]string{"bgp": "true"}}, node(cordoned, labeled), other(), webSubnet("true")}, cidrs, ""},
		"cordoned, the other has one":           {[]any{Settings{Nodes: map[string]string{"bgp": "true"}}, node(cordoned, labeled), other(labeled), webSubnet("true")}, "", ""},
		"not ready, the other is cordoned":      {[]any{node(notReady), other(cordoned), webSubnet("true")}, "", ""},
		"no node is ready":                      {[]any{node(notReady), other(notReady), webSubnet("true")}, cidrs, ""},
		"no network":                            {[]any{node(noNetwork), webSubnet("true")}, "", ""},
		"local pods without a network":          {[]any{node(noNetwork), webSubnet("local"), newPod("1", here)}, "", ""},
		"local pods on a node not ready":        {[]any{node(notReady), other(), webSubnet("local"), newPod("1", here)}, first, ""},
		"local endpoints without a network":     {[]any{node(noNetwork), permitted, webService("local"), slice(endpoint(here, true))}, "", ""},
		"two families, endpoints of IPv4":       {[]any{node(), permitted, webService("true", dualStack), slice(endpoint(here, true)), slice6(endpoint(here, false))}, cluster + " " + external, ""},
		"two families, endpoints of IPv6":       {[]any{node(), permitted, webService("true", dualStack), slice6(endpoint(here, true))}, "fd96::7/128", ""},
		"two families, one local":               {[]any{node(), permitted, webService("local", dualStack), slice(endpoint(elsewhere, true)), slice6(endpoint(here, true))}, "fd96::7/128", ""},
		"a pod of a Subnet that is not known":   {[]any{node(), permitted, newPod("1", here, annotated("local"))}, "", ""},
		"a pod that is listed after its Subnet": {[]any{node(), permitted, newPod("1", here, annotated("local")), webSubnet("")}, first, ""},
		"a pod with an address of no Subnet": {
			[]any{node(), permitted, webSubnet("", func(s *kubeovnv1.Subnet) { s.Spec.CIDRBlock = "10.2.0.0/24,fd00::/112" }), newPod("1", here, annotated("local"))}, "fd00::1/128",
			"Pod shop/1: 10.1.0.1 is not in the CIDRs of Subnet web",
		},
		"a pod with the address of the gateway": {
			[]any{node(), webSubnet("local", func(s *kubeovnv1.Subnet) { s.Spec.Gateway = "10.1.0.1,fd00::ffff" }), newPod("1", here)}, "fd00::1/128",
			"Pod shop/1: 10.1.0.1 is the gateway of Subnet web",
		},
		"a pod of a Subnet in a custom VPC": {
			[]any{node(), permitted, webSubnet("", func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "red" }), newPod("1", here, annotated("local"))}, "",
			"Pod shop/1: it is in VPC red: only nodes' own VPC ovn-cluster can be reached from outside through nodes",
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
		"the Subnet is deleted":       {func(t *Table) { t.DeleteSubnet("web") }, "[10.1.0.0/24 10.1.0.1/32 fd00::/112 fd00::1/128]", webSubnet("true")},
		"the Service is deleted":      {func(t *Table) { t.DeleteService(web) }, "[10.96.0.7/32 203.0.113.9/32]", webService("true", externalLocal)},
		"the endpoint is not ready":   {func(t *Table) { t.SetSlice(slice(endpoint(here, false), endpoint(elsewhere, true))) }, "[203.0.113.9/32]", slice(endpoint(here, true))},
		"no endpoint is ready":        {func(t *Table) { t.SetSlice(slice(endpoint(here, false))) }, "[10.96.0.7/32 203.0.113.9/32]", slice(endpoint(here, true))},
		"the slice is deleted":        {func(t *Table) { t.DeleteSlice(types.NamespacedName{Namespace: "shop", Name: "web-1"}) }, "[10.96.0.7/32 203.0.113.9/32]", slice(endpoint(here, true))},
		"the slice has another Service": {func(t *Table) {
			s := slice(endpoint(here, true))
			s.Labels[discoveryv1.LabelServiceName] = "other"
			t.SetSlice(s)
		}, "[10.96.0.7/32 203.0.113.9/32]", slice(endpoint(here, true))},
		"the node is drained":   {func(t *Table) { t.SetNode(node(cordoned)) }, "[10.1.0.0/24 10.96.0.7/32 fd00::/112]", node()},
		"the node is not ready": {func(t *Table) { t.SetNode(node(func(n *corev1.Node) { n.Status.Conditions = nil })) }, "[10.1.0.0/24 10.96.0.7/32 fd00::/112]", node()},
		"the node is deleted":   {func(t *Table) { t.DeleteNode(here) }, "[10.1.0.0/24 10.1.0.1/32 10.96.0.7/32 203.0.113.9/32 fd00::/112 fd00::1/128]", node()},
		"its network is down":   {func(t *Table) { t.SetNode(node(noNetwork)) }, "[10.1.0.0/24 10.1.0.1/32 10.96.0.7/32 203.0.113.9/32 fd00::/112 fd00::1/128]", node()},
		"a node gets the address of the Service": {func(t *Table) {
			t.SetNode(other(func(n *corev1.Node) {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.9"})
			}))
		}, "[203.0.113.9/32]", other()},
		"the API server gets the address of the Service": {func(t *Table) { t.SetSlice(apiServers("203.0.113.9")) }, "[203.0.113.9/32]", apiServers("203.0.113.1")},
		"a Subnet gets the address of the Service": {
			func(t *Table) { t.SetSubnet(extra("203.0.113.0/24")) }, "[203.0.113.9/32]", extra("203.0.114.0/24"),
		},
		"the Subnet gets the address of the pod as gateway": {
			func(t *Table) {
				t.SetSubnet(webSubnet("true", func(s *kubeovnv1.Subnet) { s.Spec.Gateway = "10.1.0.1" }))
			}, "[10.1.0.1/32]", webSubnet("true"),
		},
		"the namespace is not permitted": {
			func(t *Table) { t.Set(Settings{}) }, "[10.96.0.7/32 203.0.113.9/32]", []string{"shop"}, // the Subnet permits its pods
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(here)
			fill(table, node(), other(), []string{"shop"}, webSubnet("true"), newPod("1", here, annotated("local")), webService("true", externalLocal), slice(endpoint(here, true)))
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
	if len(table.ports) != 1 {
		t.Errorf("the table has %d ports", len(table.ports))
	}
	table.DeletePod(types.NamespacedName{Namespace: "shop", Name: "1"})
	table.DeleteSubnet("web")
	table.DeleteService(types.NamespacedName{Namespace: "shop", Name: "web"})
	table.DeleteSlice(types.NamespacedName{Namespace: "shop", Name: "web-1"})
	table.SetEgress(fixed("out"))
	table.DeleteEgress("out")
	table.SetEip(eip("true"))
	table.DeleteEip("web")
	table.SetSlice(apiServers("198.51.100.6"))
	table.DeleteSlice(types.NamespacedName{Namespace: "default", Name: "kubernetes"})
	table.DeleteNode(here)
	table.Changes()
	if n := len(table.ports) + len(table.members) + len(table.subnets) + len(table.services) + len(table.slices) + len(table.endpoints) + len(table.offers) + len(table.counts) + len(table.changed) + len(table.nodes) + len(table.reserved) + len(table.apiServers) +
		len(table.egresses) + len(table.meds) + len(table.eips) + len(table.ruled); n != 0 {
		t.Errorf("%d entries are left: %+v", n, table)
	}
}

// Each port of a pod has prefixes, a refusal and a place in the limit of its namespace by itself.
func TestPortsOfAPodAreAnnouncedByThemselves(t *testing.T) {
	const provider = "net1.default.ovn"
	p := newPod("1", here, annotated("local"))
	maps.Copy(p.Annotations, kubeovnv1.PodNetwork{
		Provider: provider, UID: p.UID, Allocated: true, LogicalSwitch: "blue", LogicalRouter: kubeovnv1.DefaultVpc,
		Addresses: []netip.Addr{netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("fd00:2::1")},
	}.Annotations())
	blue := webSubnet("", func(s *kubeovnv1.Subnet) { s.Name, s.Spec.CIDRBlock = "blue", "10.2.0.0/24,fd00:2::/112" })
	key := types.NamespacedName{Namespace: "shop", Name: "1"}
	second := ownerOfPort(key, provider)
	table := New(here)
	fill(table, node(), []string{"shop"}, webSubnet(""), blue, p)
	table.setPort(second, portOf(p, provider, here))
	const first, both = "10.1.0.1/32 fd00::1/128", "10.1.0.1/32 10.2.0.1/32 fd00::1/128 fd00:2::1/128"
	for _, step := range []struct {
		name          string
		do            func()
		want, refused string
	}{
		{"two ports", func() {}, both, ""},
		{"an event of the pod", func() { table.SetPod(p) }, both, ""},
		{"the Subnet of the second port is deleted", func() { table.DeleteSubnet("blue") }, first, ""},
		{"it is created again", func() { table.SetSubnet(blue) }, both, ""},
		{"a limit for one port", func() { table.Set(Settings{Namespaces: []string{"shop"}, MaxPrefixes: 3}) }, first, "Pod shop/1 at " + provider + ": " + beyond(3)},
		{"the default limit", func() { table.Set(Settings{Namespaces: []string{"shop"}}) }, both, ""},
		{"the second port is removed", func() { table.setPort(second, nil) }, first, ""},
	} {
		step.do()
		if announced, refused := state(table); announced != step.want || refused != step.refused {
			t.Errorf("%s: announced %q, refused %q; want %q, %q", step.name, announced, refused, step.want, step.refused)
		}
	}
	if owner := table.OwnersOf()[netip.MustParsePrefix("10.1.0.1/32")].String(); owner != "Pod shop/1" {
		t.Errorf("the first port is of %q", owner)
	}
}

// BenchmarkAnEvent measures one event in a table of 5,000 pods.
func BenchmarkAnEvent(b *testing.B) {
	table := New(here)
	fill(table, node(), []string{"*"}, webSubnet("", func(s *kubeovnv1.Subnet) { s.Spec.CIDRBlock = "10.0.0.0/8,fd00::/112" }))
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

// mirror makes a pod one that a kubelet created for a static pod.
func mirror(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = "hash" }
