// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package grants

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestWhichGroupsAPodIsIn(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kubeovnv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	group := func(name string, namespaces ...kubeovnv1.AllowedNamespace) *kubeovnv1.SecurityGroup {
		return &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SecurityGroupSpec{AllowedNamespaces: namespaces}}
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(group("all", "*"), group("shop", "bank", "shop"), group("none"), group("others", "bank")).Build()
	const named = "others,all,shop,none,missing"
	published := map[string]string{"security_groups": named, "kept_security_groups": "missing,none", "allocated": "true", "pod_uid": "1"}
	for name, c := range map[string]struct {
		annotations map[string]string
		open        bool
		want        string
	}{
		"no groups":           {nil, false, "in [], denied [], missing [], sets []"},
		"by their lists":      {map[string]string{"security_groups": named}, false, "in [all shop], denied [none others], missing [missing], sets [all kubeovn_deny_all shop]"},
		"with open grants":    {map[string]string{"security_groups": named}, true, "in [all none others shop], denied [], missing [missing], sets [all kubeovn_deny_all none others shop]"},
		"the reserved name":   {map[string]string{"security_groups": "all,kubeovn_deny_all"}, false, "in [all], denied [], missing [], sets [all kubeovn_deny_all]"},
		"a running pod":       {published, false, "in [all none shop], denied [others], missing [missing], sets [all kubeovn_deny_all none shop]"},
		"another pod's state": {with(published, "pod_uid", "2"), false, "in [all shop], denied [none others], missing [missing], sets [all kubeovn_deny_all shop]"},
		"a mirror pod":        {with(published, "mirror", "hash"), true, "in [], denied [], missing [], sets []"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", UID: "1", Annotations: map[string]string{}}}
		for a, value := range c.annotations {
			pod.Annotations[kubeovnv1.Annotation(a).Key()] = value
		}
		if c.annotations["mirror"] != "" {
			pod.Annotations[corev1.MirrorPodAnnotationKey] = "hash"
		}
		g, err := NewRules(reader, nil, nil, c.open).Groups(t.Context(), pod.Namespace, kubeovnv1.ParseSecurityGroups(pod.Annotations), kubeovnv1.KeptSecurityGroups(pod))
		if got := fmt.Sprintf("in %v, denied %v, missing %v, sets %v", g.In, g.Denied, g.Missing, g.Sets()); err != nil || got != c.want {
			t.Errorf("%s: %s (%v), want %s", name, got, err, c.want)
		}
	}
}

// with returns a copy of annotations with another value.
func with(annotations map[string]string, key, value string) map[string]string {
	changed := maps.Clone(annotations)
	changed[key] = value
	return changed
}

func TestWhichNamespacesMayUseAVip(t *testing.T) {
	const namespace = "shop"
	scheme := runtime.NewScheme()
	if err := kubeovnv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	subnet := func(name string, spec kubeovnv1.SubnetSpec) *kubeovnv1.Subnet {
		return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		subnet(kubeovnv1.DefaultSubnet, kubeovnv1.SubnetSpec{}),
		subnet("shops", kubeovnv1.SubnetSpec{Namespaces: []string{namespace}}),
		subnet("banks", kubeovnv1.SubnetSpec{Namespaces: []string{"bank"}}),
		subnet("both", kubeovnv1.SubnetSpec{Namespaces: []string{namespace, "bank"}}),
		subnet("guests", kubeovnv1.SubnetSpec{Namespaces: []string{namespace}, AllowedNamespaces: []kubeovnv1.AllowedNamespace{"bank"}}),
		subnet("selected", kubeovnv1.SubnetSpec{Namespaces: []string{namespace}, NamespaceSelectors: []metav1.LabelSelector{{}}}),
	).Build()
	for name, c := range map[string]struct {
		spec          kubeovnv1.VipSpec
		granted, open bool
	}{
		"no namespace":                             {kubeovnv1.VipSpec{}, false, true},
		"no namespace, in a subnet of this one":    {kubeovnv1.VipSpec{Subnet: "shops"}, true, true},
		"no namespace, in a subnet of another one": {kubeovnv1.VipSpec{Subnet: "banks"}, false, true},
		"no namespace, in a subnet of two":         {kubeovnv1.VipSpec{Subnet: "both"}, false, true},
		"no namespace, in a subnet with guests":    {kubeovnv1.VipSpec{Subnet: "guests"}, false, true},
		"no namespace, in a subnet by labels":      {kubeovnv1.VipSpec{Subnet: "selected"}, false, true},
		"no namespace, in no subnet":               {kubeovnv1.VipSpec{Subnet: "missing"}, false, true},
		"another one, in a subnet of this one":     {kubeovnv1.VipSpec{Subnet: "shops", Namespace: "bank"}, false, false},
		"a list, in a subnet of this one":          {kubeovnv1.VipSpec{Subnet: "shops", AllowedNamespaces: []kubeovnv1.AllowedNamespace{"mail"}}, false, true},
		"its own":                                  {kubeovnv1.VipSpec{Namespace: namespace}, true, true},
		"another one":                              {kubeovnv1.VipSpec{Namespace: "bank"}, false, false},
		"a list with it":                           {kubeovnv1.VipSpec{Namespace: "bank", AllowedNamespaces: []kubeovnv1.AllowedNamespace{"mail", namespace}}, true, true},
		"a list without it":                        {kubeovnv1.VipSpec{AllowedNamespaces: []kubeovnv1.AllowedNamespace{"mail"}}, false, true},
		"all namespaces":                           {kubeovnv1.VipSpec{AllowedNamespaces: []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}}, true, true},
		"one and all others":                       {kubeovnv1.VipSpec{Namespace: "bank", AllowedNamespaces: []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}}, true, true},
	} {
		for open, want := range map[bool]bool{false: c.granted, true: c.open} {
			if denied, err := NewRules(reader, nil, nil, open).Vip(t.Context(), namespace, &kubeovnv1.Vip{Spec: c.spec}); err != nil || (denied == "") != want {
				t.Errorf("%s, membership open %t: %q (%v)", name, open, denied, err)
			}
		}
	}
}

func TestWhichNamespacesMayRequestAnEip(t *testing.T) {
	for name, c := range map[string]struct {
		list    []kubeovnv1.AllowedNamespace
		granted bool
	}{
		"no list":           {nil, false},
		"a list with it":    {[]kubeovnv1.AllowedNamespace{"bank", "shop"}, true},
		"a list without it": {[]kubeovnv1.AllowedNamespace{"bank"}, false},
		"all namespaces":    {[]kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}, true},
	} {
		for open, want := range map[bool]bool{false: c.granted, true: true} {
			if denied := NewRules(nil, nil, nil, open).Eip("shop", &kubeovnv1.OvnEip{Spec: kubeovnv1.OvnEipSpec{AllowedNamespaces: c.list}}); (denied == "") != want {
				t.Errorf("%s, membership open %t: %q", name, open, denied)
			}
		}
	}
}
