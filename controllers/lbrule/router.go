// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/validation"
)

// RouterReconciler tells of RouterLBRules what is wrong with them, and that nothing serves them: the addresses that they are reached by are
// OvnEips, which this version does not have.
type RouterReconciler struct {
	Client   client.Client
	Recorder events.EventRecorder
	Gate     *k8s.Gate
}

// SetupWithManager registers the reconciler. It wakes for its rule.
func (r *RouterReconciler) SetupWithManager(_ context.Context, mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("routerlbrule").
		For(&kubeovnv1.RouterLBRule{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r.Gate.Reconciler(r))
	if err != nil {
		return fmt.Errorf("set up the controller of RouterLBRules: %w", err)
	}
	return nil
}

// Reconcile tells the state of one rule.
func (r *RouterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	rule := &kubeovnv1.RouterLBRule{}
	if err := r.Client.Get(ctx, req.NamespacedName, rule); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	base := rule.DeepCopy()
	problem := validation.RouterLBRule(&rule.Spec)
	k8s.SetConditions(&rule.Status.Conditions, rule.Generation, k8s.Validated(problem), metav1.Condition{
		Type: kubeovnv1.ConditionReady, Status: metav1.ConditionFalse, Reason: kubeovnv1.ReasonFieldsIgnored,
		Message: "this version has no OvnEips, whose addresses would be served: a SwitchLBRule serves pods of the VPC, a Service of type LoadBalancer clients outside",
	})
	if !k8s.SameMessage(base.Status.Conditions, rule.Status.Conditions, kubeovnv1.ConditionValidated) && problem != nil {
		k8s.Warn(r.Recorder, rule, problem.Reason, problem.Message)
	}
	return ctrl.Result{}, k8s.PatchStatus(ctx, r.Client, base, rule)
}
