// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package underlay reconciles ProviderNetworks and Vlans. They have no rows of their own: subnets have the ports to physical networks, and
// agents make the bridges of nodes.
package underlay

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

const (
	// indexTag finds Vlans by tagKeys, indexProvider by ProviderNetwork.
	indexTag      = "underlay.tag"
	indexProvider = "underlay.provider"
	// vlanWorkers is the number of Vlans that are reconciled in parallel: their subnets then share transactions.
	vlanWorkers = 16
	// maxListed is the maximum number of names in a message.
	maxListed = 5
)

// reasonInUse is the reason while users block the deletion of an object.
const reasonInUse = "InUse"

// VlanReconciler checks Vlans for conflicts, and retains deleted ones while subnets use them.
type VlanReconciler struct {
	Client   client.Client
	Networks *lookup.Networks
	Recorder events.EventRecorder
	Gate     *reconciler.StartGate
}

// SetupWithManager registers the reconciler. It enqueues a Vlan for changes of: the Vlan; Vlans of the same ProviderNetwork and id; its
// ProviderNetwork; and its subnets.
func (r *VlanReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	for name, keys := range map[string]func(*kubeovnv1.Vlan) []string{
		indexTag: tagKeys, indexProvider: func(v *kubeovnv1.Vlan) []string { return []string{v.Spec.Provider} },
	} {
		err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.Vlan{}, name, func(o client.Object) []string { return keys(o.(*kubeovnv1.Vlan)) })
		if err != nil {
			return fmt.Errorf("index Vlans by %s: %w", name, err)
		}
	}
	subnets := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return k8s.Requests(lookup.VlansOf(o.(*kubeovnv1.Subnet))...)
	})
	return ctrl.NewControllerManagedBy(mgr).
		For(&kubeovnv1.Vlan{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kubeovnv1.Vlan{}, handler.EnqueueRequestsFromMapFunc(r.sameTag), builder.WithPredicates(k8s.Changed(viewTags))).
		Watches(&kubeovnv1.ProviderNetwork{}, handler.EnqueueRequestsFromMapFunc(r.ofProvider), builder.WithPredicates(k8s.Changed(problemOf))).
		Watches(&kubeovnv1.Subnet{}, subnets, builder.WithPredicates(k8s.Changed(func(s *kubeovnv1.Subnet) string { return strings.Join(lookup.VlansOf(s), ",") }))).
		WithOptions(r.Gate.Workers(vlanWorkers)).
		Complete(r.Gate.Reconciler(r))
}

// tagKeys returns the keys of a Vlan for the id of its spec, the first one, and for its last valid id.
func tagKeys(v *kubeovnv1.Vlan) []string {
	keys := []string{tagKey(v, v.Tag())}
	if tag, valid := k8s.ValidTag(v); valid && tag != v.Tag() {
		keys = append(keys, tagKey(v, tag))
	}
	return keys
}

func tagKey(v *kubeovnv1.Vlan, tag int) string { return v.Spec.Provider + "/" + strconv.Itoa(tag) }

// viewTags is the part of a Vlan that conflicts of others depend on.
func viewTags(v *kubeovnv1.Vlan) string {
	return fmt.Sprint(tagKeys(v), worksWith(v, v.Tag()))
}

// worksWith reports whether subnets of a Vlan have a tag.
func worksWith(v *kubeovnv1.Vlan, tag int) bool {
	has, valid := k8s.ValidTag(v)
	return valid && has == tag
}

// sameTag enqueues the Vlans that conflict, or no longer conflict, with a Vlan.
func (r *VlanReconciler) sameTag(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, key := range tagKeys(o.(*kubeovnv1.Vlan)) {
		requests = append(requests, k8s.Listed(ctx, r.Client, &kubeovnv1.VlanList{}, client.MatchingFields{indexTag: key})...)
	}
	return requests
}

func (r *VlanReconciler) ofProvider(ctx context.Context, o client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.VlanList{}, client.MatchingFields{indexProvider: o.GetName()})
}

