// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// underlayProvider is the ProviderNetwork of all Vlans. The agents, which make its bridges, do not run.
const underlayProvider = "net1"

// underlay creates subnets and pods in them, first in the overlay and then in VLANs of a physical network.
func (b *bench) underlay(ctx context.Context) error {
	c, err := b.world.objects()
	if err != nil {
		return err
	}
	provider := &kubeovnv1.ProviderNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: underlayProvider}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"},
	}
	if err := c.Create(ctx, provider); err != nil {
		return fmt.Errorf("create ProviderNetwork %s: %w", underlayProvider, err)
	}
	for _, tagged := range []bool{false, true} {
		where, what := fmt.Sprintf("%d overlay subnets", b.options.vlans), "one overlay subnet at once"
		all := make([]network, b.options.vlans)
		for i := range all {
			all[i] = nthNetwork(i, false)
			if tagged {
				all[i] = nthNetwork(b.options.vlans+i, false)
				all[i].tag = 1 + i
			}
		}
		if tagged {
			where, what = fmt.Sprintf("%d underlay subnets", b.options.vlans), "one Vlan and subnet at once"
		}
		if _, err := b.came(ctx, where, what, all, b.options.parallel); err != nil {
			return err
		}
		b.loader.subnets, b.loader.where = subnetNames(all), " in "+where
		if err := b.burst(ctx, b.options.sizes[0]); err != nil {
			return err
		}
	}
	b.loader.subnets, b.loader.where = nil, ""
	return nil
}
