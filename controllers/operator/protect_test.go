// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/workload"
)

const operatorRole = "kiln-operator"

// policyRights returns the operator's rules for admission policies.
func (s *scenario) policyRights(t *testing.T) (rules []rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{}
	g := newG(t)
	g.Expect(s.admin.Get(t.Context(), client.ObjectKey{Name: operatorRole}, role)).To(Succeed())
	for _, r := range role.Rules {
		if r.APIGroups[0] == admissionv1.GroupName {
			rules = append(rules, r)
		}
	}
	g.Expect(rules).To(HaveLen(2))
	t.Cleanup(func() { g.Expect(s.setPolicyRights(context.Background(), rules)).To(Succeed()) })
	return rules
}

// setPolicyRights replaces the operator's rules for admission policies.
func (s *scenario) setPolicyRights(ctx context.Context, rules []rbacv1.PolicyRule) error {
	role := &rbacv1.ClusterRole{}
	if err := s.admin.Get(ctx, client.ObjectKey{Name: operatorRole}, role); err != nil {
		return err
	}
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return r.APIGroups[0] == admissionv1.GroupName })
	role.Rules = append(role.Rules, rules...)
	return s.admin.Update(ctx, role)
}

// TestPoliciesNeedRights starts an operator without rights to admission policies, and grants them later.
func TestPoliciesNeedRights(t *testing.T) {
	s := newScenario(t)
	rights := s.policyRights(t)
	g := newG(t)
	g.Expect(s.stopOperator()).To(Succeed())
	g.Expect(s.setPolicyRights(t.Context(), nil)).To(Succeed())
	g.Eventually(func() bool {
		return s.allowed(t, operatorRole, "list validatingadmissionpolicies.admissionregistration.k8s.io")
	}).Should(BeFalse())
	s.operator(t)
	s.install(t)
	g.Expect(s.condition(t, "Protected")()).To(SatisfyAll(
		HavePrefix("False PoliciesForbidden: apply the manifests in config/rbac: list ValidatingAdmissionPolicy: "), ContainSubstring("stolen token")))
	g.Expect(s.condition(t, "Degraded")()).To(HavePrefix("False"))
	g.Eventually(func() []string { return s.events(t) }).Should(ContainElement("Warning PoliciesForbidden"))
	var policies admissionv1.ValidatingAdmissionPolicyList
	ours := client.MatchingLabels{render.ManagedByLabel: render.ManagedBy}
	g.Expect(s.admin.List(t.Context(), &policies, ours)).To(Succeed())
	g.Expect(policies.Items).To(BeEmpty())

	g.Expect(s.setPolicyRights(t.Context(), rights)).To(Succeed())
	pokes := 0
	g.Eventually(func() string { // the operator would retry by itself after policyRetry
		pod := &corev1.Pod{ObjectMeta: s.pods["nb"].ObjectMeta}
		base := pod.DeepCopy()
		pokes++
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "poke", fmt.Sprint(pokes))
		g.Expect(s.admin.Patch(t.Context(), pod, client.MergeFrom(base))).To(Succeed())
		return s.condition(t, "Protected")()
	}).Should(HavePrefix("True PoliciesApplied"))
	g.Expect(s.admin.List(t.Context(), &policies, ours)).To(Succeed())
	g.Expect(policies.Items).To(HaveLen(len(render.Policies(render.Config{})) / 2))
	for i := range policies.Items {
		g.Expect(metav1.IsControlledBy(&policies.Items[i], s.cluster(t))).To(BeTrue(), "policy %s is owned by the OVNCluster", policies.Items[i].Name)
	}
}

func TestPoliciesAreRestored(t *testing.T) {
	s := installed(t)
	g := newG(t)
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	key := client.ObjectKey{Name: "kiln-pod-networks"}
	g.Expect(s.admin.Get(t.Context(), key, policy)).To(Succeed())
	g.Expect(s.admin.Delete(t.Context(), policy)).To(Succeed())
	g.Eventually(func() error { return s.admin.Get(t.Context(), key, policy) }).Should(Succeed())

	policy.Spec.FailurePolicy, policy.Spec.Validations[0].Expression = new(admissionv1.Ignore), "true"
	g.Expect(s.admin.Update(t.Context(), policy)).To(Succeed())
	g.Eventually(func() bool {
		g.Expect(s.admin.Get(t.Context(), key, policy)).To(Succeed())
		return *policy.Spec.FailurePolicy == admissionv1.Fail && policy.Spec.Validations[0].Expression != "true"
	}).Should(BeTrue())

	g.Expect(s.admin.Get(t.Context(), key, binding)).To(Succeed())
	binding.Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Audit}
	binding.Labels = nil
	g.Expect(s.admin.Update(t.Context(), binding)).To(Succeed())
	g.Eventually(func() []admissionv1.ValidationAction {
		g.Expect(s.admin.Get(t.Context(), key, binding)).To(Succeed())
		return binding.Spec.ValidationActions
	}).Should(ContainElement(admissionv1.Deny))
}

