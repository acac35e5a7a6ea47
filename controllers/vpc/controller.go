// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vpc turns Vpcs into logical routers.
package vpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// indexVpc finds subnets by their VPC.
const indexVpc = "vpc.subnets"

// Reconciler makes the logical router of each Vpc so.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Recorder   events.EventRecorder
	Gate       *k8s.Gate
}

// SetupWithManager registers the reconciler. It wakes for its Vpc, for the subnets of the Vpc and for drift.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.Subnet{}, indexVpc, func(o client.Object) []string {
		return []string{vpcOf(o)}
	}); err != nil {
		return fmt.Errorf("index subnets by VPC: %w", err)
	}
	err := ctrl.NewControllerManagedBy(mgr).
		For(&kubeovnv1.Vpc{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kubeovnv1.Subnet{},
			handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
				return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: vpcOf(o)}}}
			}),
			builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		WatchesRawSource(k8s.Drift(r.Northbound, translate.KindVpc)).
		WatchesRawSource(k8s.Orphans(mgr.GetCache(), r.Gate, &kubeovnv1.Vpc{}, k8s.OwnersOf(r.Northbound, translate.KindVpc))).
		Complete(r.Gate.Reconciler(r))
	if err != nil {
		return fmt.Errorf("set up the controller of VPCs: %w", err)
	}
	return nil
}

// vpcOf is the name of the VPC that a subnet belongs to.
func vpcOf(o client.Object) string {
	return cmp.Or(o.(*kubeovnv1.Subnet).Spec.Vpc, kubeovnv1.DefaultVpc)
}

// Reconcile makes one Vpc so.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	in, err := r.gather(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("gather inputs of VPC %s: %w", req.Name, err)
	}
	if in.vpc == nil {
		return ctrl.Result{}, r.Northbound.Apply(ctx, translate.VpcOwner(req.Name), nil)
	}
	if in.vpc.DeletionTimestamp != nil {
		return ctrl.Result{}, r.finish(ctx, in)
	}
	if err := k8s.AddFinalizer(ctx, r.Client, in.vpc); err != nil {
		return ctrl.Result{}, err
	}
	err = r.apply(ctx, in)
	return ctrl.Result{}, errors.Join(k8s.Unless(err, northbound.ErrWaiting), r.patchStatus(ctx, in, err))
}

// inputs are what a VPC's router and status follow from.
type inputs struct {
	vpc *kubeovnv1.Vpc
	// subnets are the names of the VPC's subnets, in order.
	subnets []string
	// join is the subnet that connects the nodes, when it is one of them.
	join *kubeovnv1.Subnet
}

func (r *Reconciler) gather(ctx context.Context, name string) (inputs, error) {
	vpc := &kubeovnv1.Vpc{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, vpc); apierrors.IsNotFound(err) {
		return inputs{}, nil
	} else if err != nil {
		return inputs{}, fmt.Errorf("get it: %w", err)
	}
	in := inputs{vpc: vpc}
	var subnets kubeovnv1.SubnetList
	if err := r.Client.List(ctx, &subnets, client.MatchingFields{indexVpc: name}, client.UnsafeDisableDeepCopy); err != nil {
		return inputs{}, fmt.Errorf("list its subnets: %w", err)
	}
	for i := range subnets.Items {
		in.subnets = append(in.subnets, subnets.Items[i].Name)
		if subnets.Items[i].Name == kubeovnv1.JoinSubnet {
			in.join = &subnets.Items[i]
		}
	}
	return in, nil
}

// apply commits the router. While the join subnet is wrong its gateways are not known: a router that stands is left as it is.
func (r *Reconciler) apply(ctx context.Context, in inputs) error {
	hops, known := nextHops(in.join)
	if !known && in.vpc.Status.Standby {
		return fmt.Errorf("%w: subnet %s is not valid yet, and default routes go to its gateway", northbound.ErrWaiting, kubeovnv1.JoinSubnet)
	}
	rows := translate.Vpc(translate.VpcInputs{Name: in.vpc.Name, DefaultNextHops: hops})
	return r.Northbound.Apply(ctx, translate.VpcOwner(in.vpc.Name), rows)
}

// finish lets a deleted VPC go once no subnet is left in it.
func (r *Reconciler) finish(ctx context.Context, in inputs) error {
	if len(in.subnets) > 0 {
		return r.patchBlocked(ctx, in)
	}
	if err := r.Northbound.Apply(ctx, translate.VpcOwner(in.vpc.Name), nil); err != nil {
		return fmt.Errorf("delete the router of VPC %s: %w", in.vpc.Name, err)
	}
	return k8s.RemoveFinalizer(ctx, r.Client, in.vpc)
}
