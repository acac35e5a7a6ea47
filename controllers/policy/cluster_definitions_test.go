// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/policy/beta"
)

// TestAKindWhoseDefinitionIsDeleted: after the deletion of a definition the ACLs of its policies are deleted and its informer is removed; a new
// definition is followed again. Rows of policies that were deleted while the controller was stopped are deleted, too.
func TestAKindWhoseDefinitionIsDeleted(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	w.pod("default", "web", "app=web")
	const spec = `
priority: 1
subject: {namespaces: {}}
egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]
`
	want := map[string]string{"egress/0/ip4": "drop inport == [web.default] && ip4 && ip4.dst == 192.0.2.0/24"}
	follows := func(p *controllertest.Process) bool {
		informer, err := p.Manager.GetCache().GetInformer(w.Context(), &v1alpha1.AdminNetworkPolicy{}, cache.BlockUntilSynced(false))
		return err == nil && informer.HasSynced()
	}
	create := func() {
		anp := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "admin"}}
		w.createServed(anp, spec, &anp.Spec)
		w.expectOf("AdminNetworkPolicy//admin", want)
	}
	for range 2 {
		definition := w.define("adminnetworkpolicies", "AdminNetworkPolicy", "v1alpha1")
		create()
		w.Delete(definition)
		w.expectOf("AdminNetworkPolicy//admin", map[string]string{})
		w.Eventually(func() string {
			if follows(process) {
				return "the kind is looked for"
			}
			return ""
		})
		w.Must(process.Manager.GetCache().RemoveInformer(w.Context(), &v1alpha1.AdminNetworkPolicy{}))
	}
	definition := w.define("adminnetworkpolicies", "AdminNetworkPolicy", "v1alpha1")
	create()
	w.define("clusternetworkpolicies", "ClusterNetworkPolicy", "v1alpha2")
	sharing := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "sharing"}} // it shares the port group of the subjects
	w.createServed(sharing, "tier: Admin\n"+spec, &sharing.Spec)
	w.expectOf("ClusterNetworkPolicy//sharing", want)
	process.Stop()
	w.Delete(definition)
	w.Gone(definition) // the next process gets no event for it
	w.start()
	w.expectOf("AdminNetworkPolicy//admin", map[string]string{})
	w.expectOf("ClusterNetworkPolicy//sharing", want)
}

// TestTheServedVersionIsFollowed: network-policy-api 0.3.0 stores v1beta1 and will end v1alpha2.
func TestTheServedVersionIsFollowed(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	w.pod("default", "web", "app=web")
	definition := w.define("clusternetworkpolicies", "ClusterNetworkPolicy", "v1alpha2")
	const spec = `
tier: Admin
priority: 1
subject: {namespaces: {}}
egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]
`
	cnp := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	w.createServed(cnp, spec, &cnp.Spec)
	want := map[string]string{"egress/0/ip4": "drop inport == [web.default] && ip4 && ip4.dst == 192.0.2.0/24"}
	w.expectOf("ClusterNetworkPolicy//cluster", want)

	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	w.Must(err)
	next := runtime.DeepCopyJSON(versions[0].(map[string]any))
	next["name"] = beta.Version
	versions[0].(map[string]any)["storage"], versions[0].(map[string]any)["served"] = false, false
	w.Change(definition, func() {
		w.Must(unstructured.SetNestedSlice(definition.Object, append(versions, next), "spec", "versions"))
	})
	later := &beta.ClusterNetworkPolicy{ClusterNetworkPolicy: v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "later"}}}
	w.createServed(later, spec, &later.Spec)
	w.expectOf("ClusterNetworkPolicy//later", want)
	w.expectOf("ClusterNetworkPolicy//cluster", want)
	w.condition(later, &later.Status.Conditions, "Ready", "True", "")
	process.Stop()
	w.start()
	w.expectOf("ClusterNetworkPolicy//cluster", want)
	w.Delete(later)
	w.expectOf("ClusterNetworkPolicy//later", map[string]string{})
}
