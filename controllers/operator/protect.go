// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

// Reasons of v1alpha1.ConditionProtected.
const (
	reasonInForce   = "PoliciesApplied"
	reasonUnserved  = "PoliciesNotServed"
	reasonForbidden = "PoliciesForbidden"
	reasonRefused   = "PoliciesRefused"
)

// policyRetry is when the operator tries again to apply policies that it may not apply. No watch reports a changed right.
const policyRetry = 10 * time.Minute

// unprotected ends a message with the risk while the policies are missing.
const unprotected = "; until then users with the right to change pods can change the results of kube-ovn-controller on them, and a stolen token of a component " +
	"can change pods and nodes that are not its own (docs/operations/security.md)"

// protection reports whether the admission policies are applied. Without a reason this is not known yet.
type protection struct {
	applied         bool
	reason, message string
}

// policyKinds are the kinds of the admission policies. They are watched from the first pass that may read them, and not from the start:
// an informer of a kind that is not served would keep the operator from starting.
func policyKinds() []client.Object {
	return []client.Object{&admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}}
}

// protect applies the admission policies. It runs after the phase of roles, one of which permits to kube-ovn-controller a write that a
// policy denies to other accounts. The installation continues if policies cannot be applied; the condition Protected reports the reason.
func (r *Reconciler) protect(ctx context.Context, p *pass) error {
	err := r.watchPolicies(ctx)
	if err == nil {
		err = r.applyPolicies(ctx, p)
	}
	switch {
	case err == nil:
		p.protection = protection{true, reasonInForce, "admission policies deny what RBAC cannot: they are listed in docs/operations/security.md"}
		return nil
	case meta.IsNoMatchError(err):
		p.protection = protection{reason: reasonUnserved, message: "the API server does not serve ValidatingAdmissionPolicy of " +
			"admissionregistration.k8s.io/v1: use Kubernetes 1.31 or newer" + unprotected}
	case apierrors.IsForbidden(err):
		p.protection = protection{reason: reasonForbidden, message: "apply the manifests in config/rbac: " + err.Error() + unprotected}
	case apierrors.IsInvalid(err):
		p.protection = protection{reason: reasonRefused, message: "use Kubernetes 1.31 or newer: " + err.Error() + unprotected}
	default:
		return err
	}
	p.wakeAt(p.now.Add(policyRetry))
	return nil
}

// applyPolicies applies each policy by itself: a failure does not keep the others from being applied. Of several failures it returns one
// that a retry may solve. A policy that only warns protects nothing: a lasting failure of it is logged. Kubernetes 1.30 does not know its functions.
func (r *Reconciler) applyPolicies(ctx context.Context, p *pass) error {
	var lasting, passing error
	for _, o := range render.Policies(p.config) {
		switch err := r.apply(ctx, p, []render.Object{o}); {
		case err != nil && render.Informs(o) && (meta.IsNoMatchError(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)):
			ctrl.LoggerFrom(ctx).Info("cannot apply a policy that informs users", "policy", o.GetName(), "error", err.Error())
		case meta.IsNoMatchError(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
			lasting = cmp.Or(lasting, err)
		case err != nil:
			passing = cmp.Or(passing, err)
		}
	}
	return cmp.Or(passing, lasting)
}

// watchPolicies starts the watches of policies, once they are served and the operator may read them.
func (r *Reconciler) watchPolicies(ctx context.Context) error {
	if r.policiesWatched {
		return nil
	}
	for _, kind := range policyKinds() {
		gvk, err := apiutil.GVKForObject(kind, r.Scheme())
		if err != nil {
			return fmt.Errorf("find the kind of %T: %w", kind, err)
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err := r.APIReader.List(ctx, list, client.Limit(1)); err != nil {
			return fmt.Errorf("list %s: %w", gvk.Kind, err)
		}
	}
	for _, kind := range policyKinds() {
		if err := r.controller.Watch(source.Kind(r.cache, kind, theCluster)); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	r.policiesWatched = true
	return nil
}

// otherVersions reports whether a pod that writes annotations or labels of pods runs another image than the operator's, or will run one.
// Earlier versions patch `pods`, this version patches `pods/status`.
func (r *Reconciler) otherVersions(p *pass) bool {
	if p.config.Image != r.Image {
		return true
	}
	for _, component := range render.Select(func(o render.Operand) bool { return o.LabelsPods }) {
		for _, pod := range p.podsOf(component) {
			if pod.Spec.Containers[0].Image != r.Image {
				return true
			}
		}
	}
	return false
}
