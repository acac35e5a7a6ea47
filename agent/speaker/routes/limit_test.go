// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// aged returns a change of a pod that was created this many seconds after others.
func aged(seconds int) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Unix(int64(seconds), 0)) }
}

// classed gives a Service addresses of a load balancer with a class.
func classed(s *corev1.Service) {
	s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, new("example.com/public")
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.20"}, {IP: "203.0.113.21", IPMode: new(corev1.LoadBalancerIPModeProxy)}}
	s.Status.Conditions = []metav1.Condition{{Type: kubeovnv1.ConditionAddressAssigned, Status: metav1.ConditionTrue}}
}

// foreign is a Service with addresses of another controller.
func foreign(s *corev1.Service) { s.Status.Conditions = nil }

func listing(address string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
}

func unannotated(s *corev1.Service) { s.Annotations = nil }

func TestAddressesOfPools(t *testing.T) {
	always, permitted := Settings{Classes: []string{"example.com/public"}}, Settings{Classes: []string{"example.com/public"}, Namespaces: []string{"shop"}}
	const balanced, all = "203.0.113.20/32", "10.96.0.7/32 203.0.113.20/32"
	for name, test := range map[string]struct {
		objects       []any
		want, refused string
	}{
		"a pool that is always announced":  {[]any{always, webService("", unannotated, classed), slice(endpoint(elsewhere, true))}, balanced, ""},
		"a pool that becomes announced":    {[]any{webService("", unannotated, classed), slice(endpoint(elsewhere, true)), always}, balanced, ""},
		"a Service that opts out":          {[]any{always, webService("false", classed), slice(endpoint(elsewhere, true))}, "", ""},
		"a Service without endpoints":      {[]any{always, webService("", unannotated, classed)}, "", ""},
		"a local policy":                   {[]any{always, webService("", unannotated, classed, externalLocal), slice(endpoint(elsewhere, true))}, "", ""},
		"a local policy with an endpoint":  {[]any{always, webService("", unannotated, classed, externalLocal), slice(endpoint(here, true))}, balanced, ""},
		"local by the annotation":          {[]any{always, webService("local", classed), slice(endpoint(elsewhere, true))}, "", ""},
		"another class":                    {[]any{Settings{Classes: []string{"other"}}, webService("", unannotated, classed), slice(endpoint(here, true))}, "", ""},
		"a class, but another type":        {[]any{always, webService("", unannotated, classed, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }), slice(endpoint(here, true))}, "", ""},
		"an annotation without permission": {[]any{always, webService("true", classed), slice(endpoint(elsewhere, true))}, balanced, ""},
		"an annotation with permission":    {[]any{permitted, webService("true", classed), slice(endpoint(elsewhere, true))}, all, ""},
		"an address of a Subnet":           {[]any{always, extra("203.0.113.0/24"), webService("", unannotated, classed), slice(endpoint(here, true))}, balanced, ""},
		"an address that a node lists":     {[]any{always, other(listing("203.0.113.20")), webService("", unannotated, classed), slice(endpoint(here, true))}, balanced, ""},
		"annotated, and a node lists both": {[]any{permitted, other(listing("203.0.113.20"), listing("10.96.0.7")), webService("true", classed), slice(endpoint(here, true))}, all, ""},
		"an address of another controller": {[]any{always, webService("", unannotated, classed, foreign), slice(endpoint(here, true))}, "", ""},
		"annotated, of another controller": {[]any{permitted, webService("true", classed, foreign), slice(endpoint(here, true))}, all, ""},
		"a node has that one": {
			[]any{permitted, other(listing("203.0.113.20")), webService("true", classed, foreign), slice(endpoint(here, true))}, "10.96.0.7/32",
			"Service shop/web: 203.0.113.20 is an address of a node",
		},
		"an address of a peer": {
			[]any{Settings{Classes: always.Classes, Peers: []netip.Addr{netip.MustParseAddr("203.0.113.20")}}, webService("", unannotated, classed), slice(endpoint(here, true))}, "",
			"Service shop/web: 203.0.113.20 is an address of a peer of the speaker",
		},
		"a Service of a custom VPC": {
			[]any{always, webService("", unannotated, classed, func(s *corev1.Service) { s.Annotations = map[string]string{kubeovnv1.AnnotationVpc.Key(): "red"} }), slice(endpoint(here, true))}, "",
			"Service shop/web: it is in VPC red: only nodes' own VPC ovn-cluster can be reached from outside through nodes",
		},
		"beyond the limit, but of a pool": {
			[]any{Settings{Classes: permitted.Classes, Namespaces: permitted.Namespaces, MaxPrefixes: 1}, webService("true", classed, dualStack), slice(endpoint(here, true))}, balanced, "Service shop/web: " + beyond(1),
		},
		"addresses of the pool do not count": {
			[]any{Settings{Classes: permitted.Classes, Namespaces: permitted.Namespaces, MaxPrefixes: 1}, webService("true", classed), slice(endpoint(here, true))}, all, "",
		},
		"those of a pool that announces nothing do": {
			[]any{Settings{Namespaces: permitted.Namespaces, MaxPrefixes: 1}, webService("true", classed), slice(endpoint(here, true))}, "", "Service shop/web: " + beyond(1),
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(here)
			fill(table, append([]any{node()}, test.objects...)...)
			if announced, refused := state(table); announced != test.want || refused != test.refused {
				t.Errorf("announced %q, refused %q; want %q, %q", announced, refused, test.want, test.refused)
			}
		})
	}
}

