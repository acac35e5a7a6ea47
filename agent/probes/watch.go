// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// SetupWithManager registers the controller with its Feed and the events of Open vSwitch. It watches Services, nodes and the API server's
// endpoints only from the first pod with probes on, so that nodes without such pods do not cache all Services.
func (p *Controller) SetupWithManager(mgr ctrl.Manager) error {
	p.mu.Lock() // the manager may start the controller at once
	defer p.mu.Unlock()
	c, err := ctrl.NewControllerManagedBy(mgr).Named("probes").WithOptions(k8s.Workers(1)).WatchesRawSource(&p.requests).Build(p)
	if err != nil {
		return fmt.Errorf("add the controller of probes: %w", err)
	}
	p.watch = func() error {
		kinds := []source.Source{
			onAddresses(mgr, p, &corev1.Service{}, serviceAddresses),
			onAddresses(mgr, p, &v1.IP{}, k8s.AddressesOfNode),
			onAddresses(mgr, p, &discoveryv1.EndpointSlice{}, apiServerAddresses),
		}
		if p.Services.Served() {
			kinds = append(kinds, source.Kind[client.Object](mgr.GetCache(), &networkingv1.ServiceCIDR{}, wake, predicate.GenerationChangedPredicate{}))
		}
		var failed []error
		for _, kind := range kinds {
			failed = append(failed, c.Watch(kind))
		}
		return errors.Join(failed...)
	}
	p.Bridge.Subscribe(func(port string) {
		if seen := p.seen.Load(); port == "" || seen != nil && seen.ports[port] {
			p.Wake()
		}
	})
	p.Wake()
	return nil
}

// wake enqueues the controller's only request.
var wake = handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
	return []reconcile.Request{k8s.Request("")}
})

// onAddresses is a source of events of objects that have, or had, an address of a pod with probes.
func onAddresses[T client.Object](mgr ctrl.Manager, p *Controller, kind T, addresses func(T) []netip.Addr) source.Source {
	concerns := func(o client.Object) bool {
		object, ok := o.(T)
		seen := p.seen.Load()
		return ok && seen != nil && slices.ContainsFunc(addresses(object), func(a netip.Addr) bool { return seen.addresses[a] })
	}
	return source.Kind[client.Object](mgr.GetCache(), kind, wake, predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return concerns(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool { return concerns(e.ObjectOld) || concerns(e.ObjectNew) },
		DeleteFunc: func(e event.DeleteEvent) bool { return concerns(e.Object) },
	})
}