// Reconcile brings the status of one Vlan up to date. It removes the finalizer of a deleted one without subnets.
func (r *VlanReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	vlan, err := k8s.Find[kubeovnv1.Vlan](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get Vlan: %w", err)
	}
	if vlan == nil {
		return ctrl.Result{}, nil
	}
	using, err := r.Networks.SubnetsOfVlan(ctx, vlan.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	subnets := make([]string, 0, len(using))
	for i := range using {
		subnets = append(subnets, using[i].Name)
	}
	slices.Sort(subnets)
	if vlan.DeletionTimestamp == nil {
		if err := k8s.AddFinalizer(ctx, r.Client, vlan); err != nil {
			return ctrl.Result{}, err
		}
	} else if len(subnets) == 0 {
		return ctrl.Result{}, k8s.RemoveFinalizer(ctx, r.Client, vlan)
	}
	problem, err := r.conflict(ctx, vlan)
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.patchStatus(ctx, vlan, subnets, problem)
}

// conflict returns the problem of a Vlan with the id and provider of another one that precedes it: one that works with the id, so that a change never
// breaks a working Vlan, otherwise the older one.
func (r *VlanReconciler) conflict(ctx context.Context, vlan *kubeovnv1.Vlan) (*validation.Problem, error) {
	var same kubeovnv1.VlanList
	tag := vlan.Tag()
	if err := r.Client.List(ctx, &same, client.MatchingFields{indexTag: tagKey(vlan, tag)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Vlans of ProviderNetwork %s: %w", vlan.Spec.Provider, err)
	}
	for i := range same.Items {
		other := &same.Items[i]
		precedes := worksWith(other, tag)
		if precedes == worksWith(vlan, tag) {
			precedes = lookup.Precedes(other, vlan)
		}
		if other.Name != vlan.Name && precedes {
			return validation.VlanConflict(tag, vlan.Spec.Provider, other.Name), nil
		}
	}
	return nil, nil
}

func (r *VlanReconciler) patchStatus(ctx context.Context, vlan *kubeovnv1.Vlan, subnets []string, problem *validation.Problem) error {
	provider, err := k8s.Find[kubeovnv1.ProviderNetwork](ctx, r.Client, client.ObjectKey{Name: vlan.Spec.Provider}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("get ProviderNetwork %s: %w", vlan.Spec.Provider, err)
	}
	base := vlan.DeepCopy()
	vlan.Status.Subnets, vlan.Status.Conflict = subnets, problem != nil
	switch tag := vlan.Tag(); {
	case problem == nil:
		vlan.Status.ValidatedID = &tag
	case worksWith(vlan, tag): // both were checked at the same time
		vlan.Status.ValidatedID = nil
	}
	ready := k8s.Ready(nil, nil)
	switch {
	case vlan.DeletionTimestamp != nil:
		ready = k8s.NotReady(reasonInUse, "deleted when no subnet uses it: "+k8s.Some(subnets, maxListed))
	case problem != nil:
		ready = k8s.NotValid(problem)
		if id := vlan.Status.ValidatedID; id != nil {
			ready.Message += fmt.Sprintf("; the last valid id, %d, stays applied", *id)
		}
	case provider == nil:
		ready = k8s.NotReady(kubeovnv1.ReasonWaiting, fmt.Sprintf("ProviderNetwork %s does not exist: create it", vlan.Spec.Provider))
	case problemOf(provider) != "":
		ready = k8s.NotReady(kubeovnv1.ReasonWaiting, fmt.Sprintf("ProviderNetwork %s is not valid: %s", provider.Name, problemOf(provider)))
	}
	k8s.SetConditions(&vlan.Status.Conditions, vlan.Generation, k8s.Validated(problem), ready)
	k8s.WarnAnew(r.Recorder, vlan, base.Status.Conditions, vlan.Status.Conditions, kubeovnv1.ConditionValidated, kubeovnv1.ConditionReady)
	return k8s.PatchStatus(ctx, r.Client, base, vlan)
}

// problemOf returns the problem of the spec of a ProviderNetwork, "" if it is valid.
func problemOf(pn *kubeovnv1.ProviderNetwork) string {
	if problem := validation.ProviderNetwork(pn.Name, &pn.Spec); problem != nil {
		return problem.Message
	}
	return ""
}