func TestAForbiddenPolicyKeepsTheOthers(t *testing.T) {
	s := installed(t)
	g := newG(t)
	const name = "kiln-controller-pods" // the third of eight
	rights := s.policyRights(t)
	limited := make([]rbacv1.PolicyRule, len(rights))
	for i := range rights {
		limited[i] = *rights[i].DeepCopy()
		limited[i].ResourceNames = slices.DeleteFunc(limited[i].ResourceNames, func(n string) bool { return n == name })
	}
	g.Expect(s.setPolicyRights(t.Context(), limited)).To(Succeed())
	g.Eventually(func() string { // rights and objects reach the API server's caches at different times
		policy := &admissionv1.ValidatingAdmissionPolicy{}
		g.Expect(s.admin.Get(t.Context(), client.ObjectKey{Name: name}, policy)).To(Succeed())
		base := policy.DeepCopy()
		policy.Spec.FailurePolicy = new(admissionv1.Ignore)
		g.Expect(s.admin.Patch(t.Context(), policy, client.MergeFrom(base))).To(Succeed())
		return s.condition(t, "Protected")()
	}).Should(HavePrefix("False PoliciesForbidden"))
	all := len(render.Policies(render.Config{})) / 2
	var policies admissionv1.ValidatingAdmissionPolicyList
	g.Expect(s.admin.List(t.Context(), &policies, client.MatchingLabels{render.ManagedByLabel: render.ManagedBy})).To(Succeed())
	g.Expect(policies.Items).To(HaveLen(all))

	g.Expect(s.setPolicyRights(t.Context(), rights)).To(Succeed())
	g.Eventually(func() string {
		policy := &admissionv1.ValidatingAdmissionPolicy{}
		g.Expect(s.admin.Get(t.Context(), client.ObjectKey{Name: name}, policy)).To(Succeed())
		base := policy.DeepCopy()
		metav1.SetMetaDataAnnotation(&policy.ObjectMeta, "poke", fmt.Sprint(time.Now().UnixNano()))
		g.Expect(s.admin.Patch(t.Context(), policy, client.MergeFrom(base))).To(Succeed())
		return s.condition(t, "Protected")()
	}).Should(HavePrefix("True PoliciesApplied"))
}

func TestMissingPoliciesStopNoInstallation(t *testing.T) {
	resource := schema.GroupResource{Group: admissionv1.GroupName, Resource: "validatingadmissionpolicies"}
	admin, err := client.NewWithWatch(theWorld.config, client.Options{Scheme: theWorld.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	kind := schema.GroupKind{Group: admissionv1.GroupName, Kind: "ValidatingAdmissionPolicy"}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"not served", &meta.NoKindMatchError{GroupKind: kind}, "PoliciesNotServed: the API server does not serve ValidatingAdmissionPolicy"},
		{"forbidden", apierrors.NewForbidden(resource, "", errors.New("no right")), "PoliciesForbidden: apply the manifests in config/rbac"},
		{"refused", apierrors.NewInvalid(kind, "kiln-pod-networks", nil), "PoliciesRefused: use Kubernetes 1.31 or newer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			without := interceptor.NewClient(admin, interceptor.Funcs{
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return c.err },
			})
			r, p := &Reconciler{kinds: &optionalKinds{Client: without, APIReader: without}}, seeing(theWorld.now())
			if err := r.protect(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if got := p.Protection.Reason + ": " + p.Protection.Message; p.Protection.Applied || !strings.HasPrefix(got, c.want) {
				t.Errorf("got %v %q", p.Protection.Applied, got)
			}
			if !p.Wake().Equal(p.Now.Add(policyRetry)) {
				t.Errorf("tries again at %v", p.Wake())
			}
		})
	}
}

// The API server of an older Kubernetes refuses a policy with functions that it does not know. A policy that only informs protects nothing.
func TestPoliciesThatOnlyInformProtectNothing(t *testing.T) {
	admin, err := client.NewWithWatch(theWorld.config, client.Options{Scheme: theWorld.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	kind := schema.GroupKind{Group: admissionv1.GroupName, Kind: "ValidatingAdmissionPolicy"}
	for prefix, want := range map[string]bool{"kiln-advice": true, "kiln-pod-requests": true, "kiln-pod-networks": false} {
		refused := 0
		c := interceptor.NewClient(admin, interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
				return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
			},
			Apply: func(_ context.Context, _ client.WithWatch, o runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
				if text, err := json.Marshal(o); err != nil || strings.Contains(string(text), `"name":"`+prefix) {
					refused++
					return apierrors.NewInvalid(kind, prefix, nil)
				}
				return nil
			},
		})
		applier := &workload.Applier{Client: c, APIReader: c, Cache: c, FieldOwner: fieldOwner}
		err := applyPolicies(t.Context(), render.Config{}, applier.For(&v1alpha1.OVNCluster{}, v1alpha1.GroupVersion.WithKind("OVNCluster")))
		if (err == nil) != want || refused == 0 {
			t.Errorf("%s is refused %d times: %v", prefix, refused, err)
		}
	}
}
