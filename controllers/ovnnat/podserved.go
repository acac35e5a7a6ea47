// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// A pod that an EgressAddress selects leaves it by a request that is served. Requests are text of tenants: one for an OvnEip that another rule has, or whose external subnet the VPC
// does not reach, would otherwise give the pod another source than the EgressAddress.

// servable returns the OvnEip with the requested addresses, or why the pod at a port cannot have them. Without an EgressAddress, requests that wait have their rules.
func (r *podRules) servable(ctx context.Context, owner types.NamespacedName, pod *corev1.Pod, kind string, annotation kubeovnv1.Annotation) (*kubeovnv1.OvnEip, string, error) {
	eip, refused, err := r.granted(ctx, owner, requested(pod, annotation))
	if eip == nil || err != nil || r.selecting(pod).Eip == "" {
		return eip, refused, err
	}
	why, err := r.unserved(ctx, owner, kind, eip)
	if err != nil {
		return nil, "", err
	}
	if why != "" {
		r.asking.Add(owner, blockedKey(eip.Name))
		return nil, why + "; the pod keeps the addresses of its EgressAddress", nil
	}
	return eip, "", nil
}

// unserved returns why the rule of a request is not served, and will not be when the rule of the EgressAddress is deleted; "" if it is or will be.
func (r *podRules) unserved(ctx context.Context, owner types.NamespacedName, kind string, eip *kubeovnv1.OvnEip) (string, error) {
	if is, err := r.hasIP(ctx, owner); !is || err != nil {
		return "", err // neither rule is created yet
	}
	wanted := ruleOf(kind, owner, eip.Name)
	wanted.SetCreationTimestamp(metav1.Now())
	rules, err := r.rules(ctx, kind, owner)
	if err != nil {
		return "", err
	}
	var existing client.Object
	for _, rule := range rules {
		if rule.GetName() == wanted.GetName() && rule.GetDeletionTimestamp() == nil && sameTranslation(rule, wanted) {
			wanted, existing = rule, rule
		}
	}
	if why, err := r.holder(ctx, owner, eip.Name, existing); why != "" || err != nil {
		return why, err
	}
	if existing == nil {
		if why, err := r.foreign(ctx, kind, wanted); why != "" || err != nil {
			return why, err
		}
	}
	c := &controller{Reconciler: r.Reconciler, kind: kind}
	rule := lookup.NATRuleOf(wanted)
	s, _, at := c.judge(ctx, rule, rule.Specs[0], owner.String())
	if s.inside.Vpc != "" {
		r.asking.Add(owner, "vpc/"+s.inside.Vpc)
	}
	switch {
	case s.err != nil:
		return "", s.err
	case s.problem != nil:
		return s.problem.Message, nil
	case s.missing != "":
		return "waiting for " + s.missing, nil
	case *rule.Status.Ready:
		return "", nil
	}
	added := translationsIn(translate.OvnNAT(translate.OvnNATInputs{
		Kind: kind, Name: wanted.GetName(), Vpc: s.inside.Vpc, Subnet: at.subnet, Eip: eip.Name, Pairs: pairs(at.allocation.Addresses, s.inside.Internal, at.port),
	}))
	if len(added) == 0 {
		return fmt.Sprintf("OvnEip %s has no address of a family of the pod", eip.Name), nil
	}
	releasing := map[string]kubeovnv1.OvnEipRelease{}
	for id, release := range eip.Status.Releasing {
		if !slices.Contains([]string{translate.KindOvnFip + " " + wanted.GetName(), translate.KindOvnSnatRule + " " + wanted.GetName()}, release.Rule) {
			releasing[id] = release
		}
	}
	if why := pending(releasing, rule, false, added); why != "" {
		return "waiting for " + why, nil
	}
	return "", nil
}

// hasIP reports whether the port of an owner has its IP.
func (r *podRules) hasIP(ctx context.Context, owner types.NamespacedName) (bool, error) {
	name := portOf(owner).Name
	ip, err := k8s.Find[kubeovnv1.IP](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("get IP %s: %w", name, err)
	}
	return ip != nil && ip.Spec.Namespace == owner.Namespace && ip.Spec.PodName == owner.Name, nil
}

// foreign returns why a rule cannot be created: a rule that is not of the same owner has its name; "" if none has.
func (r *podRules) foreign(ctx context.Context, kind string, rule client.Object) (string, error) {
	other := lookup.EmptyNATRule(kind)
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(rule), other, client.UnsafeDisableDeepCopy)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return "", fmt.Errorf("get %s %s: %w", kind, rule.GetName(), err)
	case err != nil || other.GetAnnotations()[kubeovnv1.PodOfRule] == rule.GetAnnotations()[kubeovnv1.PodOfRule]:
		return "", nil
	case rule.GetAnnotations()[kubeovnv1.EgressOfRule] != "":
		return fmt.Sprintf("%s %s exists already, and does not follow the pod: delete it", kind, rule.GetName()), nil
	}
	return fmt.Sprintf("%s %s exists already, and does not follow the annotation: delete it, or remove the annotation", kind, rule.GetName()), nil
}

// blockedKey is the key in asking of the owners whose requests for an OvnEip are not served.
func blockedKey(eip string) string { return "blocked/" + eip }

// blocked returns the owners whose requests are not served, and may be after a change of a rule.
func (r *podRules) blocked(_ context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, eip := range lookup.NATRuleOf(o).Eips() {
		requests = append(requests, r.by(blockedKey(eip))...)
	}
	return requests
}

// released passes the ends of rules, and changes of their specs.
var released = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: predicate.GenerationChangedPredicate{}.Update,
}

// blockedAt returns the owners whose requests for an OvnEip are not served.
func (r *podRules) blockedAt(_ context.Context, o client.Object) []reconcile.Request {
	return r.by(blockedKey(o.GetName()))
}

// blockedIn returns the owners with requests in a VPC.
func (r *podRules) blockedIn(_ context.Context, o client.Object) []reconcile.Request {
	return r.by("vpc/" + o.GetName())
}

func viewBlocking(eip *kubeovnv1.OvnEip) string { return viewEip(eip) + " " + viewReleasing(eip) }
