// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// If no admission policy prevents it, users can write a pod's annotations, which the node acts on. Therefore the annotations must agree
// with the subnet, which only administrators and the controller write.

// unfit returns the reason why a pod's network does not agree with its subnet, or "". The watch of subnets may lag behind the watch of
// pods, so a network that is unfit now may fit after the subnet changes.
func (p *Pods) unfit(ctx context.Context, network v1.PodNetwork) (string, error) {
	subnet, err := k8s.Find[v1.Subnet](ctx, p.cache, client.ObjectKey{Name: network.LogicalSwitch}, client.UnsafeDisableDeepCopy)
	switch {
	case err != nil:
		return "", fmt.Errorf("read subnet %s: %w", network.LogicalSwitch, err)
	case subnet == nil:
		return fmt.Sprintf("its annotations name subnet %q, which is not known", network.LogicalSwitch), nil
	case subnet.Name == v1.JoinSubnet:
		return fmt.Sprintf("its annotations name subnet %s, which is for nodes", subnet.Name), nil
	}
	problem := ""
	for _, spec := range specsOf(subnet) {
		if problem = disagrees(network, spec); problem == "" {
			return "", nil
		}
	}
	if problem == "" {
		problem = "is not valid yet"
	}
	return fmt.Sprintf("its annotations do not agree with subnet %s, which %s", subnet.Name, problem), nil
}

// specsOf returns the specs of a subnet that a pod's network may match: the last validated spec, and the current spec if it is valid.
func specsOf(subnet *v1.Subnet) []*v1.SubnetSpec {
	var specs []*v1.SubnetSpec
	if subnet.Status.ValidatedSpec != nil {
		specs = append(specs, subnet.Status.ValidatedSpec)
	}
	if k8s.ViewSubnet(subnet).Validated {
		specs = append(specs, &subnet.Spec)
	}
	return specs
}

// disagrees returns how the subnet's spec differs from a network, as a clause that follows "which"; "" if they agree.
func disagrees(network v1.PodNetwork, spec *v1.SubnetSpec) string {
	if vpc := cmp.Or(spec.Vpc, v1.DefaultVpc); vpc != network.LogicalRouter {
		return fmt.Sprintf("is of VPC %s, not of %q", vpc, network.LogicalRouter)
	}
	if provider := cmp.Or(spec.Provider, v1.ProviderOVN); provider != network.Provider {
		return fmt.Sprintf("is of provider %s, not of %s", provider, network.Provider)
	}
	if underlay := spec.Vlan != ""; underlay != (network.ProviderNetwork != "") {
		return fmt.Sprintf("has vlan %q, not provider network %q", spec.Vlan, network.ProviderNetwork)
	}
	cidrs, err := ipfamily.ParseCIDRs(spec.CIDRBlock)
	if err != nil {
		return err.Error()
	}
	gateways, err := ipfamily.ParseAddrs(spec.Gateway)
	if err != nil {
		return err.Error()
	}
	families := map[ipfamily.Family]bool{}
	for _, address := range network.Addresses {
		family := ipfamily.Of(address)
		switch {
		case families[family]:
			return fmt.Sprintf("gives a pod one %s address", family)
		case !slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(address) }):
			return fmt.Sprintf("has no address %s", address)
		case slices.Contains(gateways, address):
			return fmt.Sprintf("has its gateway at %s", address)
		}
		families[family] = true
	}
	return ""
}

// followSubnets wakes all waiting requests when a field that unfit reads may have changed. It ignores the counts in a subnet's status,
// which change with every pod.
func (p *Pods) followSubnets(ctx context.Context, c cache.Cache) error {
	informer, err := c.GetInformer(ctx, &v1.Subnet{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch subnets: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { p.wakeAll() },
		UpdateFunc: func(before, after any) {
			was, ok := before.(*v1.Subnet)
			is, same := after.(*v1.Subnet)
			if ok && same && k8s.ViewSubnet(was) != k8s.ViewSubnet(is) {
				p.wakeAll()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch subnets: %w", err)
	}
	return nil
}

func (p *Pods) wakeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, waiting := range p.waiting {
		tell(waiting)
	}
}

func tell(waiting []chan struct{}) {
	for _, changed := range waiting {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}
