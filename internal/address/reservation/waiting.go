// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reservation

import (
	"context"
	"net/netip"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
)

// WakeDelay is the delay after a change in a subnet's use before waiting objects are retried. Changes in that time trigger one
// retry.
const WakeDelay = 100 * time.Millisecond

// Waiting holds the objects that wait for a change in the use of a subnet's addresses. The zero value is ready.
type Waiting struct {
	mu       sync.Mutex
	subnets  map[string]string
	bySubnet map[string]map[string]struct{}
}

// Add registers an object as waiting. Call it before reading the state that it waits for, or a change can be missed.
func (w *Waiting) Add(subnet, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(name)
	if w.subnets == nil {
		w.subnets, w.bySubnet = map[string]string{}, map[string]map[string]struct{}{}
	}
	if w.bySubnet[subnet] == nil {
		w.bySubnet[subnet] = map[string]struct{}{}
	}
	w.subnets[name] = subnet
	w.bySubnet[subnet][name] = struct{}{}
}

// Remove unregisters an object.
func (w *Waiting) Remove(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(name)
}

func (w *Waiting) drop(name string) {
	subnet := w.subnets[name]
	delete(w.subnets, name)
	if delete(w.bySubnet[subnet], name); len(w.bySubnet[subnet]) == 0 {
		delete(w.bySubnet, subnet)
	}
}

// In returns the objects that wait for a subnet.
func (w *Waiting) In(subnet string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := make([]string, 0, len(w.bySubnet[subnet]))
	for name := range w.bySubnet[subnet] {
		names = append(names, name)
	}
	return names
}

// OnHosts enqueues the waiting objects whose subnets contain addresses of a node or the API server that changes. The IP objects of nodes have the
// addresses of nodes.
func (w *Waiting) OnHosts(b *builder.Builder, networks *lookup.Networks) *builder.Builder {
	wake := func(addresses func(client.Object) []netip.Addr) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			subnets, err := networks.Overlapping(ctx, kubeovnv1.DefaultVpc, ipfamily.Hosts(addresses(o)))
			if err != nil {
				return nil // the cache is stopping
			}
			var requests []reconcile.Request
			for _, s := range subnets {
				requests = append(requests, k8s.Requests(w.In(s.Name)...)...)
			}
			return requests
		})
	}
	ofNode := func(o client.Object) []netip.Addr { return k8s.AddressesOfNode(o.(*kubeovnv1.IP)) }
	ofServer := func(o client.Object) []netip.Addr { return lookup.EndpointAddresses(o.(*discoveryv1.EndpointSlice)) }
	return b.
		Watches(&kubeovnv1.IP{}, wake(ofNode), builder.WithPredicates(k8s.NodeRecords(k8s.Changed(func(ip *kubeovnv1.IP) string {
			return ipfamily.Join(k8s.AddressesOfNode(ip))
		})))).
		Watches(&discoveryv1.EndpointSlice{}, wake(ofServer), builder.WithPredicates(predicate.NewPredicateFuncs(lookup.IsOfAPIServer)))
}
