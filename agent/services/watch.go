// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
)

// indexService finds EndpointSlices by their Service.
const indexService = "endpointslice.service"

// indexLocal finds Services by their externalTrafficPolicy.
const indexLocal = "service.external"

// watch registers event handlers for Services, EndpointSlices, the CIDRs of Services, and IP objects of nodes. It waits for the caches.
func (p *Proxy) watch(ctx context.Context) error {
	err := p.Cache.IndexField(ctx, &discoveryv1.EndpointSlice{}, indexService, func(o client.Object) []string {
		return []string{o.GetLabels()[discoveryv1.LabelServiceName]}
	})
	if err != nil {
		return fmt.Errorf("index EndpointSlices by Service: %w", err)
	}
	err = p.Cache.IndexField(ctx, &corev1.Service{}, indexLocal, func(o client.Object) []string {
		return []string{string(o.(*corev1.Service).Spec.ExternalTrafficPolicy)}
	})
	if err != nil {
		return fmt.Errorf("index Services by their policy: %w", err)
	}
	for _, w := range []struct {
		kind  client.Object
		touch func(client.Object)
	}{
		{&corev1.Service{}, func(o client.Object) { p.touch(client.ObjectKeyFromObject(o)) }},
		{&discoveryv1.EndpointSlice{}, func(o client.Object) {
			p.touch(types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetLabels()[discoveryv1.LabelServiceName]})
		}},
		{&networkingv1.ServiceCIDR{}, func(client.Object) { p.raise(&p.cidrs) }},
		{&v1.IP{}, func(client.Object) { p.raise(&p.nodes) }},
	} {
		if _, ok := w.kind.(*networkingv1.ServiceCIDR); ok && !p.CIDRs.Served() {
			continue
		}
		informer, err := p.Cache.GetInformer(ctx, w.kind)
		if err != nil {
			return fmt.Errorf("watch %T: %w", w.kind, err)
		}
		registration, err := informer.AddEventHandler(handler(w.touch))
		if err != nil {
			return fmt.Errorf("watch %T: %w", w.kind, err)
		}
		if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return nil // ctx ended
		}
	}
	return nil
}

// handler calls touch for each added or deleted object, and for the old and the new state of an updated one.
func handler(touch func(client.Object)) toolscache.ResourceEventHandler {
	call := func(o any) {
		if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if object, ok := o.(client.Object); ok {
			touch(object)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: call, DeleteFunc: call, UpdateFunc: func(old, now any) {
			call(old)
			call(now)
		},
	}
}

func (p *Proxy) touch(services ...types.NamespacedName) {
	p.mark(services)
	select {
	case p.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// mark adds Services to the next pass, without waking the loop.
func (p *Proxy) mark(services []types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range services {
		p.dirty[s] = true
	}
}

// raise sets cidrs or nodes, and wakes the loop.
func (p *Proxy) raise(flag *bool) {
	p.mu.Lock()
	*flag = true
	p.mu.Unlock()
	p.touch()
}

// touched returns the changes since its last call, and clears them.
func (p *Proxy) touched(ctx context.Context) (services []types.NamespacedName, cidrs bool, err error) {
	p.mu.Lock()
	nodes := p.nodes
	p.nodes = false
	p.mu.Unlock()
	if nodes {
		if err := p.touchLocal(ctx); err != nil {
			return nil, false, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.dirty {
		services = append(services, s)
	}
	clear(p.dirty)
	cidrs, p.cidrs = p.cidrs, false
	return services, cidrs, nil
}

// touchLocal marks the Services for which this node serves the node ports of other nodes to itself.
func (p *Proxy) touchLocal(ctx context.Context) error {
	var list corev1.ServiceList
	err := p.Cache.List(ctx, &list, client.MatchingFields{indexLocal: string(corev1.ServiceExternalTrafficPolicyLocal)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("list Services with a Local policy: %w", err)
	}
	local := make([]types.NamespacedName, 0, len(list.Items))
	for i := range list.Items {
		local = append(local, client.ObjectKeyFromObject(&list.Items[i]))
	}
	p.mark(local)
	return nil
}
