// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// Indexes of the cache that Pools looks up.
const (
	indexPoolSubnet     = "selection.poolSubnet"
	indexPoolNamespaces = "selection.poolNamespaces"
	indexPoolSet        = "selection.poolSet"
)

// Pools looks up in the cache the IPPools of a subnet, of a namespace or of an address set.
type Pools struct {
	reader client.Reader
}

// NewPools adds its indexes to the cache. Call it once per cache, before the cache starts.
func NewPools(ctx context.Context, indexer client.FieldIndexer, reader client.Reader) (*Pools, error) {
	for name, keys := range map[string]client.IndexerFunc{
		indexPoolSubnet:     func(o client.Object) []string { return []string{o.(*kubeovnv1.IPPool).Spec.Subnet} },
		indexPoolNamespaces: func(o client.Object) []string { return o.(*kubeovnv1.IPPool).Spec.Namespaces },
		indexPoolSet:        setOf,
	} {
		if err := indexer.IndexField(ctx, &kubeovnv1.IPPool{}, name, keys); err != nil {
			return nil, fmt.Errorf("index IPPools by %s: %w", name, err)
		}
	}
	return &Pools{reader: reader}, nil
}

// OfSubnet returns the pools of a subnet, oldest first. They belong to the cache and must not be changed.
func (p *Pools) OfSubnet(ctx context.Context, subnet string) ([]*kubeovnv1.IPPool, error) {
	return p.list(ctx, client.MatchingFields{indexPoolSubnet: subnet})
}

// OfNamespace returns the pools that are bound to a namespace and not being deleted, oldest first. They belong to the cache.
func (p *Pools) OfNamespace(ctx context.Context, namespace string) ([]*kubeovnv1.IPPool, error) {
	pools, err := p.list(ctx, client.MatchingFields{indexPoolNamespaces: namespace})
	return slices.DeleteFunc(pools, func(pool *kubeovnv1.IPPool) bool { return pool.DeletionTimestamp != nil }), err
}

// OfSet returns the pools that publish their addresses in the address set of this name, oldest first. They belong to the cache.
func (p *Pools) OfSet(ctx context.Context, set string) ([]*kubeovnv1.IPPool, error) {
	return p.list(ctx, client.MatchingFields{indexPoolSet: set})
}

func setOf(o client.Object) []string {
	if !o.(*kubeovnv1.IPPool).Spec.EnableAddressSet {
		return nil
	}
	return []string{translate.PoolSet(o.GetName())}
}

func (p *Pools) list(ctx context.Context, which client.MatchingFields) ([]*kubeovnv1.IPPool, error) {
	var list kubeovnv1.IPPoolList
	if err := p.reader.List(ctx, &list, which, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list IPPools: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	pools := make([]*kubeovnv1.IPPool, len(list.Items))
	for i := range list.Items {
		pools[i] = &list.Items[i]
	}
	SortPools(pools)
	return pools, nil
}

// SortPools sorts pools, oldest first.
func SortPools(pools []*kubeovnv1.IPPool) {
	slices.SortFunc(pools, func(a, b *kubeovnv1.IPPool) int {
		if Precedes(a, b) {
			return -1
		}
		return 1
	})
}

// Pool is an applied IPPool with the ranges that it sets apart.
type Pool struct {
	Name   string
	Ranges []ipfamily.Range
}

// Divide returns the valid pools of a subnet and the problems of the others. pools must be sorted oldest first: of two that
// overlap, the older one applies.
func Divide(subnet *kubeovnv1.Subnet, pools []*kubeovnv1.IPPool) ([]Pool, map[string]*validation.Problem) {
	var inForce []Pool
	problems := map[string]*validation.Problem{}
	for _, pool := range pools {
		ranges, problem := RangesOf(pool, subnet)
		if problem == nil {
			problem = rivalOf(ranges, inForce)
		}
		if problem != nil {
			problems[pool.Name] = problem
			continue
		}
		inForce = append(inForce, Pool{Name: pool.Name, Ranges: ranges})
	}
	return inForce, problems
}

// RangesOf returns the addresses of a pool, or a problem if the subnet does not have them. It checks them with the last valid spec of the
// subnet, whose addresses the allocator has; with the current one if no spec was found valid yet.
func RangesOf(pool *kubeovnv1.IPPool, subnet *kubeovnv1.Subnet) ([]ipfamily.Range, *validation.Problem) {
	spec := cmp.Or(k8s.ValidSpec(subnet), &subnet.Spec)
	return validation.IPPool(pool, spec.CIDRBlock)
}

func rivalOf(ranges []ipfamily.Range, seniors []Pool) *validation.Problem {
	for _, senior := range seniors {
		for _, r := range ranges {
			for _, s := range senior.Ranges {
				if r.Overlaps(s) {
					return &validation.Problem{
						Reason:  validation.ReasonIPsConflict,
						Message: fmt.Sprintf("ips: %s overlaps with %s of the older IPPool %s: change one of them", r, s, senior.Name),
					}
				}
			}
		}
	}
	return nil
}
