// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// indexRemote is an index of security groups by the names of groups in their rules.
const indexRemote = "securitygroup.remote"

// setupGroups adds the controller of security groups. It enqueues a group when the group or its pods change, and when a group that its
// rules name is created or deleted. A group that was deleted before the start needs no event: its rows are deleted with the port group of
// its pods, which no other policy uses.
func (r *Reconciler) setupGroups(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.SecurityGroup{}, indexRemote, remotesOf); err != nil {
		return fmt.Errorf("index security groups by the groups that they name: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&kubeovnv1.SecurityGroup{}, builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, k8s.Changed(logsUntil)))).
		Watches(&kubeovnv1.SecurityGroup{}, handler.EnqueueRequestsFromMapFunc(r.groupsThatName), builder.WithPredicates(k8s.ComesOrGoes)).
		WatchesRawSource(&r.groups).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindSecurityGroup)).
		WithOptions(r.Gate.Workers(workers)).
		Complete(r.Gate.Reconciler(reconcile.Func(r.reconcileGroup)))
}

func remotesOf(o client.Object) []string {
	spec := &o.(*kubeovnv1.SecurityGroup).Spec
	var names []string
	for _, r := range slices.Concat(spec.IngressRules, spec.EgressRules) {
		if r.RemoteType == kubeovnv1.RemoteSecurityGroup && r.RemoteSecurityGroup != "" {
			names = append(names, r.RemoteSecurityGroup)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (r *Reconciler) groupsThatName(ctx context.Context, o client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.SecurityGroupList{}, client.MatchingFields{indexRemote: o.GetName()})
}

// reconcileGroup applies the ACLs of one security group and updates its status.
func (r *Reconciler) reconcileGroup(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	sg, err := k8s.Find[kubeovnv1.SecurityGroup](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get SecurityGroup: %w", err)
	}
	owner := translate.SecurityGroupOwner(req.Name)
	if sg == nil {
		r.forgetLogs(owner)
		result, err := r.apply(ctx, owner, func() compiled { return compiled{} })
		return r.settleLogs(ctx, owner, nil, &compiled{}, result, err)
	}
	var last compiled
	compile := func() compiled {
		last = r.compileGroup(sg, r.groupExists(ctx))
		return last
	}
	result, err := r.apply(ctx, owner, compile)
	patched := r.patchGroup(ctx, sg, compile(), err, result.RequeueAfter > 0)
	result, err = r.settleLogs(ctx, owner, sg, &last, result, err)
	return result, errors.Join(err, patched)
}

// logsUntil returns the value of the annotation AnnotationLogDropsUntil.
func logsUntil(o client.Object) string {
	return o.GetAnnotations()[kubeovnv1.AnnotationLogDropsUntil.Key()]
}

// compileGroup compiles a security group with its logs.
func (r *Reconciler) compileGroup(sg *kubeovnv1.SecurityGroup, exists func(group string) bool) compiled {
	c := securityGroup(sg, exists)
	r.logDrops(sg.Annotations, &c)
	r.limitLogs(sg, &c)
	return c
}

// groupExists returns a function that reports whether a group exists. If the lookup fails, it reports true, so that no problem is reported
// by mistake.
func (r *Reconciler) groupExists(ctx context.Context) func(string) bool {
	return func(name string) bool {
		err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &kubeovnv1.SecurityGroup{}, client.UnsafeDisableDeepCopy)
		return err == nil || client.IgnoreNotFound(err) != nil
	}
}

// patchGroup writes the outcome of apply into the status of a group.
func (r *Reconciler) patchGroup(ctx context.Context, sg *kubeovnv1.SecurityGroup, c compiled, err error, waits bool) error {
	base := sg.DeepCopy()
	conditions := conditionsOf(c, err, waits)
	k8s.SetConditions(&sg.Status.Conditions, sg.Generation, conditions...)
	if inForce := err == nil && !waits; inForce {
		sg.Status.PortGroup = translate.SecurityGroupName(c.group.Subjects)
		sg.Status.AllowSameGroupTraffic = sg.Spec.AllowSameGroupTraffic
		sg.Status.IngressLastSyncSuccess, sg.Status.EgressLastSyncSuccess = true, true
	} else if err != nil {
		sg.Status.IngressLastSyncSuccess, sg.Status.EgressLastSyncSuccess = false, false
	}
	if len(c.problems) > 0 && !k8s.SameMessage(base.Status.Conditions, sg.Status.Conditions, kubeovnv1.ConditionValidated) {
		k8s.Warn(r.Recorder, sg, ReasonNotExpressed, strings.Join(c.problems, "; "))
	}
	return k8s.PatchStatus(ctx, r.Client, base, sg)
}

// conditionsOf returns the conditions Validated and Ready of a policy: its problems, and whether it is applied.
func conditionsOf(c compiled, err error, waits bool) []metav1.Condition {
	var problem *validation.Problem
	if len(c.problems) > 0 {
		problem = &validation.Problem{Reason: kubeovnv1.ReasonInvalid, Message: strings.Join(c.problems, "; ")}
	}
	ready := k8s.Ready(err, northbound.ErrWaiting)
	switch {
	case problem != nil && c.Subjects == "" && c.group == nil:
		ready = k8s.NotValid(problem)
	case waits && err == nil:
		ready = k8s.NotReady(kubeovnv1.ReasonWaiting, "pods enter their sets")
	}
	return []metav1.Condition{k8s.Validated(problem), ready}
}

// restoreGroups adds the sets that security groups use.
func (r *Reconciler) restoreGroups(ctx context.Context, uses map[desired.Owner][]podset.Selector) error {
	var list kubeovnv1.SecurityGroupList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list security groups: %w", err)
	}
	for i := range list.Items {
		c := r.compileGroup(&list.Items[i], func(string) bool { return true }) // the logs of all groups share a meter
		uses[c.Owner] = c.uses
	}
	return nil
}
