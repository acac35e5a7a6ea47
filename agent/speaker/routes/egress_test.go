// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// fixed returns an annotated EgressAddress whose addresses are on this node since second 100.
func fixed(name string, change ...func(*kubeovnv1.EgressAddress)) *kubeovnv1.EgressAddress {
	e := &kubeovnv1.EgressAddress{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: bgp("true")}}
	e.Spec.Addresses, e.Spec.NodeSelector = []string{"198.51.100.9", "2001:db8:9::9"}, &metav1.LabelSelector{}
	e.Status.Node, e.Status.Addresses, e.Status.NodeSince = here, e.Spec.Addresses, new(metav1.Unix(100, 0))
	for _, c := range change {
		c(e)
	}
	return e
}

func at(name string, second int64) func(*kubeovnv1.EgressAddress) {
	return func(e *kubeovnv1.EgressAddress) {
		e.Status.Node, e.Status.NodeSince = name, new(metav1.Unix(second, 0))
	}
}

func withBGP(value string) func(*kubeovnv1.EgressAddress) {
	return func(e *kubeovnv1.EgressAddress) { e.Annotations = bgp(value) }
}

func TestANodeAnnouncesTheEgressAddressesThatItHas(t *testing.T) {
	const both, first, second = "198.51.100.9/32 2001:db8:9::9/128", "198.51.100.9/32", "2001:db8:9::9/128"
	byEip := func(e *kubeovnv1.EgressAddress) {
		e.Spec.OvnEip, e.Spec.Addresses, e.Spec.NodeSelector, e.Status.Node = "shop", nil, nil, ""
	}
	for name, test := range map[string]struct {
		objects       []any
		want, refused string
	}{
		"on this node":                    {[]any{node(), fixed("out")}, both, ""},
		"the word cluster":                {[]any{node(), other(), fixed("out", withBGP("cluster"))}, both, ""},
		"the word local":                  {[]any{node(), fixed("out", withBGP("local"))}, both, ""},
		"on another node":                 {[]any{node(), other(), fixed("out", at(elsewhere, 100))}, "", ""},
		"on no node":                      {[]any{node(), fixed("out", at("", 100))}, "", ""},
		"the word false":                  {[]any{node(), fixed("out", withBGP("false"))}, "", ""},
		"no annotation":                   {[]any{node(), fixed("out", func(e *kubeovnv1.EgressAddress) { e.Annotations = nil })}, "", ""},
		"an invalid value":                {[]any{node(), fixed("out", withBGP("yes"))}, "", "EgressAddress out: annotation ovn.kubernetes.io/bgp must be true, cluster, local or false"},
		"an invalid value, another node":  {[]any{node(), fixed("out", withBGP("yes"), at(elsewhere, 1))}, "", "EgressAddress out: annotation ovn.kubernetes.io/bgp must be true, cluster, local or false"},
		"addresses of an OvnEip":          {[]any{node(), fixed("out", byEip)}, "", "EgressAddress out: its addresses are of OvnEip shop: routers reach them in the external subnet, and not through nodes"},
		"not ready":                       {[]any{node(notReady), other(), fixed("out")}, both, ""}, // the controller moves it, if another node can have it
		"without a network":               {[]any{node(noNetwork), fixed("out")}, "", ""},
		"an object that is being deleted": {[]any{node(), fixed("out", func(e *kubeovnv1.EgressAddress) { e.DeletionTimestamp = new(metav1.Now()) })}, "", ""},
		"a spec without a status":         {[]any{node(), fixed("out", func(e *kubeovnv1.EgressAddress) { e.Status = kubeovnv1.EgressAddressStatus{} })}, "", ""},
		"a spec that is not committed":    {[]any{node(), fixed("out", func(e *kubeovnv1.EgressAddress) { e.Spec.Addresses = []string{"203.0.113.1"} })}, both, ""},
		"addresses that nobody forwards": {
			[]any{node(), fixed("out", func(e *kubeovnv1.EgressAddress) {
				e.Status.Addresses = []string{"127.0.0.1", "fe80::1", "x", "198.51.100.9", "198.51.100.9"}
			})}, first, "",
		},
		"the address of a peer": {
			[]any{node(), Settings{Peers: []netip.Addr{netip.MustParseAddr("198.51.100.9")}}, fixed("out")}, second, "EgressAddress out: 198.51.100.9 is an address of a peer of the speaker",
		},
		"the address of a later peer": {
			[]any{node(), fixed("out"), Settings{Peers: []netip.Addr{netip.MustParseAddr("198.51.100.9")}}}, second, "EgressAddress out: 198.51.100.9 is an address of a peer of the speaker",
		},
		"the address of the API server": {[]any{node(), fixed("out"), apiServers("198.51.100.9")}, second, "EgressAddress out: 198.51.100.9 is an address of the API server"},
		"an address that a stolen node lists": {
			[]any{node(), fixed("out"), other(func(n *corev1.Node) {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "198.51.100.9"})
			})}, both, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(here)
			fill(table, test.objects...)
			if announced, refused := state(table); announced != test.want || refused != test.refused {
				t.Errorf("announced %q, refused %q; want %q, %q", announced, refused, test.want, test.refused)
			}
		})
	}
}

