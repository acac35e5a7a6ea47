// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// rule is a rule of either kind.
type rule struct {
	client.Object

	kind   string
	spec   *kubeovnv1.LBRuleBackends
	status *kubeovnv1.LBRuleStatus
}

// ruleOf returns nil for objects of other kinds.
func ruleOf(o client.Object) *rule {
	switch o := o.(type) {
	case *kubeovnv1.SwitchLBRule:
		return &rule{Object: o, kind: translate.KindSwitchLBRule, spec: &o.Spec.LBRuleBackends, status: &o.Status.LBRuleStatus}
	case *kubeovnv1.RouterLBRule:
		return &rule{Object: o, kind: translate.KindRouterLBRule, spec: &o.Spec.LBRuleBackends, status: &o.Status.LBRuleStatus}
	}
	return nil
}

// newRule returns an empty rule of a kind.
func newRule(kind string) *rule {
	if kind == translate.KindRouterLBRule {
		return ruleOf(&kubeovnv1.RouterLBRule{})
	}
	return ruleOf(&kubeovnv1.SwitchLBRule{})
}

func (r *rule) owner() desired.Owner { return translate.LBRuleOwner(r.kind, r.GetName()) }

func (r *rule) reference() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: kubeovnv1.GroupVersion.String(), Kind: r.kind, Name: r.GetName(), UID: r.GetUID()}
}

// owns reports whether the rule is one of an object's owners.
func (r *rule) owns(o client.Object) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return ref.UID == r.GetUID() })
}

// wrong reports whether the rule's spec is invalid by itself, independent of other objects.
func (r *rule) wrong() bool {
	switch o := r.Object.(type) {
	case *kubeovnv1.RouterLBRule:
		return validation.RouterLBRule(&o.Spec) != nil
	case *kubeovnv1.SwitchLBRule:
		_, problem := validation.LBRuleVIPs(o.Spec.VIP)
		return problem != nil || validation.LBRuleBackends(r.spec) != nil
	}
	return false
}

func (r *rule) String() string { return r.kind + " " + r.GetName() }

// kinds of rules.
var kinds = []string{translate.KindSwitchLBRule, translate.KindRouterLBRule}

// kindOf returns the kind of rules to which a Service can belong according to its name, or "".
func kindOf(service string) string {
	for _, kind := range kinds {
		if strings.HasPrefix(service, translate.LBRulePrefix(kind)) {
			return kind
		}
	}
	return ""
}

// owners returns the names of the rules of these kinds that own an object.
func owners(o client.Object, kinds ...string) []string {
	var names []string
	for _, ref := range o.GetOwnerReferences() {
		if slices.Contains(kinds, ref.Kind) && ref.APIVersion == kubeovnv1.GroupVersion.String() {
			names = append(names, ref.Name)
		}
	}
	return names
}

// precedes reports whether rule a takes precedence over rule b in a conflict. A spec that is served has precedence over a changed or new one, so that a change
// takes no address from another rule; otherwise the older rule has it. Ties in creation time are decided by name and kind.
func precedes(a, b *rule) bool {
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	switch {
	case a.GetUID() == b.GetUID():
		return false
	case a.isLast() != b.isLast():
		return a.isLast()
	case !at.Equal(&bt):
		return at.Before(&bt)
	case a.GetName() != b.GetName():
		return a.GetName() < b.GetName()
	}
	return a.kind < b.kind
}
