// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// kindAddress is the kind in membership of an address that pods request by the annotations eip and snat.
const kindAddress = "Address"

// membership lists the namespaces whose pods name a security group, a Vip or an address of an OvnEip that does not list them: they have no access, or would lose it when the
// object no longer admits every namespace.
func membership(c *Cluster, spec *v1alpha1.OVNClusterSpec) []Finding {
	users := map[string]map[string]bool{} // namespaces, by kind and name of the object
	note := func(kind, name, namespace string) {
		key := kind + " " + name
		if users[key] == nil {
			users[key] = map[string]bool{}
		}
		users[key][namespace] = true
	}
	read := func(m *metav1.ObjectMeta, namespace string) {
		for _, name := range kubeovnv1.ParseSecurityGroups(m.Annotations) {
			note("SecurityGroup", name, namespace)
		}
		for _, name := range append(kubeovnv1.ParseAAPs(m.Annotations), m.Annotations[kubeovnv1.AnnotationVip.Key()]) {
			note("Vip", name, namespace)
		}
		for _, annotation := range []kubeovnv1.Annotation{kubeovnv1.AnnotationEip, kubeovnv1.AnnotationSnat} {
			for _, a := range kubeovnv1.ParseExternal(m.Annotations, annotation) {
				note(kindAddress, a.String(), namespace)
			}
		}
	}
	for i := range c.Pods {
		read(&c.Pods[i].ObjectMeta, c.Pods[i].Namespace)
	}
	for i := range c.Workloads {
		read(&c.Workloads[i].Template.ObjectMeta, c.Workloads[i].Namespace)
	}
	open := spec.Tenancy.Membership == v1alpha1.MembershipOpen
	keeps := c.OVNCluster == nil || c.OVNCluster.Status.StrictSince == nil
	var found []Finding
	for _, kind := range []string{"SecurityGroup", "Vip"} {
		for i := range c.Objects[kind] {
			object := &c.Objects[kind][i]
			subject := kind + " " + object.GetName()
			if kind == "Vip" {
				delete(users[subject], ofSubnet(c, object))
			}
			if f := judgeMembership(object, slices.Sorted(maps.Keys(users[subject])), open, keeps); f != nil {
				f.Subject = subject
				found = append(found, *f)
			}
		}
	}
	return append(found, membershipOfEips(c, users, open)...)
}

// membershipOfEips lists the namespaces whose pods request an address that no OvnEip has, or whose OvnEip does not list them. users are those of membership.
func membershipOfEips(c *Cluster, users map[string]map[string]bool, open bool) []Finding {
	var found []Finding
	for i := range c.Objects["OvnEip"] {
		var eip kubeovnv1.OvnEip
		object := &c.Objects["OvnEip"][i]
		if runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &eip) != nil {
			continue
		}
		of := map[string]bool{}
		for _, a := range ipfamily.ValidAddrs(eip.Spec.V4IP, eip.Spec.V6IP, eip.Status.V4IP, eip.Status.V6IP) {
			maps.Copy(of, users[kindAddress+" "+a.String()])
			delete(users, kindAddress+" "+a.String())
		}
		if f := judgeMembership(object, slices.Sorted(maps.Keys(of)), open, false); f != nil {
			f.Subject = "OvnEip " + eip.Name
			found = append(found, *f)
		}
	}
	for _, subject := range slices.Sorted(maps.Keys(users)) {
		if strings.HasPrefix(subject, kindAddress+" ") {
			found = append(found, Finding{Warning, subject, fmt.Sprintf("pods of namespaces %s request it outside, and no OvnEip has it: create one with these namespaces in allowedNamespaces",
				k8s.Some(slices.Sorted(maps.Keys(users[subject])), someNames))})
		}
	}
	return found
}

// judgeMembership returns the finding for an object whose users are pods of these namespaces; nil if it lists all of them. keeps: the operator still writes the
// permissions of Kube-OVN into objects.
func judgeMembership(object *unstructured.Unstructured, users []string, open, keeps bool) *Finding {
	listed, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "allowedNamespaces")
	own, _, _ := unstructured.NestedString(object.Object, "spec", "namespace")
	_, served := object.Object["status"]
	all := slices.Contains(listed, string(kubeovnv1.AllNamespaces))
	users = slices.DeleteFunc(users, func(namespace string) bool { return namespace == own || slices.Contains(listed, namespace) })
	names := k8s.Some(users, someNames)
	switch {
	case len(users) == 0:
		return nil
	case all || open && own == "":
		return &Finding{OK, "", fmt.Sprintf("it admits every namespace. List namespaces %s in allowedNamespaces before you make it strict: new pods there would lose it", names)}
	case keeps && served && own == "" && len(listed) == 0:
		return &Finding{OK, "", fmt.Sprintf("pods of namespaces %s name it: the operator adds allowedNamespaces [*], so that they keep it", names)}
	}
	return &Finding{Warning, "", fmt.Sprintf("pods of namespaces %s name it, and it does not list these: new pods there do not get it. Add them to allowedNamespaces, or remove the annotation of the pods", names)}
}

// ofSubnet returns the namespace that may use a Vip because the Vip lists none and its subnet lists only this one.
func ofSubnet(c *Cluster, object *unstructured.Unstructured) string {
	var vip kubeovnv1.Vip
	if runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &vip) != nil || vip.Spec.Namespace != "" || len(vip.Spec.AllowedNamespaces) > 0 {
		return ""
	}
	name := cmp.Or(vip.Spec.Subnet, kubeovnv1.DefaultSubnet)
	subnets := c.Objects["Subnet"]
	i := slices.IndexFunc(subnets, func(o unstructured.Unstructured) bool { return o.GetName() == name })
	var subnet kubeovnv1.Subnet
	if i < 0 || runtime.DefaultUnstructuredConverter.FromUnstructured(subnets[i].Object, &subnet) != nil {
		return ""
	}
	return subnet.Spec.SoleNamespace()
}