// TestUsersDoNotAnnounceAnEgressAddress: a Service with its address would get the answers to the selected pods.
func TestUsersDoNotAnnounceAnEgressAddress(t *testing.T) {
	web := webService("true")
	web.Spec.ClusterIPs, web.Spec.ClusterIP = nil, ""
	unannounced := fixed("out", withBGP("false"), at(elsewhere, 1), func(e *kubeovnv1.EgressAddress) { e.Status.Addresses = []string{"203.0.113.9"} })
	table := New(here)
	fill(table, node(), []string{"shop"}, web, slice(endpoint(here, true)))
	for _, step := range []struct {
		name          string
		do            func()
		want, refused string
	}{
		{"without an EgressAddress", func() {}, "203.0.113.9/32", ""},
		{"with one", func() { table.SetEgress(unannounced) }, "", "Service shop/web: 203.0.113.9 is an address of an EgressAddress"},
		{"it is deleted", func() { table.DeleteEgress("out") }, "203.0.113.9/32", ""},
	} {
		step.do()
		if announced, refused := state(table); announced != step.want || refused != step.refused {
			t.Errorf("%s: announced %q, refused %q; want %q, %q", step.name, announced, refused, step.want, step.refused)
		}
	}
}

// TestTheNewestNodeOfAnAddressIsPreferred moves an address between two nodes, of which one notices nothing.
func TestTheNewestNodeOfAnAddressIsPreferred(t *testing.T) {
	med := func(table *Table) uint32 {
		t.Helper()
		announce, withdraw := table.Changes()
		if len(announce) != 2 || len(withdraw) != 0 || announce[0].MED != announce[1].MED {
			t.Fatalf("announces %+v, withdraws %v", announce, withdraw)
		}
		return announce[0].MED
	}
	first, second := New(here), New(elsewhere)
	fill(first, node(), other(), fixed("out"))
	fill(second, node(), other(), fixed("out"))
	stale := med(first)
	fill(second, fixed("out", at(elsewhere, 101)))
	if newest := med(second); newest >= stale {
		t.Errorf("the newest node has the MED %d, the former one %d", newest, stale)
	}
	fill(first, fixed("out", at(here, 102)))
	if again := med(first); again >= stale {
		t.Errorf("after the return of the address its MED is %d, before %d", again, stale)
	}
	fill(first, fixed("out", at(here, 102)))
	if announce, withdraw := first.Changes(); len(announce)+len(withdraw) != 0 {
		t.Errorf("without a change it announces %v and withdraws %v", announce, withdraw)
	}
	fill(first, fixed("out", at(elsewhere, 103)))
	if announce, withdraw := first.Changes(); len(announce) != 0 || fmt.Sprint(withdraw) != "[198.51.100.9/32 2001:db8:9::9/128]" {
		t.Errorf("the former node announces %v and withdraws %v", announce, withdraw)
	}
}

func TestMEDs(t *testing.T) {
	for name, test := range map[string]struct {
		since *metav1.Time
		want  uint32
	}{
		"of a status of an earlier version": {nil, math.MaxUint32},
		"before 1970":                       {new(metav1.Unix(-5, 0)), math.MaxUint32},
		"in 2026":                           {new(metav1.NewTime(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC))), 2_498_970_495},
		"after 2106, never none":            {new(metav1.Unix(math.MaxUint32+7, 0)), 1},
	} {
		if got := medOf(test.since); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
