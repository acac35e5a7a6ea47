// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// TestNamespacesThatWouldLoseGroupsAreListed has pods and a workload of several namespaces that name groups and Vips.
func TestNamespacesThatWouldLoseGroupsAreListed(t *testing.T) {
	object := func(kind, name string, spec map[string]any) unstructured.Unstructured {
		u := unstructured.Unstructured{Object: map[string]any{"spec": spec, "status": map[string]any{"type": ""}}}
		u.SetKind(kind)
		u.SetName(name)
		return u
	}
	pod := func(namespace string, a kubeovnv1.Annotation, value string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", Annotations: map[string]string{a.Key(): value}}}
	}
	c := &Cluster{
		OVNCluster: &v1alpha1.OVNCluster{},
		Pods: []corev1.Pod{
			pod("shop", kubeovnv1.AnnotationGroups, "listed, open,strict"), pod("bank", kubeovnv1.AnnotationGroups, "open,strict"),
			pod("shop", kubeovnv1.AnnotationVip, "own"), pod("bank", kubeovnv1.AnnotationAAPs, "own,unlisted,in-banks,in-shops"),
			pod("shop", kubeovnv1.AnnotationEip, "192.0.2.9"), pod("bank", kubeovnv1.AnnotationSnat, "192.0.2.9"), pod("shop", kubeovnv1.AnnotationSnat, "192.0.2.10"),
		},
		Objects: map[string][]unstructured.Unstructured{
			"SecurityGroup": {
				object("SecurityGroup", "listed", map[string]any{"allowedNamespaces": []any{"shop"}}), object("SecurityGroup", "open", map[string]any{"allowedNamespaces": []any{"*"}}),
				object("SecurityGroup", "strict", map[string]any{"allowedNamespaces": []any{"shop"}}), object("SecurityGroup", "unused", map[string]any{}),
			},
			"Vip": {
				object("Vip", "own", map[string]any{"namespace": "shop"}), object("Vip", "unlisted", map[string]any{}),
				object("Vip", "in-banks", map[string]any{"subnet": "banks"}), object("Vip", "in-shops", map[string]any{"subnet": "shops"}),
			},
			"OvnEip": {object("OvnEip", "eip", map[string]any{"v4Ip": "192.0.2.9", "allowedNamespaces": []any{"shop"}})},
			"Subnet": {
				object("Subnet", "banks", map[string]any{"namespaces": []any{"bank"}}), object("Subnet", "shops", map[string]any{"namespaces": []any{"shop"}}),
			},
		},
	}
	w := Workload{Kind: "Deployment", ObjectMeta: metav1.ObjectMeta{Namespace: "mail"}}
	w.Template.Annotations = map[string]string{kubeovnv1.AnnotationGroups.Key(): "strict"}
	c.Workloads = []Workload{w}

	check := func(what string, spec v1alpha1.OVNClusterSpec, want ...string) {
		t.Helper()
		var got []string
		for _, f := range membership(c, &spec) {
			got = append(got, fmt.Sprint(f.Level, " ", f.Subject, ": ", f.Message[:min(len(f.Message), 40)]))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%q, want\n%q", what, got, want)
		}
	}
	const (
		open   = "ok SecurityGroup open: it admits every namespace. List namespac"
		strict = "warning SecurityGroup strict: pods of namespaces bank, mail name it, a"
		own    = "warning Vip own: pods of namespaces bank name it, and it "
		eip    = "warning OvnEip eip: pods of namespaces bank name it, and it "
		none   = "warning Address 192.0.2.10: pods of namespaces shop request it outsi"
	)
	check("before the installation", v1alpha1.OVNClusterSpec{}, open, strict, own, "ok Vip unlisted: pods of namespaces bank name it: the ope",
		"ok Vip in-shops: pods of namespaces bank name it: the ope", eip, none)
	c.OVNCluster.Status.StrictSince = &metav1.Time{}
	check("after the installation", v1alpha1.OVNClusterSpec{}, open, strict, own, "warning Vip unlisted: pods of namespaces bank name it, and it ",
		"warning Vip in-shops: pods of namespaces bank name it, and it ", eip, none)
	check("with open membership", v1alpha1.OVNClusterSpec{Tenancy: v1alpha1.Tenancy{Membership: v1alpha1.MembershipOpen}},
		open, "ok SecurityGroup strict: it admits every namespace. List namespac", own, "ok Vip unlisted: it admits every namespace. List namespac",
		"ok Vip in-shops: it admits every namespace. List namespac", "ok OvnEip eip: it admits every namespace. List namespac", none)
}
