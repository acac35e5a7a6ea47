// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package transit connects custom VPCs to Services and to destinations outside the cluster. Each VPC gets a gateway router on one node,
// which translates the source of all traffic that leaves the VPC to an address of the join subnet.
package transit

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/iprecord"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/keylock"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/svc"
)

// Reconciler reconciles the gateway router of each custom VPC.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Networks   *lookup.Networks
	Recorder   events.EventRecorder
	Gate       *reconciler.StartGate
	Leases     gateway.Leases
	// WaysOut is locked while the owner of a VPC's default routes is decided.
	WaysOut *keylock.Locks
	// ServiceCIDRs returns the cluster's CIDRs of Services.
	ServiceCIDRs svc.CIDRs
	// ClusterAccess is the default for VPCs whose clusterAccess is empty.
	ClusterAccess kubeovnv1.ClusterAccess

	// allocations holds the addresses of gateway routers on the join subnet.
	allocations join.Allocations
	// moved enqueues VPCs with a node whose Lease state changed.
	moved k8s.RequestSource
}

// Reconcile applies the gateway router of one VPC and updates its status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	vpc := &kubeovnv1.Vpc{}
	if err := r.Client.Get(ctx, req.NamespacedName, vpc); apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.remove(ctx, req.Name)
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("get VPC %s: %w", req.Name, err)
	}
	if !r.needsGateway(vpc) {
		return ctrl.Result{}, errors.Join(r.remove(ctx, vpc.Name), r.clearStatus(ctx, vpc))
	}
	in, err := r.gather(ctx, vpc)
	if err == nil {
		err = r.apply(ctx, &in)
	}
	return ctrl.Result{}, errors.Join(k8s.Unless(err, northbound.ErrWaiting), r.patchStatus(ctx, in, err))
}

// needsGateway reports whether a VPC needs a gateway router.
func (r *Reconciler) needsGateway(vpc *kubeovnv1.Vpc) bool {
	return vpc.Name != kubeovnv1.DefaultVpc && cmp.Or(k8s.AppliedVpc(vpc).Spec.ClusterAccess, r.ClusterAccess) == kubeovnv1.ClusterAccessServices
}

// apply commits the gateway router and records its address in an IP object. Without a usable node there are no rows, but the VPC keeps its
// address.
func (r *Reconciler) apply(ctx context.Context, in *inputs) error {
	allocation, err := r.allocations.Allocation(ctx, in.vpc.Name, translate.TransitPort(in.vpc.Name), in.join)
	if err != nil {
		if errors.Is(err, ipam.ErrExhausted) {
			err = fmt.Errorf("%w: %s", errNoAddress, join.Full(err, "unused VPCs or nodes, or set clusterAccess to None"))
		}
		return fmt.Errorf("allocate an address: %w", err)
	}
	in.allocation = allocation
	owner := translate.TransitOwner(in.vpc.Name)
	unlock, err := r.WaysOut.Lock(ctx, in.vpc.Name)
	if err != nil {
		return err
	}
	defer unlock()
	in.external = r.externalFamilies(in.vpc.Name)
	if in.conflict != "" || in.pair.Active == "" {
		err = r.Northbound.Apply(ctx, owner, nil)
	} else {
		err = r.Northbound.Apply(ctx, owner, translate.Transit(in.rows()))
	}
	if err != nil {
		return fmt.Errorf("apply the way out of VPC %s: %w", in.vpc.Name, err)
	}
	r.picker().Expect(in.pair)
	measure(*in)
	return iprecord.Write(ctx, r.Client, in.object(), iprecord.Any)
}

// errNoAddress is the error of a full join subnet. A released address requeues the VPC.
var errNoAddress = fmt.Errorf("%w", northbound.ErrWaiting)

// rows returns the inputs of the rows.
func (in *inputs) rows() translate.TransitInputs {
	return translate.TransitInputs{
		Vpc: in.vpc.Name, Node: in.pair.Active, NextHops: in.hops, Addresses: in.allocation.Addresses, MAC: in.allocation.MAC,
		Services: in.services, Outgoing: in.outgoing, RouteTables: in.routeTables, Routes: in.routes, External: in.external,
	}
}

// object returns the IP object of the address.
func (in *inputs) object() *kubeovnv1.IP {
	ip := join.Object(objectName(in.vpc.Name), in.allocation)
	ip.Spec.PodName = in.vpc.Name
	return ip
}

// remove deletes the gateway router of a VPC. It releases the address after the ports are deleted.
func (r *Reconciler) remove(ctx context.Context, vpc string) error {
	unmeasure(vpc)
	if err := r.Northbound.Apply(ctx, translate.TransitOwner(vpc), nil); err != nil {
		return fmt.Errorf("delete the way out of VPC %s: %w", vpc, err)
	}
	r.allocations.Release(ctx, vpc, translate.TransitPort(vpc))
	return iprecord.Delete(ctx, r.Client, objectName(vpc), func(ip *kubeovnv1.IP) bool { return vpcOf(ip) == vpc })
}

// clearStatus removes status.transit and its condition from a VPC that needs no gateway router.
func (r *Reconciler) clearStatus(ctx context.Context, vpc *kubeovnv1.Vpc) error {
	base := vpc.DeepCopy()
	vpc.Status.Transit = nil
	apimeta.RemoveStatusCondition(&vpc.Status.Conditions, kubeovnv1.ConditionTransitReady)
	return k8s.PatchStatus(ctx, r.Client, base, vpc)
}
