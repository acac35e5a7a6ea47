// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ovneip allocates the addresses of OvnEips in their external subnets.
package ovneip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/reservation"
	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// Reconciler allocates the addresses of OvnEips. It allocates them before the status contains them, and frees them once an OvnEip is
// deleted and has no users. The controllers of its users configure OVN for the addresses.
type Reconciler struct {
	Client    client.Client
	Allocator *ipam.Allocator
	Networks  *lookup.Networks
	Recorder  events.EventRecorder
	Gate      *reconciler.StartGate

	// waiting has the OvnEips that wait for a free address, by subnet.
	waiting interest.Index[string, string]
}

// state is the result of applying an OvnEip.
type state struct {
	allocation ipam.Allocation
	problem    *validation.Problem
	users      []string // descriptions, sorted
	err        error
}

// Restore restores the allocations of OvnEips from their status. Call it after the allocations of ports are restored and before any allocation.
func (r *Reconciler) Restore(ctx context.Context) error {
	var eips kubeovnv1.OvnEipList
	if err := r.Client.List(ctx, &eips, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list OvnEips: %w", err)
	}
	for i := range eips.Items {
		r.reserver().Restore(ctx, requestOf(&eips.Items[i]))
	}
	return nil
}

func (r *Reconciler) reserver() reservation.Reserver {
	return reservation.Reserver{Client: r.Client, Allocator: r.Allocator, Networks: r.Networks}
}

func subnetOf(eip *kubeovnv1.OvnEip) string { return lookup.ExternalOfEip(eip) }

// label writes the labels by which users of Kube-OVN select OvnEips.
func (r *Reconciler) label(ctx context.Context, eip *kubeovnv1.OvnEip, addresses []netip.Addr) error {
	base := eip.DeepCopy()
	labels := map[string]string{
		kubeovnv1.LabelSubnet: subnetOf(eip), kubeovnv1.LabelEipType: cmp.Or(eip.Spec.Type, kubeovnv1.OvnEipTypeNAT), kubeovnv1.LabelEipV4: "", kubeovnv1.LabelEipV6: "",
	}
	for _, a := range addresses {
		key := kubeovnv1.LabelEipV4
		if a.Is6() {
			key = kubeovnv1.LabelEipV6
		}
		labels[key] = strings.ReplaceAll(a.String(), ":", "-")
	}
	k8s.SetLabels(eip, labels)
	return k8s.Patch(ctx, r.Client, base, eip)
}

func requestOf(eip *kubeovnv1.OvnEip) reservation.Request {
	return reservation.Request{
		What: "an OvnEip", Holder: translate.OvnEipHolder(eip.Name), Subnet: subnetOf(eip),
		SpecAddresses: [2]string{eip.Spec.V4IP, eip.Spec.V6IP}, StatusAddresses: [2]string{eip.Status.V4IP, eip.Status.V6IP},
		SpecMAC: eip.Spec.MACAddress, StatusMAC: eip.Status.MACAddress,
	}
}

// Reconcile brings an OvnEip's allocation up to date.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get OvnEip: %w", err)
	}
	if eip == nil {
		r.free(ctx, req.Name)
		return ctrl.Result{}, nil
	}
	if eip.DeletionTimestamp == nil {
		if err := k8s.AddFinalizer(ctx, r.Client, eip); err != nil {
			return ctrl.Result{}, err
		}
	}
	var s state
	if s.users, s.err = r.users(ctx, eip); s.err != nil {
		return ctrl.Result{}, s.err
	}
	releases, err := r.confirmed(ctx, eip)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.forget(ctx, eip, releases.open); err != nil {
		return ctrl.Result{}, err
	}
	r.warn(eip, releases.expired)
	if eip.DeletionTimestamp != nil && len(s.users) == 0 && len(lookup.Awaited(eip.Status.Releasing)) == 0 {
		// A record that the cache does not have yet makes this fail. The address must not have another owner then.
		if err := k8s.RemoveFinalizer(ctx, r.Client, eip); err != nil {
			return ctrl.Result{}, err
		}
		r.free(ctx, eip.Name)
		return ctrl.Result{}, nil
	}
	r.waiting.Set(eip.Name, subnetOf(eip))
	s.allocation, s.problem, s.err = r.hold(ctx, eip)
	if len(s.allocation.Addresses) > 0 || eip.DeletionTimestamp != nil {
		r.waiting.Set(eip.Name)
	}
	if len(s.allocation.Addresses) > 0 && eip.DeletionTimestamp == nil {
		if err := r.label(ctx, eip, s.allocation.Addresses); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: releases.next}, errors.Join(k8s.Unless(s.err, reservation.ErrWaiting), r.patchStatus(ctx, eip, s))
}