func beyond(limit int) string {
	return fmt.Sprintf("older pods and Services of namespace shop announce spec.speaker.maxPrefixesPerNamespace (%d) prefixes: "+
		"remove annotations ovn.kubernetes.io/bgp, or raise the limit", limit)
}

// Each pod has a prefix of both families. All nodes announce the oldest objects, in whatever order they see them.
func TestLimitOfANamespace(t *testing.T) {
	limited := Settings{Namespaces: []string{"shop"}, MaxPrefixes: 5}
	one := func(n int) *corev1.Pod { return newPod(fmt.Sprint(n), elsewhere, annotated("true"), aged(n)) }
	const first = "10.1.0.1/32 10.1.0.2/32 fd00::1/128 fd00::2/128"
	for name, order := range map[string][]int{"oldest first": {1, 2, 3, 4}, "youngest first": {4, 3, 2, 1}, "mixed": {3, 1, 4, 2}} {
		for _, on := range []string{here, elsewhere} {
			t.Run(name+" on "+on, func(t *testing.T) {
				table := New(on)
				fill(table, node(), other(), limited, webSubnet(""))
				for _, n := range order {
					table.SetPod(one(n))
				}
				announced, refused := state(table)
				if announced != first || strings.Count(refused, beyond(5)) != 2 || table.Excess()["shop"] != 2 {
					t.Errorf("announced %q, refused %q", announced, refused)
				}
				if n := len(table.NewExcess()); n != 2 || len(table.NewExcess()) != 0 {
					t.Errorf("%d new objects beyond the limit, want 2, once", n)
				}
			})
		}
	}

	table := New(here)
	fill(table, node(), limited, webSubnet(""), one(2), one(3), one(4))
	steps := []struct {
		name string
		do   func()
		want string
	}{
		{"a younger pod", func() { table.SetPod(one(5)) }, "10.1.0.2/32 10.1.0.3/32 fd00::2/128 fd00::3/128"},
		{"a deleted pod", func() { table.DeletePod(types.NamespacedName{Namespace: "shop", Name: "2"}) }, "10.1.0.3/32 10.1.0.4/32 fd00::3/128 fd00::4/128"},
		{"an older pod", func() { table.SetPod(one(1)) }, "10.1.0.1/32 10.1.0.3/32 fd00::1/128 fd00::3/128"},
		{"a Service counts by its addresses, whether it has endpoints or not", func() {
			s := webService("true")
			s.CreationTimestamp = metav1.NewTime(time.Unix(2, 0))
			table.SetService(s)
		}, "10.1.0.1/32 fd00::1/128"},
		{"a higher limit", func() { table.Set(Settings{Namespaces: []string{"shop"}, MaxPrefixes: 6}) }, "10.1.0.1/32 10.1.0.3/32 fd00::1/128 fd00::3/128"},
		{"the default", func() { table.Set(Settings{Namespaces: []string{"shop"}}) }, "10.1.0.1/32 10.1.0.3/32 10.1.0.4/32 10.1.0.5/32 fd00::1/128 fd00::3/128 fd00::4/128 fd00::5/128"},
		{"a lower limit", func() { table.Set(Settings{Namespaces: []string{"shop"}, MaxPrefixes: 1}) }, ""},
		{"no annotation needs no permission", func() { table.SetSubnet(webSubnet("local")); table.SetPod(newPod("9", here)) }, "10.1.0.9/32 fd00::9/128"},
	}
	for _, step := range steps {
		step.do()
		if announced, refused := state(table); announced != step.want {
			t.Fatalf("%s: announced %q, want %q; refused %q", step.name, announced, step.want, refused)
		}
	}
	if n := table.Excess()["shop"]; n != 5 {
		t.Errorf("%d objects beyond the limit, want 5", n)
	}
}

// One of the nodes with a speaker reports.
func TestReports(t *testing.T) {
	for name, test := range map[string]struct {
		objects []any
		want    bool
	}{
		"alone":                    {[]any{node()}, true},
		"without its node":         {nil, false},
		"the first by name":        {[]any{node(), other()}, true},
		"a fitter node":            {[]any{node(notReady), other()}, false},
		"a node without a speaker": {[]any{Settings{Nodes: map[string]string{"bgp": "true"}}, node(notReady, labeled), other()}, true},
	} {
		table := New(here)
		fill(table, test.objects...)
		if got := table.Reports(); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
