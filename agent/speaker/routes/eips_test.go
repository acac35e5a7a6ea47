// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// eip returns the OvnEip of a RouterLBRule.
func eip(value string, change ...func(*kubeovnv1.OvnEip)) *kubeovnv1.OvnEip {
	e := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: bgp(value)}}
	e.Status.V4IP, e.Status.NAT = "10.120.0.10", "snat,lb"
	for _, c := range change {
		c(e)
	}
	return e
}

// ruleService returns the Service of a RouterLBRule of the default VPC.
func ruleService(change ...func(*corev1.Service)) *corev1.Service {
	s := webService("")
	s.Annotations, s.Spec.ClusterIPs, s.Spec.ExternalIPs, s.Status = nil, []string{"10.96.0.7"}, []string{"10.120.0.10"}, corev1.ServiceStatus{}
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: kubeovnv1.GroupVersion.String(), Kind: kubeovnv1.OnRouterLBRule, Name: "web", UID: "u", Controller: new(true)}}
	for _, c := range change {
		c(s)
	}
	return s
}

func TestNodesAnnounceAnOvnEipThatTheyServe(t *testing.T) {
	const address, unused = "10.120.0.10/32", "OvnEip web: no RouterLBRule uses it: nodes serve addresses of OvnEips only for RouterLBRules of VPC ovn-cluster"
	external := extra("10.120.0.0/24")
	ready := slice(endpoint(elsewhere, true))
	for name, test := range map[string]struct {
		objects       []any
		want, refused string
	}{
		"of a rule":                    {[]any{node(), external, eip("true"), ruleService(), ready}, address, ""},
		"the OvnEip after the Service": {[]any{node(), external, ruleService(), ready, eip("local")}, address, ""},
		"both families": {[]any{node(), eip("true", func(e *kubeovnv1.OvnEip) { e.Status.V6IP = "fd00:10:120::10" }), ruleService(func(s *corev1.Service) {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, "fd00:10:120::10")
		}), ready}, address, ""}, // no endpoint has the family
		"a cordoned node":               {[]any{node(cordoned), other(), eip("true"), ruleService(), ready}, "", ""},
		"without a ready endpoint":      {[]any{node(), eip("true"), ruleService(), slice(endpoint(elsewhere, false))}, "", ""},
		"a local policy":                {[]any{node(), eip("true"), ruleService(externalLocal), ready}, "", ""},
		"a local policy, endpoint here": {[]any{node(), eip("true"), ruleService(externalLocal), slice(endpoint(here, true))}, address, ""},
		"without the annotation":        {[]any{node(), eip(""), ruleService(), ready}, "", ""},
		"an invalid value":              {[]any{node(), eip("yes"), ruleService(), ready}, "", "OvnEip web: annotation ovn.kubernetes.io/bgp must be true, cluster, local or false"},
		"without a rule":                {[]any{node(), eip("true", func(e *kubeovnv1.OvnEip) { e.Status.NAT = "fip" })}, "", unused},
		"of a router's port":            {[]any{node(), eip("true", func(e *kubeovnv1.OvnEip) { e.Spec.Type = "lrp" }), ruleService(), ready}, "", unused},
		"of a rule of another VPC":      {[]any{node(), eip("true")}, "", ""}, // its Service has no external addresses
		"pods in another VPC":           {[]any{node(), eip("true"), ruleService(func(s *corev1.Service) { s.Annotations = map[string]string{kubeovnv1.AnnotationVpc.Key(): "red"} }), ready}, "", ""},
		"a Service that is annotated":   {[]any{node(), []string{"shop"}, external, eip("true"), ruleService(func(s *corev1.Service) { s.Annotations = bgp("true") }), ready}, "10.96.0.7/32 " + address, ""},
		"only the Service is annotated": {[]any{node(), []string{"shop"}, external, eip(""), ruleService(func(s *corev1.Service) { s.Annotations = bgp("true") }), ready}, "10.96.0.7/32", ""},
		"a Service that opts out":       {[]any{node(), []string{"shop"}, eip("true"), ruleService(func(s *corev1.Service) { s.Annotations = bgp("false") }), ready}, address, ""},
		"the address of a user's Service": {[]any{node(), []string{"shop"}, external, eip("true"), ruleService(func(s *corev1.Service) {
			s.OwnerReferences, s.Annotations = nil, bgp("true")
		}), ready}, "10.96.0.7/32", "Service shop/web: 10.120.0.10 is in Subnet extra"},
		"an address of a peer": {[]any{node(), Settings{Peers: []netip.Addr{netip.MustParseAddr("10.120.0.10")}}, eip("true"), ruleService(), ready}, "", "Service shop/web: 10.120.0.10 is an address of a peer of the speaker"},
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

func TestAnOvnEipIsWithdrawnWithItsLastReason(t *testing.T) {
	for name, event := range map[string]func(*Table){
		"the annotation is removed": func(t *Table) { t.SetEip(eip("")) },
		"the OvnEip is deleted":     func(t *Table) { t.DeleteEip("web") },
		"the rule is deleted":       func(t *Table) { t.DeleteService(types.NamespacedName{Namespace: "shop", Name: "web"}) },
		"nodes serve it no longer":  func(t *Table) { t.SetService(ruleService(func(s *corev1.Service) { s.Spec.ExternalIPs = nil })) },
	} {
		table := New(here)
		fill(table, node(), eip("true"), ruleService(), slice(endpoint(here, true)))
		if announced, _ := state(table); announced != "10.120.0.10/32" {
			t.Fatalf("%s: before, it announces %q", name, announced)
		}
		event(table)
		if announced, refused := state(table); announced != "" || refused != "" {
			t.Errorf("%s: announced %q, refused %q", name, announced, refused)
		}
	}
}
