// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vip allocates the addresses of Vips, and lets pods share them through virtual ports.
package vip

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/reservation"
	"github.com/kiln-net/kiln/internal/address/vipusers"
	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// Reconciler allocates the addresses of Vips. It allocates them before the Vip's status contains them, and frees them once the Vip is
// deleted. A pod that uses a Vip as its own address has a shared allocation of it.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Networks   *lookup.Networks
	Vips       *vipusers.Index
	// Grants reports which namespaces may use a Vip.
	Grants   *grants.Rules
	Recorder events.EventRecorder
	Gate     *reconciler.StartGate

	// waiting has the Vips that wait for a free address, or for a pod that uses the address as its own, by subnet.
	waiting interest.Index[string, string]
}

// state is the result of applying a Vip.
type state struct {
	allocation ipam.Allocation
	problem    *validation.Problem
	users      []vipusers.User // pods that may use the Vip
	usedBy     string          // the port that uses the addresses as its own
	err        error
}

// Reconcile brings a Vip's allocation and its virtual ports up to date.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	vip, err := k8s.Find[kubeovnv1.Vip](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get Vip: %w", err)
	}
	if vip == nil {
		return ctrl.Result{}, r.remove(ctx, req.Name)
	}
	if vip.DeletionTimestamp == nil {
		if err := k8s.AddFinalizer(ctx, r.Client, vip); err != nil {
			return ctrl.Result{}, err
		}
	}
	r.waiting.Set(vip.Name, subnetOf(vip)) // before the allocation, so that no change is missed
	s := r.serve(ctx, vip)
	if vip.DeletionTimestamp != nil && len(s.keepers()) == 0 {
		return ctrl.Result{}, r.end(ctx, vip)
	}
	if !s.waits(vip) {
		r.waiting.Set(vip.Name)
	}
	return ctrl.Result{}, errors.Join(k8s.Unless(k8s.Unless(s.err, reservation.ErrWaiting), northbound.ErrWaiting), r.patchStatus(ctx, vip, s))
}

// serve allocates the Vip's addresses, and applies virtual ports for the pods that share them by the last valid spec. The record of a new valid spec enqueues
// the Vip again.
func (r *Reconciler) serve(ctx context.Context, vip *kubeovnv1.Vip) (s state) {
	s.allocation, s.problem, s.err = r.hold(ctx, vip)
	s.usedBy = r.Allocator.UserOf(translate.VipHolder(vip.Name))
	for _, user := range r.Vips.UsersOf(vip.Name) {
		denied, err := r.Grants.Vip(ctx, user.Pod.Namespace, vip)
		if err != nil {
			s.err = errors.Join(s.err, err)
			return s
		}
		if denied == "" {
			s.users = append(s.users, user)
		}
	}
	in := translate.VipInputs{Name: vip.Name, Subnet: s.allocation.Subnet, Addresses: s.allocation.Addresses}
	if s.usedBy == "" && k8s.AppliedVip(vip).Spec.Type == "" {
		in.Parents = s.parents()
	}
	if len(in.Parents) > 0 {
		var err error
		if in.Vpc, err = r.leavesBy(ctx, in.Subnet); err != nil {
			s.err = errors.Join(s.err, err)
			return s
		}
	}
	if err := r.apply(ctx, vip.Name, translate.Vip(in)); err != nil {
		s.err = errors.Join(s.err, err)
	}
	return s
}

// leavesBy returns the VPC through whose router traffic leaves a subnet, or "" if the subnet's gateway is a router of the physical network.
func (r *Reconciler) leavesBy(ctx context.Context, name string) (string, error) {
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("get subnet %s: %w", name, err)
	}
	if subnet == nil {
		return "", nil
	}
	if subnet = k8s.WithValidSpec(subnet); subnet == nil || subnet.Spec.PhysicalGateway() {
		return "", nil
	}
	return lookup.VpcOf(subnet), nil
}

// parents returns the ports that share the Vip's addresses in its subnet.
func (s *state) parents() []string {
	var ports []string
	for _, user := range s.users {
		if user.Use&vipusers.Shared != 0 && s.allocation.Subnet != "" && user.Subnet == s.allocation.Subnet {
			ports = append(ports, user.Port.Name)
		}
	}
	return slices.Compact(ports) // the two pods of a migrating machine have one port
}

// waits reports whether a change in the use of the subnet's addresses may change the Vip's state.
func (s *state) waits(vip *kubeovnv1.Vip) bool {
	return s.problem != nil || errors.Is(s.err, reservation.ErrWaiting) || s.usedBy != "" && (vip.DeletionTimestamp != nil || len(s.parents()) > 0)
}

// keepers returns a description of each user that blocks the deletion of a Vip. Pods that only match its selector do not block it.
func (s *state) keepers() []string {
	var names []string
	for _, user := range s.users {
		if user.Use&(vipusers.Own|vipusers.Named) != 0 {
			names = append(names, "pod "+user.Pod.String())
		}
	}
	if len(names) == 0 && s.usedBy != "" {
		names = append(names, "port "+s.usedBy)
	}
	return names
}

// end frees the addresses of a deleted Vip without users, and removes its finalizer.
func (r *Reconciler) end(ctx context.Context, vip *kubeovnv1.Vip) error {
	if err := r.remove(ctx, vip.Name); err != nil {
		return err
	}
	return k8s.RemoveFinalizer(ctx, r.Client, vip)
}

// remove removes the virtual ports of a Vip, and frees its addresses. A pod that uses them as its own keeps them.
func (r *Reconciler) remove(ctx context.Context, name string) error {
	r.waiting.Set(name)
	if err := r.apply(ctx, name, nil); err != nil {
		return err
	}
	allocations.Release(logr.FromContextOrDiscard(ctx), r.Allocator, translate.VipHolder(name), "the Vip is deleted")
	return nil
}

func (r *Reconciler) apply(ctx context.Context, name string, rows []desired.Row) error {
	if err := r.Northbound.Apply(ctx, translate.VipOwner(name), rows); err != nil {
		return fmt.Errorf("apply the virtual ports: %w", err)
	}
	return nil
}
