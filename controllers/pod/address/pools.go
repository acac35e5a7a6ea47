// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"context"
	"fmt"
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// wants returns the allocation requests for a pod without a reservation, in order. They are for the addresses of its Vip, of the pools
// that it names, of the pools of its namespace, or else of the part of its subnets that no pool reserves.
func (c *Chooser) wants(ctx context.Context, claim *Claim) ([]ipam.Request, error) {
	namespace := claim.Port.Namespace
	switch {
	case claim.Mirror:
		return []ipam.Request{{Subnet: kubeovnv1.DefaultSubnet}}, nil
	case claim.Vip != "":
		return c.wantsOfVip(ctx, claim)
	case len(claim.Pools) > 0:
		pools, err := c.namedPools(ctx, namespace, claim.Pools)
		if err != nil {
			return nil, err
		}
		wants, err := wantsOfPools(pools, claim.PodRequest, func(subnet string) bool { return claim.Subnet == "" || claim.Subnet == subnet })
		if err != nil {
			return nil, err
		}
		return c.withoutForeignMACs(ctx, wants)
	}
	subnets, err := c.candidates(ctx, claim)
	if err != nil {
		return nil, err
	}
	pools, err := c.Pools.OfNamespace(ctx, namespace)
	if err != nil {
		return nil, err
	}
	var wants []ipam.Request
	if len(pools) > 0 {
		wants, err = wantsOfPools(pools, claim.PodRequest, func(subnet string) bool { return slices.Contains(subnets, subnet) })
		if err != nil {
			return nil, err
		}
	} else {
		for _, subnet := range subnets {
			wants = append(wants, allocationRequest(subnet, claim.PodRequest))
		}
	}
	if len(claim.Choices) > 0 {
		if wants, err = limitToListed(claim, wants); err != nil {
			return nil, err
		}
	}
	if wants, err = c.withoutForeignMACs(ctx, wants); err != nil {
		return nil, err
	}
	return wants, c.addPools(ctx, namespace, wants)
}

// addPools adds to requests for given addresses the pools that contain the addresses and that the namespace may use. Without a pool that
// the request names, the allocator refuses its addresses.
func (c *Chooser) addPools(ctx context.Context, namespace string, wants []ipam.Request) error {
	for i := range wants {
		want := &wants[i]
		if len(want.Addresses) == 0 || len(want.Pools) > 0 {
			continue
		}
		pools, err := c.Pools.OfSubnet(ctx, want.Subnet)
		if err != nil {
			return err
		}
		for _, pool := range pools {
			ranges, err := ipfamily.ParseRanges(k8s.AppliedPool(pool).Spec.IPs)
			if err == nil && pool.DeletionTimestamp == nil && ipfamily.InAny(ranges, want.Addresses...) && c.Grants.Pool(namespace, pool) == "" {
				want.Pools = append(want.Pools, pool.Name)
			}
		}
	}
	return nil
}

// namedPools returns the pools that a pod names. The error is a *Problem if one of them does not exist, or if the namespace may not use it or its subnet.
func (c *Chooser) namedPools(ctx context.Context, namespace string, names []string) ([]*kubeovnv1.IPPool, error) {
	pools := make([]*kubeovnv1.IPPool, 0, len(names))
	for _, name := range names {
		pool, err := k8s.Find[kubeovnv1.IPPool](ctx, c.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get IPPool %s: %w", name, err)
		}
		if pool == nil || pool.DeletionTimestamp != nil {
			return nil, &Problem{Message: fmt.Sprintf("IPPool %s, which annotation %s names, does not exist: create it, or name another one", name, kubeovnv1.AnnotationIPPool.Key())}
		}
		pools = append(pools, pool)
	}
	for _, pool := range pools {
		if denied := c.Grants.Pool(namespace, pool); denied != "" {
			return nil, &Problem{Message: denied, Subnets: []string{pool.Spec.Subnet}}
		}
		if err := c.mayUseSubnet(ctx, namespace, pool.Spec.Subnet); err != nil {
			return nil, err
		}
	}
	return pools, nil
}

// whyNoPool returns the causes of pools that the allocator does not have, as the end of a message. checked is false while one of them is not
// validated yet: the pod may have been created together with it.
func (c *Chooser) whyNoPool(ctx context.Context, names []string) (causes string, checked bool) {
	checked = true
	for _, name := range names {
		pool, err := k8s.Find[kubeovnv1.IPPool](ctx, c.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil || pool == nil || k8s.IsTrue(pool.Status.Conditions, kubeovnv1.ConditionValidated, pool.Generation) {
			continue
		}
		causes += ": " + k8s.WhyNotValid("IPPool "+name, pool.Status.Conditions, pool.Generation)
		c := apimeta.FindStatusCondition(pool.Status.Conditions, kubeovnv1.ConditionValidated)
		checked = checked && c != nil && c.ObservedGeneration == pool.Generation
	}
	return causes, checked
}

// wantsOfPools returns allocation requests for addresses of pools, in order. Consecutive pools of one subnet share a request.
func wantsOfPools(pools []*kubeovnv1.IPPool, request kubeovnv1.PodRequest, usable func(subnet string) bool) ([]ipam.Request, error) {
	var wants []ipam.Request
	for _, pool := range pools {
		if !usable(pool.Spec.Subnet) {
			continue
		}
		if n := len(wants); n > 0 && wants[n-1].Subnet == pool.Spec.Subnet {
			wants[n-1].Pools = append(wants[n-1].Pools, pool.Name)
			continue
		}
		want := allocationRequest(pool.Spec.Subnet, request)
		want.Pools = []string{pool.Name}
		wants = append(wants, want)
	}
	if len(wants) == 0 {
		return nil, &Problem{Message: fmt.Sprintf("IPPool %s is of subnet %s, which the pod does not use", pools[0].Name, pools[0].Spec.Subnet)}
	}
	return wants, nil
}

// limitToListed limits allocation requests to the addresses that a pod lists: one of them, or for a StatefulSet's pod the one at its ordinal.
func limitToListed(claim *Claim, wants []ipam.Request) ([]ipam.Request, error) {
	choices := claim.Choices
	if claim.Workload == kubeovnv1.PodTypeStatefulSet {
		_, ordinal := allocations.StatefulSetOf(claim.Port.Key())
		if ordinal < 0 || ordinal >= len(choices) {
			return nil, &Problem{Message: fmt.Sprintf("annotation %s lists %d addresses, and none for ordinal %d: add some",
				kubeovnv1.AnnotationIPPool.Key(), len(choices), ordinal)}
		}
		choices = choices[ordinal : ordinal+1]
	}
	var each []ipam.Request
	for _, want := range wants {
		for _, choice := range choices {
			want.Addresses = choice
			each = append(each, want)
		}
	}
	return each, nil
}
