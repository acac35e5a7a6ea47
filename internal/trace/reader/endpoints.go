// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/endpoints"
	"github.com/kiln-net/kiln/internal/trace"
)

func (r *reading) rule(ctx context.Context, g *requests, service, vip string) {
	if vip != "" && !r.isTarget(ipfamily.ValidAddrs(strings.Split(vip, ",")...)) {
		return
	}
	if namespace, name, ok := strings.Cut(service, "/"); ok {
		r.slicesOf(ctx, g, namespace, name)
	}
}

func (r *reading) slicesOf(ctx context.Context, g *requests, namespace, name string) {
	if !r.once("slices/" + namespace + "/" + name) {
		return
	}
	found := &discoveryv1.EndpointSliceList{}
	g.Go(list(ctx, r, trace.ResourceSlices, namespace, found, func() { r.s.Slices = append(r.s.Slices, pointers(found.Items)...) },
		client.MatchingLabels{discoveryv1.LabelServiceName: name}))
}

// endpoints reads the pods of endpoints, and the pods that a Service without endpoints selects.
func (r *reading) endpoints(ctx context.Context, g *requests) {
	r.around(ctx, g)
	r.inside(ctx, g)
	pods, served := map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
	for _, slice := range r.s.Slices {
		for i := range slice.Endpoints {
			served[types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}] = true
			r.endpoint(ctx, g, slice.Namespace, &slice.Endpoints[i], pods)
		}
	}
	for _, service := range r.s.Services {
		if !served[types.NamespacedName{Namespace: service.Namespace, Name: service.Name}] && len(service.Spec.Selector) > 0 {
			pods := &corev1.PodList{}
			g.Go(list(ctx, r, trace.ResourcePods, service.Namespace, pods, func() { r.addPods(pointers(pods.Items)) },
				client.MatchingLabels(service.Spec.Selector), client.Limit(maxUnready)))
		}
	}
}

// endpoint reads the pod of an endpoint, or the node that has its address. pods are the pods of endpoints until here.
func (r *reading) endpoint(ctx context.Context, g *requests, namespace string, e *discoveryv1.Endpoint, pods map[types.NamespacedName]bool) {
	address, err := netip.ParseAddr(endpoints.AddressOf(e))
	if err != nil {
		return
	}
	ref := e.TargetRef
	switch {
	case ref == nil && e.NodeName != nil:
		r.node(ctx, g, *e.NodeName)
	case ref == nil:
		r.nodeAt(ctx, g, address)
	case ref.Kind == "Pod":
		key := types.NamespacedName{Namespace: namespace, Name: ref.Name}
		if !pods[key] && len(pods) >= maxPods {
			if r.s.Omitted == nil {
				r.s.Omitted = map[netip.Addr]bool{}
			}
			r.s.Omitted[address] = true
			return
		}
		pods[key] = true
		g.Go(get(ctx, r, trace.ResourcePods, namespace, ref.Name, &r.s.Pods))
	}
}
