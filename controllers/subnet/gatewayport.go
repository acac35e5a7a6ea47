// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/validation"
)

// interconnectionInUse returns a problem if something else has an address that the spec asks for.
func (r *Reconciler) interconnectionInUse(in inputs, asked []netip.Addr) *validation.Problem {
	if len(asked) == 0 {
		return nil
	}
	for _, address := range asked {
		if host := in.hosts[address]; host != "" {
			return validation.InUse("u2oInterconnectionIP %s is the address of %s: choose another one", address, host)
		}
	}
	if held := r.holders(in.subnet.Name, func(a netip.Addr) bool { return slices.Contains(asked, a) }); len(held) > 0 {
		return validation.InUse("u2oInterconnectionIP is in use: %s: delete its owner, or choose another one", listed(held))
	}
	return nil
}

// viewProvider is the part of a ProviderNetwork that its subnets depend on.
func viewProvider(p *kubeovnv1.ProviderNetwork) string {
	return strings.Join(p.Status.ReadyNodes, ",") + " " + strings.Join(p.Status.Vlans, ",")
}

// onProvider enqueues the subnets of a ProviderNetwork that have a gateway port.
func (r *Reconciler) onProvider(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, vlan := range o.(*kubeovnv1.ProviderNetwork).Status.Vlans {
		requests = append(requests, r.ofVlan(ctx, vlan, func(s *kubeovnv1.Subnet) bool { return s.Spec.OnRouter() })...)
	}
	return requests
}

// onHost enqueues the subnets with a gateway port of the ProviderNetworks for which a node is ready.
func (r *Reconciler) onHost(ctx context.Context, node client.Object) []reconcile.Request {
	var networks kubeovnv1.ProviderNetworkList
	if err := r.Client.List(ctx, &networks, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	for i := range networks.Items {
		if slices.Contains(networks.Items[i].Status.ReadyNodes, node.GetName()) {
			requests = append(requests, r.onProvider(ctx, &networks.Items[i])...)
		}
	}
	return requests
}
