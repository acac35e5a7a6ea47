// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/svc"
)

// indexServiceAddress finds Services by their addresses.
const indexServiceAddress = "lookup.serviceAddress"

// Services looks up in the cache the Services of an address.
type Services struct {
	reader client.Reader
}

// NewServices adds its index to the cache. Call it once per cache, before the cache starts.
func NewServices(ctx context.Context, indexer client.FieldIndexer, reader client.Reader) (*Services, error) {
	err := indexer.IndexField(ctx, &corev1.Service{}, indexServiceAddress, func(o client.Object) []string {
		var texts []string
		for _, a := range svc.Addresses(o.(*corev1.Service)) {
			texts = append(texts, a.String())
		}
		return texts
	})
	if err != nil {
		return nil, fmt.Errorf("index Services by address: %w", err)
	}
	return &Services{reader: reader}, nil
}

// At returns the Services that have or request an address. They belong to the cache and must not be changed.
func (s *Services) At(ctx context.Context, address netip.Addr) ([]*corev1.Service, error) {
	return ServicesAt(ctx, s.reader, address)
}

// ServicesAt is At for a reader of the cache with the index of NewServices.
func ServicesAt(ctx context.Context, reader client.Reader, address netip.Addr) ([]*corev1.Service, error) {
	var list corev1.ServiceList
	if err := reader.List(ctx, &list, client.MatchingFields{indexServiceAddress: address.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Services by address: %w", err)
	}
	services := make([]*corev1.Service, 0, len(list.Items))
	for i := range list.Items {
		services = append(services, &list.Items[i])
	}
	return services, nil
}
