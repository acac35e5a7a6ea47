// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// keyRoot is the key of requests that change the row Open_vSwitch. No port has this name.
const keyRoot = "Open_vSwitch/external_ids"

// ExternalIDs returns external_ids of Open_vSwitch from the replica. The map must not be changed.
func (b *Bridge) ExternalIDs(ctx context.Context) (map[string]string, error) {
	row, err := b.root(ctx)
	if err != nil {
		return nil, err
	}
	return row.ExternalIDs, nil
}

func (b *Bridge) root(ctx context.Context) (*vswitch.OpenvSwitch, error) {
	var rows []vswitch.OpenvSwitch
	if err := b.list(ctx, b.client, &rows); err != nil {
		return nil, fmt.Errorf("read Open_vSwitch: %w", err)
	}
	if len(rows) == 0 {
		return nil, ErrDisconnected
	}
	return &rows[0], nil
}

// RequestProviders makes the requests for bridges of provider networks in Open_vSwitch exactly these. It is idempotent.
func (b *Bridge) RequestProviders(ctx context.Context, wanted map[string]providerbridge.Request) error {
	err := b.commit(ctx, []string{keyRoot}, func(ctx context.Context, _ string) (change, error) {
		row, err := b.root(ctx)
		if err != nil {
			return change{}, err
		}
		remove, insert := providerbridge.Changes(row.ExternalIDs, wanted)
		var mutations []model.Mutation
		if len(remove) > 0 {
			mutations = append(mutations, model.Mutation{Field: &row.ExternalIDs, Mutator: ovsdb.MutateOperationDelete, Value: remove})
		}
		if len(insert) > 0 {
			mutations = append(mutations, model.Mutation{Field: &row.ExternalIDs, Mutator: ovsdb.MutateOperationInsert, Value: insert})
		}
		if len(mutations) == 0 {
			return change{}, nil
		}
		operations, err := b.client.Where(row).Mutate(row, mutations...)
		return change{operations: operations}, err
	})
	if err != nil {
		return fmt.Errorf("request the bridges of provider networks: %w", err)
	}
	return nil
}