// hold returns the allocation of an OvnEip; it makes one if there is none, unless the OvnEip is being deleted.
func (r *Reconciler) hold(ctx context.Context, eip *kubeovnv1.OvnEip) (ipam.Allocation, *validation.Problem, error) {
	request := requestOf(eip)
	if eip.DeletionTimestamp != nil {
		allocation, _ := r.Allocator.Lookup(request.Holder)
		return allocation, nil, nil
	}
	return r.reserver().Hold(ctx, request, inDefaultVpc)
}

// inDefaultVpc returns a problem if a subnet is not in the default VPC. The external network is the same for all VPCs, and nodes connect
// it to the default VPC.
func inDefaultVpc(subnet *kubeovnv1.Subnet) *validation.Problem {
	if vpc := lookup.VpcOf(subnet); vpc != kubeovnv1.DefaultVpc {
		return validation.Invalid("subnet %s is of VPC %s: create an OvnEip of one of VPC %s, by which clients outside come", subnet.Name, vpc, kubeovnv1.DefaultVpc)
	}
	return nil
}

func (r *Reconciler) free(ctx context.Context, name string) {
	r.waiting.Set(name)
	allocations.Release(logr.FromContextOrDiscard(ctx), r.Allocator, translate.OvnEipHolder(name), "the OvnEip is deleted")
}

// uses are the values of `status.nat`, by kind of the user, in the order of the status.
var uses = []struct{ kind, value string }{
	{translate.KindOvnFip, "fip"}, {translate.KindOvnSnatRule, "snat"}, {translate.KindOvnDnatRule, "dnat"}, {translate.KindRouterLBRule, "lb"}, {translate.KindService, "lb"},
}

// users returns a description of each user that blocks the deletion of an OvnEip: rules of all kinds, Services with its addresses, and the VPC whose router's port has the addresses.
func (r *Reconciler) users(ctx context.Context, eip *kubeovnv1.OvnEip) ([]string, error) {
	name := eip.Name
	var rules kubeovnv1.RouterLBRuleList
	if err := r.Client.List(ctx, &rules, client.MatchingFields{indexEip: name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list RouterLBRules by OvnEip: %w", err)
	}
	users := make([]string, 0, len(rules.Items))
	translating, err := r.Networks.NATRulesBy(ctx, "eip/"+name)
	if err != nil {
		return nil, err
	}
	for _, rule := range translating {
		users = append(users, rule.Kind+" "+rule.GetName())
	}
	if eip.Spec.Type == kubeovnv1.OvnEipTypeLRP {
		vpcs, err := r.Networks.VpcsWithExternal(ctx, subnetOf(eip))
		if err != nil {
			return nil, err
		}
		for _, vpc := range vpcs {
			if translate.ExternalEip(vpc, subnetOf(eip)) == name {
				users = append(users, "VPC "+vpc)
			}
		}
	}
	for i := range rules.Items {
		users = append(users, "RouterLBRule "+rules.Items[i].Name)
	}
	for _, claim := range r.Networks.ServiceClaims.Of(name) {
		users = append(users, claim.String())
	}
	slices.Sort(users)
	return slices.Compact(users), nil // a Service has a claim for its applied ports, and one for others
}
