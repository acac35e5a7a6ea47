// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/workload"
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

// policyKinds are the kinds of the admission policies. They are watched from the first pass that may read them.
func policyKinds() []client.Object {
	return []client.Object{&admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}}
}

// protect applies the admission policies. It runs after the phase of roles, one of which permits to kube-ovn-controller a write that a
// policy denies to other accounts. The installation continues if policies cannot be applied; the condition Protected reports the reason.
func (r *Reconciler) protect(ctx context.Context, p *pass) error {
	err := r.kinds.watchPolicies(ctx)
	if err == nil {
		err = applyPolicies(ctx, p.config, p.objects)
	}
	switch {
	case err == nil:
		p.Protection = status.Protection{Applied: true, Reason: reasonInForce, Message: "admission policies deny what RBAC cannot: they are listed in docs/operations/security.md"}
		return nil
	case meta.IsNoMatchError(err):
		p.Protection = status.Protection{Reason: reasonUnserved, Message: "the API server does not serve ValidatingAdmissionPolicy of " +
			"admissionregistration.k8s.io/v1: use Kubernetes 1.31 or newer" + unprotected}
	case apierrors.IsForbidden(err):
		p.Protection = status.Protection{Reason: reasonForbidden, Message: "apply the manifests in config/rbac: " + err.Error() + unprotected}
	case apierrors.IsInvalid(err):
		p.Protection = status.Protection{Reason: reasonRefused, Message: "use Kubernetes 1.31 or newer: " + err.Error() + unprotected}
	default:
		return err
	}
	p.WakeAfter(policyRetry)
	return nil
}

// applyPolicies applies each policy by itself: a failure does not keep the others from being applied. Of several failures it returns one
// that a retry may solve. A policy that only warns protects nothing: a lasting failure of it is logged. Kubernetes 1.30 does not know its functions.
func applyPolicies(ctx context.Context, config render.Config, objects *workload.Set) error {
	var lasting, passing error
	for _, o := range render.Policies(config) {
		switch err := objects.Apply(ctx, o); {
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
