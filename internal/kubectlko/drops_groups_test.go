// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// adminPolicy defines AdminNetworkPolicies, and creates one from the text of its spec.
func (w *world) adminPolicy(name, spec string) *unstructured.Unstructured {
	w.Helper()
	const plural = "adminnetworkpolicies.policy.networking.k8s.io"
	definition := &unstructured.Unstructured{}
	must.Succeed(w, yaml.Unmarshal([]byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: `+plural+`
  annotations: {api-approved.kubernetes.io: unapproved}
spec:
  group: policy.networking.k8s.io
  scope: Cluster
  names: {plural: adminnetworkpolicies, kind: AdminNetworkPolicy, listKind: AdminNetworkPolicyList}
  versions:
  - {name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`), &definition.Object))
	if err := w.objects.Create(w.Context(), definition); client.IgnoreAlreadyExists(err) != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { must.Succeed(w, client.IgnoreNotFound(w.objects.Delete(context.Background(), definition))) })
	anp := &unstructured.Unstructured{}
	must.Succeed(w, yaml.Unmarshal(fmt.Appendf(nil, "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: %s}\nspec: %s\n", name, spec), &anp.Object))
	eventually.Wait{For: "AdminNetworkPolicies are served"}.Succeeds(w.T, func() error { return w.objects.Create(w.Context(), anp.DeepCopy()) })
	return anp
}

// until returns the annotation of an object.
func (w *world) until(o client.Object) string {
	w.Helper()
	must.Succeed(w, w.objects.Get(w.Context(), client.ObjectKeyFromObject(o), o))
	return o.GetAnnotations()[kubeovnv1.AnnotationLogDropsUntil.Key()]
}

// TestDropsOfGroupsAndRules has a security group, a cluster-wide policy and acls of a subnet, each with a rule that drops, and others that do not apply to the pod.
func TestDropsOfGroupsAndRules(t *testing.T) {
	w := newWorld(t)
	w.network("bank")
	pod := w.runPod("bank", "db", 6)
	pod.Annotations[kubeovnv1.AnnotationGroups.Key()] = "db, missing"
	must.Succeed(t, w.objects.Update(t.Context(), pod))
	group := func(name string) *kubeovnv1.SecurityGroup {
		sg := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SecurityGroupSpec{IngressRules: []kubeovnv1.SecurityGroupRule{{
			IPVersion: "ipv4", Protocol: "tcp", Priority: 1, RemoteType: kubeovnv1.RemoteAddress, RemoteAddress: "192.0.2.0/24", PortRangeMin: 1, PortRangeMax: 80, Policy: kubeovnv1.SecurityGroupDrop,
		}}}}
		w.make(sg)
		return sg
	}
	own, other := group("db"), group("other")
	const rules = "ingress: [{name: a, action: Deny, from: [{namespaces: {}}]}, {name: b, action: Allow, from: [{namespaces: {}}]}]}"
	selecting := w.adminPolicy("selecting", "{priority: 7, subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: bank}}}, "+rules)
	elsewhere := w.adminPolicy("elsewhere", "{priority: 8, subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}, "+rules)
	subnet := &kubeovnv1.Subnet{}
	must.Succeed(t, w.objects.Get(t.Context(), client.ObjectKey{Name: kubeovnv1.DefaultSubnet}, subnet))
	subnet.Spec.ACLs = []kubeovnv1.ACL{{Direction: "to-lport", Priority: 1100, Match: "tcp.dst == 22", Action: "drop"}, {Direction: "to-lport", Priority: 1000, Match: "ip4", Action: "allow"}}
	must.Succeed(t, w.objects.Update(t.Context(), subnet))
	subnet.Status.ValidatedSpec = subnet.Spec.DeepCopy()
	must.Succeed(t, w.objects.Status().Update(t.Context(), subnet))

	k := w.serveLogs()
	r := k.drops("drops", "pod", "bank/db")
	r.prints(r.notes, "until the end: SecurityGroup db, Subnet ovn-default, AdminNetworkPolicy selecting\n")
	for o, want := range map[client.Object]bool{own: true, other: false, selecting: true, elsewhere: false, subnet: true} {
		if got := w.until(o); (got != "") != want {
			t.Errorf("%T %s logs until %q", o, o.GetName(), got)
		}
	}
	for acl, want := range map[string]string{
		"sg/db/ingress/0": "SecurityGroup db, ingressRules[0]", "sg/db/ingress/default": "SecurityGroup db, ingress", "anp/selecting/ingress/0/ip4": "AdminNetworkPolicy selecting, ingress[0]",
		"acls/to-lport/1100/ovn-default": "Subnet ovn-default, acls with direction to-lport and priority 1100",
	} {
		k.lines <- dropLine(acl, "to-lport", "198.51.100.1", "10.16.0.6", 5432)
		r.prints(r.out, "198.51.100.1 → pod bank/db (10.16.0.6)  tcp 5432  dropped by "+want+"\n")
	}
	must.Succeed(t, r.interrupt())
	for _, o := range []client.Object{own, selecting, subnet} {
		if got := w.until(o); got != "" {
			t.Errorf("after the end, %s logs until %s", o.GetName(), got)
		}
	}

	w.allow("carol", rule("", "pods pods/log", "get list"))
	r = k.drops("--as=carol", "--as-group=system:authenticated", "drops", "pod", "bank/db")
	r.prints(r.notes, "SecurityGroups may log nothing: you may not get security-groups.kubeovn.io\n")
	r.prints(r.notes, "AdminNetworkPolicy may log nothing: you may not list adminnetworkpolicies.policy.networking.k8s.io\n")
	if err := r.interrupt(); err != nil {
		t.Errorf("%v: %s", err, r.notes)
	}
	if strings.Contains(r.notes.String()+r.out.String(), "selecting") {
		t.Errorf("names that the user may not read: %s", r.notes)
	}
}
