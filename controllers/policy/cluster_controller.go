// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// clusterReconciler maintains the ACLs and conditions of one kind of cluster-wide policies. Its CustomResourceDefinition may be missing.
type clusterReconciler struct {
	*Reconciler

	kind     clusterKind
	requests k8s.RequestSource

	// mu protects the fields below. It is held while the cache is queried for the kind: a query for an undefined kind would start an informer that
	// retries forever.
	mu      sync.RWMutex
	state   definitionState
	version kindVersion // of the informer
}

// setup adds the controller of the kind. follow adds the events of its own objects.
func (r *clusterReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named(strings.ToLower(r.kind.name)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&kubeovnv1.IP{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(k8s.NodeRecords(k8s.Changed(addressesOf)))).
		WatchesRawSource(&r.requests).
		WatchesRawSource(reconciler.Drift(r.Northbound, r.kind.name)).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

// get returns a policy, nil if it does not exist. known is false while it is unknown whether the kind is defined.
func (r *clusterReconciler) get(ctx context.Context, name string) (policy client.Object, known bool, err error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.state != stateFollowed {
		return nil, r.state == stateUndefined, nil
	}
	policy = r.version.object()
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, policy); err != nil {
		return nil, true, client.IgnoreNotFound(err)
	}
	return policy, true, nil
}

// all enqueues all policies of the kind.
func (r *clusterReconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.state != stateFollowed {
		return nil
	}
	return k8s.Listed(ctx, r.Client, r.version.list())
}

// Reconcile applies the ACLs of one policy and updates its conditions.
func (r *clusterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	owner := translate.ClusterPolicyOwner(r.kind.name, req.Name)
	policy, known, err := r.get(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get %s: %w", r.kind.name, err)
	}
	if !known {
		return ctrl.Result{}, nil // follow or forget enqueues it again
	}
	var last compiled
	compile := func() compiled {
		if last = (compiled{}); policy != nil && !r.Ignore {
			last = r.compileCluster(ctx, r.kind, policy)
		}
		return last
	}
	if policy == nil || r.Ignore {
		r.forgetLogs(owner)
	}
	result, err := r.apply(ctx, owner, compile)
	var patched error
	if policy != nil {
		patched = r.patchStatus(ctx, policy, compile(), err, result.RequeueAfter > 0)
	}
	result, err = r.settleLogs(ctx, owner, policy, &last, result, err)
	return result, errors.Join(err, patched)
}

// compileCluster compiles a cluster-wide policy with its logs.
func (r *Reconciler) compileCluster(ctx context.Context, kind clusterKind, policy client.Object) compiled {
	c := clusterNetworkPolicy(kind.read(policy), r.Sets.Numbers, r.nodes(ctx))
	r.logDrops(policy.GetAnnotations(), &c)
	r.limitLogs(policy, &c)
	return c
}

// patchStatus writes the conditions of a policy: its problems, and whether it is applied.
func (r *clusterReconciler) patchStatus(ctx context.Context, policy client.Object, c compiled, err error, waits bool) error {
	base := policy.DeepCopyObject().(client.Object)
	conditions := r.kind.conditions(policy)
	current := conditionsOf(c, err, waits)
	if r.Ignore && err == nil {
		current = []metav1.Condition{k8s.Validated(nil), k8s.NotReady(kubeovnv1.ReasonIgnored, ignored)}
	}
	k8s.SetConditions(conditions, policy.GetGeneration(), current...)
	if len(c.problems) > 0 && !k8s.SameMessage(*r.kind.conditions(base), *conditions, kubeovnv1.ConditionValidated) {
		k8s.Warn(r.Recorder, policy, ReasonNotExpressed, strings.Join(c.problems, "; "))
	}
	return k8s.PatchStatus(ctx, r.Client, base, policy)
}

// nodes returns a function that finds the addresses of nodes by their labels.
func (r *Reconciler) nodes(ctx context.Context) nodesOf {
	return func(selector *metav1.LabelSelector) ([]netip.Prefix, error) {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return nil, fmt.Errorf("label selector: %w", err)
		}
		var list corev1.NodeList
		if err := r.Client.List(ctx, &list, client.MatchingLabelsSelector{Selector: parsed}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		var addresses []netip.Prefix
		for i := range list.Items {
			own, err := r.addressesOfNode(ctx, list.Items[i].Name)
			if err != nil {
				return nil, err
			}
			for _, a := range own {
				prefix, _ := a.Prefix(a.BitLen()) // always valid
				addresses = append(addresses, prefix)
			}
		}
		return addresses, nil
	}
}
