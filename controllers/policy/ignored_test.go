// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// TestPoliciesAreIgnoredAndEnforcedAgain restarts the controller with the other setting, as the operator does: rows of policies leave the
// database and return, and security groups stay.
func TestPoliciesAreIgnoredAndEnforcedAgain(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	w.pod("default", "web", "app=web")
	w.group("guard", "ingressRules: [{ipVersion: ipv4, policy: allow, priority: 1, protocol: tcp, portRangeMin: 80, portRangeMax: 80, remoteType: address, remoteAddress: 0.0.0.0/0}]")
	w.grouped("guarded", "guard")
	w.define("adminnetworkpolicies", "AdminNetworkPolicy", "v1alpha1")
	np := w.policyOf("default", "web", "podSelector: {matchLabels: {app: web}}")
	anp := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "admin"}}
	w.createServed(anp, `
priority: 7
subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}
ingress: [{action: Deny, from: [{namespaces: {}}]}]
`, &anp.Spec)
	const admin, group = "AdminNetworkPolicy//admin", "SecurityGroup//guard"
	isolated := map[string]string{"ingress/default": "drop outport == [web.default] && ip"}
	applied := func() (byAdmin, byGroup map[string]string) {
		t.Helper()
		w.expect(np, isolated)
		w.condition(anp, &anp.Status.Conditions, kubeovnv1.ConditionReady, "True", "")
		if byAdmin, byGroup = w.acls(admin), w.acls(group); len(byAdmin) == 0 || len(byGroup) == 0 {
			t.Fatalf("ACLs of the AdminNetworkPolicy %v, of the SecurityGroup %v", byAdmin, byGroup)
		}
		return byAdmin, byGroup
	}
	byAdmin, byGroup := applied()

	process.Stop()
	process = w.startWith(true, nil)
	w.expect(np, map[string]string{})
	w.Event(np, eventsv1.Event{Type: corev1.EventTypeNormal, Reason: "PolicyIgnored", Note: "another component has to enforce this policy"})
	w.condition(anp, &anp.Status.Conditions, kubeovnv1.ConditionReady, "False", "")
	w.expectOf(admin, map[string]string{})
	w.expectOf(group, byGroup)
	late := w.policyOf("default", "late", "podSelector: {}")
	w.Event(late, eventsv1.Event{Reason: "PolicyIgnored", Note: "Ignored"})
	w.Eventually(func() string {
		for name, content := range w.contents() {
			if content == "[web.default]" {
				return fmt.Sprintf("port group %s is left", name)
			}
		}
		return ""
	})

	process.Stop()
	w.start()
	w.expectOf("NetworkPolicy/default/late", map[string]string{"ingress/default": "drop outport == [guarded.default web.default] && ip"})
	w.expectOf(admin, byAdmin)
	applied()
}
