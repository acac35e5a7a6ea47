// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/validation"
)

// setDefaults fills the fields that a user left empty, so that they show and other programs can read them. A field that is set is
// not changed, not even excludeIps without the gateway, which the allocator keeps back anyway: whoever applies a manifest over and
// over would undo it each time. Two exceptions: the protocol can only be what the CIDRs are, and a gateway of one family of two is
// completed.
func setDefaults(name string, spec *kubeovnv1.SubnetSpec) {
	spec.Provider = cmp.Or(spec.Provider, kubeovnv1.ProviderOVN)
	if spec.Provider == kubeovnv1.ProviderOVN {
		spec.Vpc = cmp.Or(spec.Vpc, kubeovnv1.DefaultVpc)
		spec.GatewayType = cmp.Or(spec.GatewayType, kubeovnv1.GatewayDistributed)
	}
	network, problem := validation.Subnet(name, spec)
	if problem != nil || len(network.CIDRs) == 0 {
		return
	}
	spec.Protocol = ipfamily.Protocol(network.CIDRs)
	if given, _ := ipfamily.ParseAddrs(spec.Gateway); len(given) < len(network.Gateways) {
		spec.Gateway = ipfamily.Join(network.Gateways)
	}
	if len(spec.ExcludeIPs) == 0 {
		for _, gateway := range network.Gateways {
			spec.ExcludeIPs = append(spec.ExcludeIPs, gateway.String())
		}
	}
}

// Defaults are the addresses of the subnets that always exist.
type Defaults struct {
	// PodCIDRs of `ovn-default`, one per family.
	PodCIDRs []netip.Prefix
	// JoinCIDRs of `join`, one per family.
	JoinCIDRs []netip.Prefix
}

// CreateDefaults creates the subnets `ovn-default` and `join` where they are absent. One that is there is left as it is, and so is
// one that its user deleted, until the next start.
func CreateDefaults(ctx context.Context, c client.Client, d Defaults) error {
	for _, subnet := range []*kubeovnv1.Subnet{
		{
			ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.JoinSubnet},
			Spec:       kubeovnv1.SubnetSpec{CIDRBlock: ipfamily.Join(d.JoinCIDRs)},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultSubnet},
			Spec:       kubeovnv1.SubnetSpec{CIDRBlock: ipfamily.Join(d.PodCIDRs), Default: true, NATOutgoing: true},
		},
	} {
		setDefaults(subnet.Name, &subnet.Spec)
		if err := k8s.CreateMissing(ctx, c, subnet); err != nil {
			return fmt.Errorf("make the default subnets: %w", err)
		}
	}
	return nil
}
