// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package database reads and writes bridges, and the row Open_vSwitch, in the database of the node's Open vSwitch.
package database

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// Root returns the single row of Open_vSwitch. It creates the row in a new database.
func Root(ctx context.Context, db *client.Client) (*vswitch.OpenvSwitch, error) {
	var rows []vswitch.OpenvSwitch
	if err := db.List(ctx, &rows); err != nil {
		return nil, fmt.Errorf("read Open_vSwitch: %w", err)
	}
	if len(rows) > 0 {
		return &rows[0], nil
	}
	row := &vswitch.OpenvSwitch{UUID: "root"}
	operations, err := db.Create(row)
	if err != nil {
		return nil, fmt.Errorf("initialize Open_vSwitch: %w", err)
	}
	results, err := Transact(ctx, db, operations)
	if err != nil {
		return nil, fmt.Errorf("initialize Open_vSwitch: %w", err)
	}
	return &vswitch.OpenvSwitch{UUID: results[0].UUID.GoUUID}, nil
}

// Transact commits operations and returns their results. It returns an error if any of them failed.
func Transact(ctx context.Context, db *client.Client, operations []ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	results, err := db.Transact(ctx, operations...)
	if err != nil {
		return nil, err
	}
	if failed, err := ovsdb.CheckOperationResults(results, operations); err != nil {
		errs := []error{err}
		for _, f := range failed {
			errs = append(errs, f)
		}
		return nil, errors.Join(errs...)
	}
	return results, nil
}

// SetIDs changes external_ids of Open_vSwitch.
func SetIDs(ctx context.Context, db *client.Client, remove []string, set map[string]string) error {
	row, err := Root(ctx, db)
	if err != nil {
		return err
	}
	set = Difference(row.ExternalIDs, set)
	remove = slices.DeleteFunc(slices.Clone(remove), func(key string) bool {
		_, found := row.ExternalIDs[key]
		_, replaced := set[key]
		return !found || replaced
	})
	if len(set)+len(remove) == 0 {
		return nil
	}
	mutations := []model.Mutation{{
		Field: &row.ExternalIDs, Mutator: ovsdb.MutateOperationDelete, Value: slices.AppendSeq(remove, maps.Keys(set)),
	}}
	if len(set) > 0 {
		mutations = append(mutations, model.Mutation{Field: &row.ExternalIDs, Mutator: ovsdb.MutateOperationInsert, Value: set})
	}
	operations, err := db.Where(row).Mutate(row, mutations...)
	if err == nil {
		_, err = Transact(ctx, db, operations)
	}
	if err != nil {
		return fmt.Errorf("write external_ids of Open_vSwitch: %w", err)
	}
	return nil
}

// Difference returns the entries of want that are missing from have or differ there.
func Difference(have, want map[string]string) map[string]string {
	changed := map[string]string{}
	for key, value := range want {
		if old, found := have[key]; !found || old != value {
			changed[key] = value
		}
	}
	return changed
}

// DatapathType is Open vSwitch's name of the datapath (ovs-vswitchd.conf.db(5), Bridge).
func DatapathType(d v1alpha1.Datapath) string {
	if d == v1alpha1.DatapathUserspace {
		return "netdev"
	}
	return "system"
}

const (
	// mappingsKey has `provider:bridge` pairs for ovn-controller (ovn-controller(8)). ownMappingsKey has the providers of those pairs that
	// Kiln added, with commas between them; the others belong to an administrator.
	mappingsKey    = "ovn-bridge-mappings"
	ownMappingsKey = "kiln-bridge-mappings"
)

// Map adds the bridge of a provider network to ovn-bridge-mappings, or removes it. Entries of others stay.
func Map(ctx context.Context, db *client.Client, provider string, present bool) error {
	row, err := Root(ctx, db)
	if err != nil {
		return err
	}
	mappings, own := mergeMappings(row.ExternalIDs[mappingsKey], row.ExternalIDs[ownMappingsKey], provider, present)
	var remove []string
	set := map[string]string{}
	for key, value := range map[string]string{mappingsKey: mappings, ownMappingsKey: own} {
		if value == "" {
			remove = append(remove, key)
		} else {
			set[key] = value
		}
	}
	return SetIDs(ctx, db, remove, set)
}

// mergeMappings returns ovn-bridge-mappings, and the list of Kiln's own entries, with or without an own entry for the provider network.
func mergeMappings(mappings, own, provider string, present bool) (merged, owned string) {
	pairs, names := list(mappings), list(own)
	pair := provider + ":" + providerbridge.Bridge(provider)
	has, is := slices.Contains(pairs, pair), slices.Contains(names, provider)
	switch {
	case present && !has:
		pairs = append(pairs, pair)
		if !is {
			names = append(names, provider)
		}
	case !present && is:
		pairs = slices.DeleteFunc(pairs, func(m string) bool { return m == pair })
		names = slices.DeleteFunc(names, func(n string) bool { return n == provider })
	}
	slices.Sort(names)
	return strings.Join(pairs, ","), strings.Join(names, ",")
}

func list(text string) []string {
	return slices.DeleteFunc(strings.Split(text, ","), func(e string) bool { return e == "" })
}

// MappedElsewhere returns the other bridge that ovn-bridge-mappings has for the name of a provider network; empty if there is none.
func MappedElsewhere(ctx context.Context, db *client.Client, provider string) (bridge string, err error) {
	row, err := Root(ctx, db)
	if err != nil {
		return "", err
	}
	for _, pair := range list(row.ExternalIDs[mappingsKey]) {
		name, bridge, _ := strings.Cut(pair, ":")
		if name == provider && bridge != providerbridge.Bridge(provider) {
			return bridge, nil
		}
	}
	return "", nil
}
