// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reservation

import (
	"context"
	"net/netip"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
)

// WakeDelay is the delay after a change in a subnet's use before waiting objects are retried. Changes in that time trigger one
// retry.
const WakeDelay = 100 * time.Millisecond

// OnHosts enqueues the objects that wait for a subnet with addresses of a node, the API server or an EgressAddress that changes. The IP objects of nodes have the
// addresses of nodes.
func OnHosts(b *builder.Builder, networks *lookup.Networks, waiting *interest.Index[string, string]) *builder.Builder {
	wake := func(addresses func(client.Object) []netip.Addr) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			subnets, err := networks.Overlapping(ctx, kubeovnv1.DefaultVpc, ipfamily.Hosts(addresses(o)))
			if err != nil {
				return nil // the cache is stopping
			}
			var requests []reconcile.Request
			for _, s := range subnets {
				requests = append(requests, k8s.Requests(waiting.Of(s.Name)...)...)
			}
			return requests
		})
	}
	ofNode := func(o client.Object) []netip.Addr { return k8s.AddressesOfNode(o.(*kubeovnv1.IP)) }
	ofServer := func(o client.Object) []netip.Addr { return lookup.EndpointAddresses(o.(*discoveryv1.EndpointSlice)) }
	ofEgress := func(o client.Object) []netip.Addr { return k8s.AddressesOfEgress(o.(*kubeovnv1.EgressAddress)) }
	return b.
		Watches(&kubeovnv1.EgressAddress{}, wake(ofEgress), builder.WithPredicates(k8s.Changed(k8s.ViewAddressesOfEgress))).
		Watches(&kubeovnv1.IP{}, wake(ofNode), builder.WithPredicates(k8s.NodeRecords(k8s.Changed(func(ip *kubeovnv1.IP) string {
			return ipfamily.Join(k8s.AddressesOfNode(ip))
		})))).
		Watches(&discoveryv1.EndpointSlice{}, wake(ofServer), builder.WithPredicates(predicate.NewPredicateFuncs(lookup.IsOfAPIServer)))
}
