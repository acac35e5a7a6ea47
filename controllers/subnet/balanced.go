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
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// indexBalanced is an index by subnet of the Vips and OvnEips that load balancers serve.
const indexBalanced = "subnet.balanced"

func balancedIn(o client.Object) []string {
	switch o := o.(type) {
	case *kubeovnv1.Vip:
		if k8s.AppliedVip(o).Spec.Type == kubeovnv1.VipTypeSwitchLB {
			return []string{cmp.Or(o.Spec.Subnet, kubeovnv1.DefaultSubnet)}
		}
	case *kubeovnv1.OvnEip:
		if o.Spec.Type == "" || o.Spec.Type == kubeovnv1.OvnEipTypeNAT {
			return []string{cmp.Or(o.Spec.ExternalSubnet, kubeovnv1.DefaultExternalSubnet)}
		}
	}
	return nil
}

// balanced returns the addresses of a subnet that load balancers serve. No port has them, so that the router answers ARP and neighbour
// discovery for them.
func (r *Reconciler) balanced(ctx context.Context, subnet string) ([]netip.Addr, error) {
	var vips kubeovnv1.VipList
	if err := r.Client.List(ctx, &vips, client.MatchingFields{indexBalanced: subnet}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Vips of load balancers: %w", err)
	}
	var eips kubeovnv1.OvnEipList
	if err := r.Client.List(ctx, &eips, client.MatchingFields{indexBalanced: subnet}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list OvnEips: %w", err)
	}
	var texts []string
	for i := range vips.Items {
		texts = append(texts, vips.Items[i].Status.V4IP, vips.Items[i].Status.V6IP)
	}
	for i := range eips.Items {
		texts = append(texts, eips.Items[i].Status.V4IP, eips.Items[i].Status.V6IP)
	}
	addrs := ipfamily.ValidAddrs(texts...)
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs, nil
}

// viewBalanced returns the fields of a Vip that the subnet depends on.
func viewBalanced(vip *kubeovnv1.Vip) [3]string {
	return [3]string{k8s.AppliedVip(vip).Spec.Type, vip.Status.V4IP, vip.Status.V6IP}
}

func viewEip(eip *kubeovnv1.OvnEip) [2]string {
	return [2]string{eip.Status.V4IP, eip.Status.V6IP}
}

func subnetOfBalanced(_ context.Context, o client.Object) []reconcile.Request {
	return k8s.Requests(balancedIn(o)...)
}
