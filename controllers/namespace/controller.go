// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package namespace annotates every namespace with the subnets and IPPools that serve it.
package namespace

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ippools"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Reconciler keeps the annotations of namespaces in line with Subnets and Vpcs. They are for users: no component of Kiln reads them.
type Reconciler struct {
	Client     client.Client
	Namespaces *lookup.Namespaces
	Pools      *ippools.Lookup
	Gate       *reconciler.StartGate
}

// SetupWithManager registers the reconciler. Changes of the namespace, of the subnets and VPCs that may serve it, and of its IPPools wake it.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Namespace{}, indexSubnet, subnetsOf); err != nil {
		return fmt.Errorf("index namespaces by subnet: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&corev1.Namespace{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.bySubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&kubeovnv1.Vpc{}, handler.EnqueueRequestsFromMapFunc(r.byVpc), builder.WithPredicates(k8s.Changed(k8s.ViewVpc))).
		Watches(&kubeovnv1.IPPool{}, handler.EnqueueRequestsFromMapFunc(byPool), builder.WithPredicates(k8s.Changed(k8s.ViewPool))).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

// Reconcile writes the annotations of one namespace.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ns := &corev1.Namespace{}
	if err := r.Client.Get(ctx, req.NamespacedName, ns); err != nil || ns.DeletionTimestamp != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	subnets, err := r.subnets(ctx, ns)
	if err != nil {
		return ctrl.Result{}, err
	}
	pools, err := r.Pools.OfNamespace(ctx, ns.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	next := &corev1.Namespace{ObjectMeta: *ns.ObjectMeta.DeepCopy()}
	base := next.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	for key, value := range annotations(subnets, pools) {
		if value == "" {
			delete(next.Annotations, key)
			continue
		}
		next.Annotations[key] = value
	}
	return ctrl.Result{}, client.IgnoreNotFound(k8s.Patch(ctx, r.Client, base, next))
}

// subnets returns the existing subnets that serve a namespace.
func (r *Reconciler) subnets(ctx context.Context, ns *corev1.Namespace) ([]*kubeovnv1.Subnet, error) {
	names, err := r.Namespaces.Subnets(ctx, ns)
	if err != nil {
		return nil, err
	}
	var subnets []*kubeovnv1.Subnet
	for _, name := range names {
		s, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get subnet %s: %w", name, err)
		}
		if s != nil {
			subnets = append(subnets, k8s.Applied(s))
		}
	}
	return subnets, nil
}

// annotations returns the annotations of a namespace with these subnets and pools, in their order. An empty value means none.
func annotations(subnets []*kubeovnv1.Subnet, pools []*kubeovnv1.IPPool) map[string]string {
	var names, cidrs, excluded, poolNames []string
	for _, p := range pools {
		poolNames = append(poolNames, p.Name)
	}
	for _, s := range subnets {
		names = append(names, s.Name)
		cidrs = append(cidrs, s.Spec.CIDRBlock)
		excluded = append(excluded, strings.Join(s.Spec.ExcludeIPs, ","))
	}
	return map[string]string{
		kubeovnv1.AnnotationLogicalSwitch.Key(): strings.Join(names, ","),
		kubeovnv1.AnnotationCIDR.Key():          strings.Join(cidrs, ";"),
		kubeovnv1.AnnotationExcludeIPs.Key():    strings.Join(excluded, ";"),
		kubeovnv1.AnnotationIPPool.Key():        strings.Join(poolNames, ","),
	}
}
