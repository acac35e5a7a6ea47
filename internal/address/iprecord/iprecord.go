// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package iprecord maintains the IP objects of addresses that no pod has: nodes, routers and subnets have them.
package iprecord

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
)

// Of returns the IP object of an allocation.
func Of(name string, allocation ipam.Allocation) *kubeovnv1.IP {
	return &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{kubeovnv1.LabelReserved: kubeovnv1.ReservedForPod}},
		Spec: kubeovnv1.IPSpec{
			Subnet:      allocation.Subnet,
			IPAddress:   ipfamily.Join(allocation.Addresses),
			MACAddress:  allocation.MAC.String(),
			V4IPAddress: ofFamily(allocation.Addresses, ipfamily.IPv4),
			V6IPAddress: ofFamily(allocation.Addresses, ipfamily.IPv6),
		},
	}
}

// ofFamily returns the address of one family, or an empty string.
func ofFamily(addrs []netip.Addr, family ipfamily.Family) string {
	for _, a := range addrs {
		if ipfamily.Of(a) == family {
			return a.String()
		}
	}
	return ""
}

// Any is true for all objects. It is for names that only one owner uses.
func Any(*kubeovnv1.IP) bool { return true }

// IsOfSubnet reports whether a subnet itself has an address, not a pod that has a port of the same name.
func IsOfSubnet(ip *kubeovnv1.IP) bool { return ip.Spec.PodName == "" }

// Write creates or updates an IP object, unless ours returns false for the existing one. The error is northbound.ErrWaiting while finalizers delay the
// deletion of an object with a former address.
func Write(ctx context.Context, c client.Client, want *kubeovnv1.IP, ours func(*kubeovnv1.IP) bool) error {
	ip, err := k8s.Find[kubeovnv1.IP](ctx, c, client.ObjectKeyFromObject(want))
	switch {
	case err != nil:
		return fmt.Errorf("get IP %s: %w", want.Name, err)
	case ip == nil:
		return create(ctx, c, want)
	case !ours(ip):
		return nil
	case ip.Spec.Subnet != want.Spec.Subnet || ip.Spec.IPAddress != want.Spec.IPAddress || ip.Spec.MACAddress != want.Spec.MACAddress:
		return replace(ctx, c, ip, want)
	}
	base := ip.DeepCopy()
	ip.Spec = want.Spec
	ip.Labels = with(ip.Labels, want.Labels)
	ip.Annotations = with(ip.Annotations, want.Annotations)
	return k8s.Patch(ctx, c, base, ip)
}

// with returns have with the entries of want added. It changes have.
func with(have, want map[string]string) map[string]string {
	if have == nil {
		return maps.Clone(want)
	}
	maps.Copy(have, want)
	return have
}

func create(ctx context.Context, c client.Client, want *kubeovnv1.IP) error {
	// If it exists, the cache does not have it yet.
	if err := client.IgnoreAlreadyExists(c.Create(ctx, want, k8s.FieldOwner)); err != nil {
		return fmt.Errorf("create IP %s: %w", want.Name, err)
	}
	return nil
}

// replace deletes an IP object and creates it again, because its addresses are immutable.
func replace(ctx context.Context, c client.Client, have, want *kubeovnv1.IP) error {
	if err := client.IgnoreNotFound(c.Delete(ctx, have, client.Preconditions{UID: &have.UID})); err != nil {
		return fmt.Errorf("delete IP %s: %w", have.Name, err)
	}
	err := c.Create(ctx, want, k8s.FieldOwner)
	if apierrors.IsAlreadyExists(err) { // its deletion enqueues the owner
		return fmt.Errorf("%w: IP %s has a former address, and its finalizers delay its deletion: remove them", northbound.ErrWaiting, want.Name)
	}
	if err != nil {
		return fmt.Errorf("create IP %s: %w", want.Name, err)
	}
	return nil
}

// Delete deletes an IP object, unless ours returns false for it. It is idempotent.
func Delete(ctx context.Context, c client.Client, name string, ours func(*kubeovnv1.IP) bool) error {
	ip, err := k8s.Find[kubeovnv1.IP](ctx, c, client.ObjectKey{Name: name})
	if err != nil {
		return fmt.Errorf("get IP %s: %w", name, err)
	}
	if ip == nil || !ours(ip) {
		return nil
	}
	if err := client.IgnoreNotFound(c.Delete(ctx, ip)); err != nil {
		return fmt.Errorf("delete IP %s: %w", name, err)
	}
	return nil
}
