// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ippools looks up the IPPools of a subnet or namespace, and computes which addresses each pool of a subnet has.
package ippools

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// Indexes of the cache that Lookup looks up.
const (
	indexSubnet     = "ippools.subnet"
	indexNamespaces = "ippools.namespaces"
	indexSet        = "ippools.set"
)

// Lookup looks up in the cache the IPPools of a subnet, of a namespace or of an address set.
type Lookup struct {
	reader client.Reader
}

// NewLookup returns a Lookup and adds its indexes to the cache. Call it once per cache, before the cache starts.
func NewLookup(ctx context.Context, indexer client.FieldIndexer, reader client.Reader) (*Lookup, error) {
	for name, keys := range map[string]client.IndexerFunc{
		indexSubnet:     func(o client.Object) []string { return []string{o.(*kubeovnv1.IPPool).Spec.Subnet} },
		indexNamespaces: func(o client.Object) []string { return k8s.AppliedPool(o.(*kubeovnv1.IPPool)).Spec.Namespaces },
		indexSet:        setOf,
	} {
		if err := indexer.IndexField(ctx, &kubeovnv1.IPPool{}, name, keys); err != nil {
			return nil, fmt.Errorf("index IPPools by %s: %w", name, err)
		}
	}
	return &Lookup{reader: reader}, nil
}

// OfSubnet returns the pools of a subnet, oldest first. They belong to the cache and must not be changed.
func (l *Lookup) OfSubnet(ctx context.Context, subnet string) ([]*kubeovnv1.IPPool, error) {
	return l.list(ctx, client.MatchingFields{indexSubnet: subnet})
}

// OfNamespace returns the pools whose applied spec lists a namespace and that are not being deleted, oldest first. They belong to the cache.
func (l *Lookup) OfNamespace(ctx context.Context, namespace string) ([]*kubeovnv1.IPPool, error) {
	pools, err := l.list(ctx, client.MatchingFields{indexNamespaces: namespace})
	return slices.DeleteFunc(pools, func(pool *kubeovnv1.IPPool) bool { return pool.DeletionTimestamp != nil }), err
}

// OfSet returns the pools whose applied spec publishes their addresses in the address set of this name, oldest first. They belong to the cache.
func (l *Lookup) OfSet(ctx context.Context, set string) ([]*kubeovnv1.IPPool, error) {
	return l.list(ctx, client.MatchingFields{indexSet: set})
}

func setOf(o client.Object) []string {
	if !k8s.AppliedPool(o.(*kubeovnv1.IPPool)).Spec.EnableAddressSet {
		return nil
	}
	return []string{translate.PoolSet(o.GetName())}
}

func (l *Lookup) list(ctx context.Context, which client.MatchingFields) ([]*kubeovnv1.IPPool, error) {
	var list kubeovnv1.IPPoolList
	if err := l.reader.List(ctx, &list, which, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list IPPools: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	pools := make([]*kubeovnv1.IPPool, len(list.Items))
	for i := range list.Items {
		pools[i] = &list.Items[i]
	}
	Sort(pools)
	return pools, nil
}

// Sort sorts pools, oldest first.
func Sort(pools []*kubeovnv1.IPPool) {
	slices.SortFunc(pools, func(a, b *kubeovnv1.IPPool) int {
		if lookup.Precedes(a, b) {
			return -1
		}
		return 1
	})
}
