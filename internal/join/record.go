// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Object returns the IP object of a lease.
func Object(name string, lease ipam.Lease) *kubeovnv1.IP {
	return &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			kubeovnv1.LabelSubnet: lease.Subnet, lease.Subnet: "", kubeovnv1.LabelReserved: kubeovnv1.ReservedForPod,
		}},
		Spec: kubeovnv1.IPSpec{
			Subnet:      lease.Subnet,
			IPAddress:   ipfamily.Join(lease.Addresses),
			MACAddress:  lease.MAC.String(),
			V4IPAddress: ofFamily(lease.Addresses, ipfamily.IPv4),
			V6IPAddress: ofFamily(lease.Addresses, ipfamily.IPv6),
		},
	}
}

// Record creates or updates an IP object.
func Record(ctx context.Context, c client.Client, want *kubeovnv1.IP) error {
	ip, err := k8s.Find[kubeovnv1.IP](ctx, c, client.ObjectKeyFromObject(want))
	if err != nil {
		return fmt.Errorf("get IP %s: %w", want.Name, err)
	}
	if ip == nil {
		return create(ctx, c, want)
	}
	base := ip.DeepCopy()
	if ip.Spec.Subnet != want.Spec.Subnet || ip.Spec.IPAddress != want.Spec.IPAddress || ip.Spec.MACAddress != want.Spec.MACAddress {
		return replace(ctx, c, ip, want)
	}
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
	return create(ctx, c, want)
}

// Forget deletes an IP object, unless ours returns false for it.
func Forget(ctx context.Context, c client.Client, name string, ours func(*kubeovnv1.IP) bool) error {
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

// ofFamily returns the address of one family, or an empty string.
func ofFamily(addrs []netip.Addr, family ipfamily.Family) string {
	for _, a := range addrs {
		if ipfamily.Of(a) == family {
			return a.String()
		}
	}
	return ""
}

// Holder returns the name of the object that an IP object belongs to; empty if it belongs to another kind of object.
type Holder func(*kubeovnv1.IP) string

// Source enqueues the objects whose IP objects are changed or deleted, once the gate is open. Creations are ignored, because the
// reconcilers create the IP objects themselves. A reconciliation for one, before the cache shows the last write, would write it
// twice.
func (h Holder) Source(informers cache.Cache, gate *reconciler.StartGate, changed predicate.Predicate) source.Source {
	notCreated := predicate.Funcs{CreateFunc: func(event.CreateEvent) bool { return false }}
	wake := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		if name := h(o.(*kubeovnv1.IP)); name != "" {
			return k8s.Requests(name)
		}
		return nil
	})
	return gate.After(source.Kind[client.Object](informers, &kubeovnv1.IP{}, wake, changed, notCreated))
}

// All lists the objects that have IP objects.
func (h Holder) All(reader client.Reader) reconciler.Names {
	return func(ctx context.Context) ([]types.NamespacedName, error) {
		var ips kubeovnv1.IPList
		if err := reader.List(ctx, &ips, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list IPs: %w", err)
		}
		var names []types.NamespacedName
		for i := range ips.Items {
			if name := h(&ips.Items[i]); name != "" {
				names = append(names, types.NamespacedName{Name: name})
			}
		}
		return names, nil
	}
}
