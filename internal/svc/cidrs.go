// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package svc

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CIDRs are the prefixes of ClusterIPs: the prefixes in the API server's flag and in ServiceCIDR objects of users.
type CIDRs struct {
	// Configured are the prefixes that are known without objects.
	Configured []netip.Prefix
	// Reader reads ServiceCIDR objects; nil if the API server does not serve them (before Kubernetes 1.33).
	Reader client.Reader
}

// NewCIDRs checks whether the API server serves ServiceCIDRs.
func NewCIDRs(mapper apimeta.RESTMapper, reader client.Reader, configured []netip.Prefix) (CIDRs, error) {
	kind := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	_, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	switch {
	case apimeta.IsNoMatchError(err):
		return CIDRs{Configured: configured}, nil
	case err != nil:
		return CIDRs{}, fmt.Errorf("find the API of ServiceCIDRs: %w", err)
	}
	return CIDRs{Configured: configured, Reader: reader}, nil
}

// Served reports whether ServiceCIDR objects can be watched.
func (s CIDRs) Served() bool { return s.Reader != nil }

// List returns all CIDRs, sorted and disjoint: of overlapping ones, only the largest is included.
func (s CIDRs) List(ctx context.Context) ([]netip.Prefix, error) {
	all := slices.Clone(s.Configured)
	if s.Served() {
		var list networkingv1.ServiceCIDRList
		if err := s.Reader.List(ctx, &list); err != nil {
			return nil, fmt.Errorf("list ServiceCIDRs: %w", err)
		}
		for i := range list.Items {
			all = append(all, PrefixesOf(&list.Items[i])...)
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return cmp.Or(a.Bits()-b.Bits(), a.Addr().Compare(b.Addr())) })
	var out []netip.Prefix
	for _, cidr := range all {
		if !slices.ContainsFunc(out, cidr.Overlaps) {
			out = append(out, cidr.Masked())
		}
	}
	return out, nil
}

// PrefixesOf returns the CIDRs of a ServiceCIDR object.
func PrefixesOf(s *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range s.Spec.CIDRs {
		if cidr, err := netip.ParsePrefix(text); err == nil {
			out = append(out, cidr)
		}
	}
	return out
}
