// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// last returns the rule with its last valid spec; nil if there is none, or if it is the current one.
func (r *rule) last() *rule {
	if r.isLast() {
		return nil
	}
	switch o := r.Object.(type) {
	case *kubeovnv1.SwitchLBRule:
		if spec := o.Status.ValidatedSpec; spec != nil {
			last := *o
			last.Spec = *spec
			return ruleOf(&last)
		}
	case *kubeovnv1.RouterLBRule:
		if spec := o.Status.ValidatedSpec; spec != nil {
			last := *o
			last.Spec = *spec
			return ruleOf(&last)
		}
	}
	return nil
}

// isLast reports whether the spec is the last valid one.
func (r *rule) isLast() bool {
	switch o := r.Object.(type) {
	case *kubeovnv1.SwitchLBRule:
		return equality.Semantic.DeepEqual(o.Status.ValidatedSpec, &o.Spec)
	case *kubeovnv1.RouterLBRule:
		return equality.Semantic.DeepEqual(o.Status.ValidatedSpec, &o.Spec)
	}
	return false
}

// recordValid records the current spec as the last valid one.
func (r *rule) recordValid() {
	switch o := r.Object.(type) {
	case *kubeovnv1.SwitchLBRule:
		o.Status.ValidatedSpec = o.Spec.DeepCopy()
	case *kubeovnv1.RouterLBRule:
		o.Status.ValidatedSpec = o.Spec.DeepCopy()
	}
}

// changesPods reports whether the spec selects its pods in another way than the last valid one, whose Service and EndpointSlices exist.
func (r *rule) changesPods() bool {
	last := r.last()
	return last != nil && len(r.spec.Selector) > 0 && len(r.spec.Endpoints) == 0 && (serviceKey(r) != serviceKey(last) || !slices.Equal(r.spec.Selector, last.spec.Selector))
}

// vpcOfChanged returns the VPC of the pods that a spec selects in another way than the last valid one; "" for other specs, and without pods. The
// EndpointSlices of the Service cannot answer this: the Service stays as it is until the spec is found valid.
func (r *controller) vpcOfChanged(ctx context.Context, rule *rule) (string, error) {
	if !rule.changesPods() {
		return "", nil
	}
	return lookup.VpcOfSelected(ctx, r.Client, serviceKey(rule).Namespace, validation.LBRuleSelector(rule.spec))
}

// claims returns the rule with each spec by which it has addresses: its current one unless it is invalid by itself, and its last valid one, which may be
// served instead.
func (r *rule) claims() []*rule {
	var claims []*rule
	if !r.wrong() {
		claims = append(claims, r)
	}
	if last := r.last(); last != nil {
		claims = append(claims, last)
	}
	return claims
}

// specView is the part of a rule that other rules at its addresses depend on, besides its annotations.
type specView struct {
	generation int64
	// last: the current spec is not the last valid one.
	last bool
}

func viewSpec(o client.Object) specView {
	r := ruleOf(o)
	return specView{o.GetGeneration(), r != nil && r.last() != nil}
}

// retain serves the last valid spec of a rule whose current spec has a problem, or waits. s is the outcome for the current spec.
func (r *controller) retain(ctx context.Context, last *rule, s *state) *state {
	kept := &state{vips: map[string]*kubeovnv1.Vip{}, keys: s.keys}
	kept.err = r.serve(ctx, last, kept)
	kept.retained, kept.valid = kept.served, false
	kept.problem, kept.waiting = s.problem, s.waiting
	return kept
}

// refuse withdraws a rule whose addresses are missing or belong to another owner. If the selected pods are in another VPC, the Service of a RouterLBRule
// stays, by which they are found, but nodes do not serve its addresses.
func (r *controller) refuse(ctx context.Context, rule *rule, s *state) error {
	err := errors.Join(r.withdraw(ctx, rule.GetName()), r.releaseVips(ctx, rule, s.vips))
	if rule.kind == translate.KindRouterLBRule && !s.hidden {
		err = errors.Join(err, r.deleteServices(ctx, rule, client.ObjectKey{}))
	}
	return err
}

// try finds the problems of a changed spec without a change of the Service and the Vips, with which the last valid spec stays served.
func (r *controller) try(ctx context.Context, rule *rule, s *state) error {
	if rule.last() == nil {
		return nil
	}
	if err := r.needNamespace(ctx, rule, s); err != nil {
		return err
	}
	if s.refused = len(s.waiting) > 0; s.refused {
		return nil
	}
	tried := &state{trial: true, in: s.in, vips: map[string]*kubeovnv1.Vip{}, keys: s.keys}
	var service *corev1.Service
	if len(rule.spec.Endpoints) == 0 {
		existing, err := r.servicesOf(ctx, rule)
		if err != nil {
			return err
		}
		if len(existing) > 0 {
			service = existing[0]
		}
	}
	if err := r.resolve(ctx, rule, service, tried); err != nil || tried.problem != nil {
		s.problem = tried.problem
		return err
	}
	err := r.checkAddresses(ctx, rule, tried)
	s.problem, s.refused, s.formerVpc = tried.problem, tried.refused, tried.in.Vpc
	return err
}

// needNamespace lets a changed spec wait if its Service could not be created: the Service of the last valid spec must stay.
func (r *controller) needNamespace(ctx context.Context, rule *rule, s *state) error {
	if rule.last() == nil || len(rule.spec.Endpoints) > 0 && !s.outside {
		return nil
	}
	name := serviceKey(rule).Namespace
	r.watch(rule, s, "namespace/"+name)
	namespace, err := k8s.Find[corev1.Namespace](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("get namespace %s: %w", name, err)
	}
	if namespace == nil || namespace.DeletionTimestamp != nil {
		s.waiting = append(s.waiting, withoutNamespace(name))
	}
	return nil
}
