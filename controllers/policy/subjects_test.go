// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

// TestSubjectsThatCannotBeReadAreDenied: the API server does not check label selectors of custom kinds, and a policy without subjects closes
// nothing.
func TestSubjectsThatCannotBeReadAreDenied(t *testing.T) {
	w := newWorld(t)
	for _, o := range render.Policies(render.Config{Namespace: "kube-system"}) {
		if object := o.(client.Object); object.GetName() == render.PolicySubjectsName {
			w.Create(object)
			w.Cleanup(func() { _ = w.Client.Delete(context.Background(), object) })
		}
	}
	w.define("adminnetworkpolicies", "AdminNetworkPolicy", "v1alpha1")
	policy := func(selector metav1.LabelSelector) *v1alpha1.AdminNetworkPolicy {
		return &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.AdminNetworkPolicySpec{
			Subject: v1alpha1.AdminNetworkPolicySubject{Pods: &v1alpha1.NamespacedPod{PodSelector: selector}},
		}}
	}
	term := func(operator metav1.LabelSelectorOperator, values ...string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "example.com/app", Operator: operator, Values: values}}}
	}
	denied := func(selector metav1.LabelSelector) bool {
		err := w.Client.Create(w.Context(), policy(selector), client.DryRunAll)
		if err != nil && !strings.Contains(err.Error(), "label selector of the subject cannot be read") {
			t.Error(err)
		}
		return err != nil
	}
	w.Eventually(func() string { // the API server loads the definition and the policy by watches
		if err := w.Client.Create(w.Context(), policy(term("Inn", "a")), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "label selector") {
			return fmt.Sprintf("an unknown operator is answered with: %v", err)
		}
		return ""
	})
	for name, tt := range map[string]struct {
		selector metav1.LabelSelector
		denied   bool
	}{
		"all pods":                   {metav1.LabelSelector{}, false},
		"labels":                     {metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "web_1", "empty": ""}}, false},
		"In with values":             {term("In", "a", "b"), false},
		"NotIn with values":          {term("NotIn", "a"), false},
		"Exists":                     {term("Exists"), false},
		"DoesNotExist":               {term("DoesNotExist"), false},
		"In without values":          {term("In"), true},
		"Exists with values":         {term("Exists", "a"), true},
		"a value that is no label":   {term("In", "a b"), true},
		"a label that is none":       {metav1.LabelSelector{MatchLabels: map[string]string{"app": "-"}}, true},
		"a key that is none":         {metav1.LabelSelector{MatchLabels: map[string]string{"a/b/c": "d"}}, true},
		"a value that is too long":   {metav1.LabelSelector{MatchLabels: map[string]string{"app": strings.Repeat("a", 64)}}, true},
		"a value of greatest length": {metav1.LabelSelector{MatchLabels: map[string]string{"app": strings.Repeat("a", 63)}}, false},
	} {
		if got := denied(tt.selector); got != tt.denied {
			t.Errorf("%s: denied is %t, want %t", name, got, tt.denied)
		}
	}
}
