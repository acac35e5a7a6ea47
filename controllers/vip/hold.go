// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vip

import (
	"cmp"
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/reservation"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// Restore restores the allocations of Vips from their status. Call it before any allocation, and after the allocations of ports, including absent
// pods, are restored: one of these may be a shared allocation of a Vip's address.
func (r *Reconciler) Restore(ctx context.Context) error {
	var vips kubeovnv1.VipList
	if err := r.Client.List(ctx, &vips, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list Vips: %w", err)
	}
	for i := range vips.Items {
		r.reserver().Restore(ctx, requestOf(&vips.Items[i]))
	}
	return nil
}

func (r *Reconciler) reserver() reservation.Reserver {
	return reservation.Reserver{Client: r.Client, Allocator: r.Allocator, Networks: r.Networks}
}

func subnetOf(vip *kubeovnv1.Vip) string { return cmp.Or(vip.Spec.Subnet, kubeovnv1.DefaultSubnet) }

func requestOf(vip *kubeovnv1.Vip) reservation.Request {
	return reservation.Request{
		What: "a Vip", Holder: translate.VipHolder(vip.Name), Subnet: subnetOf(vip), Shareable: true,
		SpecAddresses: [2]string{vip.Spec.V4IP, vip.Spec.V6IP}, StatusAddresses: [2]string{vip.Status.V4IP, vip.Status.V6IP},
		SpecMAC: vip.Spec.MACAddress, StatusMAC: vip.Status.MAC,
	}
}

// hold returns the Vip's allocation; it makes one if there is none, unless the Vip is being deleted.
func (r *Reconciler) hold(ctx context.Context, vip *kubeovnv1.Vip) (ipam.Allocation, *validation.Problem, error) {
	request := requestOf(vip)
	if vip.DeletionTimestamp != nil {
		allocation, _ := r.Allocator.Lookup(request.Holder)
		return allocation, nil, nil
	}
	return r.reserver().Hold(ctx, request, nil)
}
