// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

// indexBalanced finds the Vips of a subnet that load balancers serve.
const indexBalanced = "subnet.balanced"

func balancedIn(o client.Object) []string {
	vip := o.(*kubeovnv1.Vip)
	if vip.Spec.Type != kubeovnv1.VipTypeSwitchLB {
		return nil
	}
	return []string{cmp.Or(vip.Spec.Subnet, kubeovnv1.DefaultSubnet)}
}

// balanced are those addresses of a subnet that load balancers serve: no port has them, so the router says that it does.
func (r *Reconciler) balanced(ctx context.Context, subnet string) ([]netip.Addr, error) {
	var vips kubeovnv1.VipList
	if err := r.Client.List(ctx, &vips, client.MatchingFields{indexBalanced: subnet}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Vips of load balancers: %w", err)
	}
	var addrs []netip.Addr
	for i := range vips.Items {
		for _, text := range []string{vips.Items[i].Status.V4IP, vips.Items[i].Status.V6IP} {
			if a, err := ipfamily.ParseAddr(text); err == nil {
				addrs = append(addrs, a)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs, nil
}

// viewBalanced is what the subnet looks at in a Vip.
func viewBalanced(vip *kubeovnv1.Vip) [3]string {
	return [3]string{vip.Spec.Type, vip.Status.V4IP, vip.Status.V6IP}
}

func subnetOfBalanced(_ context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, subnet := range balancedIn(o) {
		requests = append(requests, named(subnet))
	}
	return requests
}
