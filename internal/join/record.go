// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
)

// Object is the IP object of a lease.
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

// Record writes an IP object as it is wanted.
func Record(ctx context.Context, c client.Client, want *kubeovnv1.IP) error {
	ip := &kubeovnv1.IP{}
	err := c.Get(ctx, client.ObjectKeyFromObject(want), ip)
	if apierrors.IsNotFound(err) {
		return create(ctx, c, want)
	}
	if err != nil {
		return fmt.Errorf("get IP %s: %w", want.Name, err)
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

// with is what there is and what is wanted.
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

// replace writes an IP object anew, since addresses of one cannot change.
func replace(ctx context.Context, c client.Client, have, want *kubeovnv1.IP) error {
	if err := client.IgnoreNotFound(c.Delete(ctx, have, client.Preconditions{UID: &have.UID})); err != nil {
		return fmt.Errorf("delete IP %s: %w", have.Name, err)
	}
	return create(ctx, c, want)
}

// Forget deletes an IP object. One of that name that is not ours is left alone.
func Forget(ctx context.Context, c client.Client, name string, ours func(*kubeovnv1.IP) bool) error {
	ip := &kubeovnv1.IP{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, ip); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get IP %s: %w", name, err)
	}
	if !ours(ip) {
		return nil
	}
	if err := client.IgnoreNotFound(c.Delete(ctx, ip)); err != nil {
		return fmt.Errorf("delete IP %s: %w", name, err)
	}
	return nil
}

// ofFamily is the address of one family, or empty.
func ofFamily(addrs []netip.Addr, family ipfamily.Family) string {
	for _, a := range addrs {
		if ipfamily.Of(a) == family {
			return a.String()
		}
	}
	return ""
}

// Holder is the object that an IP object is of, by name; empty for those of others.
type Holder func(*kubeovnv1.IP) string

// Source enqueues the objects whose IP objects change or go, once the gate is open. New IP objects are the reconcilers' own: waking for one,
// before the cache shows what was written just before, would write that twice.
func (h Holder) Source(informers cache.Cache, gate *k8s.Gate, changed predicate.Predicate) source.Source {
	notCreated := predicate.Funcs{CreateFunc: func(event.CreateEvent) bool { return false }}
	wake := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		if name := h(o.(*kubeovnv1.IP)); name != "" {
			return k8s.Requests(name)
		}
		return nil
	})
	return gate.Behind(source.Kind[client.Object](informers, &kubeovnv1.IP{}, wake, changed, notCreated))
}

// All lists the objects that have IP objects.
func (h Holder) All(reader client.Reader) k8s.Names {
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
