// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vpc turns Vpcs into logical routers with their routes, policies and links to one another.
package vpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// Reconciler keeps the logical router of each Vpc in line with its spec.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Networks   *lookup.Networks
	Namespaces *lookup.Namespaces
	Recorder   events.EventRecorder
	Gate       *reconciler.StartGate
	// Protection is OVNCluster.spec.network.controlPlaneProtection.
	Protection v1alpha1.ControlPlaneProtection

	// lastDefault is the last spec of the default VPC, with which it is created again.
	lastDefault atomic.Pointer[kubeovnv1.VpcSpec]
	// detached enqueues deleted VPCs after a subnet has left them.
	detached k8s.RequestSource
}

// Detached requeues a deleted VPC after a subnet has left it. It never blocks.
func (r *Reconciler) Detached(vpc string) { r.detached.Add(vpc) }

// Reconcile brings the logical router of one Vpc in line with its spec. While the spec has problems of its own, the last spec without any
// applies. Entries that conflict with other objects, and invalid entries of a Vpc that was never valid, are skipped and reported in status; the
// others apply.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	in, err := r.gather(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("gather inputs of VPC %s: %w", req.Name, err)
	}
	if in.vpc == nil {
		return ctrl.Result{}, r.missing(ctx, req.Name, in)
	}
	if req.Name == kubeovnv1.DefaultVpc {
		r.lastDefault.Store(k8s.AppliedVpc(in.vpc).Spec.DeepCopy())
	}
	switch {
	case in.vpc.DeletionTimestamp == nil:
		if err := k8s.AddFinalizer(ctx, r.Client, in.vpc); err != nil {
			return ctrl.Result{}, err
		}
	case len(in.subnets) == 0:
		return ctrl.Result{}, r.finish(ctx, in.vpc)
	}
	if err := r.Northbound.Apply(ctx, translate.ProtectionOwner(req.Name), translate.Protection(req.Name, r.Protection)); err != nil {
		return ctrl.Result{}, fmt.Errorf("apply the control-plane protection of VPC %s: %w", req.Name, err)
	}
	if in.misnamed() {
		return ctrl.Result{}, r.patchStatus(ctx, in, result{conflicts: []*validation.Problem{validation.SameName("Subnet", req.Name)}})
	}
	router, found, err := r.check(ctx, in)
	if last := in.vpc.Status.ValidatedSpec; err == nil && len(found.problems) > 0 && last != nil {
		router, found, err = r.retain(ctx, in, found, last)
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("check VPC %s: %w", req.Name, err)
	}
	found.err = r.apply(ctx, in, router)
	found.applied = found.err == nil
	return ctrl.Result{}, errors.Join(k8s.Unless(found.err, northbound.ErrWaiting), r.patchStatus(ctx, in, found))
}

// retain returns the router of the last valid spec, and the outcome of the check of the current spec with the links of that router.
func (r *Reconciler) retain(ctx context.Context, in inputs, found result, last *kubeovnv1.VpcSpec) (translate.VpcInputs, result, error) {
	vpc := *in.vpc
	vpc.Spec, in.vpc = *last, &vpc
	router, applied, err := r.check(ctx, in)
	found.linked, found.retained = applied.linked, true
	return router, found, err
}

// remove deletes the rows of a deleted VPC, once no switch of a subnet refers to them. Until then it does nothing; the controller of
// subnets calls Detached for each subnet that leaves.
func (r *Reconciler) remove(ctx context.Context, name string, in inputs) error {
	services, copp := translate.ServicesRef(name).UUID(), translate.CoppRef(name).UUID()
	for i := range in.subnets {
		row := northbound.Get[nb.LogicalSwitch](r.Northbound, translate.SwitchRef(in.subnets[i].Name))
		if row != nil && (slices.Contains(row.LoadBalancerGroup, services) || row.Copp != nil && *row.Copp == copp) {
			return nil
		}
	}
	return r.deleteRows(ctx, name)
}

// deleteRows deletes the router of a VPC, and then the limits to which it refers.
func (r *Reconciler) deleteRows(ctx context.Context, name string) error {
	if err := r.Northbound.Apply(ctx, translate.VpcOwner(name), nil); err != nil {
		return fmt.Errorf("delete the router of VPC %s: %w", name, err)
	}
	if err := r.Northbound.Apply(ctx, translate.ProtectionOwner(name), nil); err != nil {
		return fmt.Errorf("delete the control-plane protection of VPC %s: %w", name, err)
	}
	return nil
}

// result is the outcome of applying a VPC.
type result struct {
	// problems are errors in the spec, conflicts exclude entries because of other objects; missing are references to objects that do not exist
	// yet.
	problems, conflicts, missing []*validation.Problem
	// unmonitored are the routes whose bfdId has no effect.
	unmonitored []validation.StaticRoute
	// retained: the spec has problems, and the last valid one is applied.
	retained bool
	// linked are the remote VPCs of the links that are set up.
	linked []string
	// applied is true if the router is up to date; err is the error otherwise.
	applied bool
	err     error
}

// apply commits the router. While the join subnet is not valid, its gateways are unknown: then an existing router stays unchanged.
func (r *Reconciler) apply(ctx context.Context, in inputs, router translate.VpcInputs) error {
	hops, known := nextHops(in.join)
	if !known && in.vpc.Status.Standby {
		why := k8s.WhyNotValid("subnet "+kubeovnv1.JoinSubnet+", to whose gateway default routes lead,", in.join.Status.Conditions, in.join.Generation)
		return fmt.Errorf("%w: %s", northbound.ErrWaiting, why)
	}
	router.DefaultNextHops = hops
	err := r.Northbound.Apply(ctx, translate.VpcOwner(in.vpc.Name), translate.Vpc(router))
	if errors.Is(err, northbound.ErrDatapaths) {
		return fmt.Errorf("%w: delete Subnets or Vpcs", err)
	}
	return err
}

// finish deletes the router of a deleted VPC without subnets, and removes the finalizer. Until then the VPC stays applied, links
// included.
func (r *Reconciler) finish(ctx context.Context, vpc *kubeovnv1.Vpc) error {
	if err := r.deleteRows(ctx, vpc.Name); err != nil {
		return err
	}
	return k8s.RemoveFinalizer(ctx, r.Client, vpc)
}
