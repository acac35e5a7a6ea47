// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/iprecord"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Object returns the IP object of an allocation in the join subnet.
func Object(name string, allocation ipam.Allocation) *kubeovnv1.IP {
	ip := iprecord.Of(name, allocation)
	ip.Labels[kubeovnv1.LabelSubnet], ip.Labels[allocation.Subnet] = allocation.Subnet, ""
	return ip
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
