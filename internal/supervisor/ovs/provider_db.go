// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/providerbridge"
	"github.com/kiln-net/kiln/internal/uplink"
)

const (
	// providerKey is the key in external_ids of a provider network's bridge and of its uplink's port.
	providerKey = uplink.PortKey
	// mappingsKey has `provider:bridge` pairs for ovn-controller (ovn-controller(8)). ownMappingsKey has the providers of those pairs that
	// Kiln added, with commas between them; the others belong to an administrator.
	mappingsKey    = "ovn-bridge-mappings"
	ownMappingsKey = "kiln-bridge-mappings"
)

// ownBridges returns the bridges of provider networks in the database.
func ownBridges(ctx context.Context, db *client.Client) (map[string]string, error) {
	var rows []vswitch.Bridge
	if err := db.List(ctx, &rows); err != nil {
		return nil, fmt.Errorf("read bridges: %w", err)
	}
	own := map[string]string{}
	for _, row := range rows {
		if provider := row.ExternalIDs[providerKey]; provider != "" && row.Name == providerbridge.Bridge(provider) {
			own[row.Name] = provider
		}
	}
	return own, nil
}

// detachPort removes an interface from a bridge; with an empty name, all uplinks of the bridge.
func detachPort(ctx context.Context, db *client.Client, name, link string) error {
	have, err := readBridge(ctx, db, name)
	if err != nil || have.row == nil {
		return err
	}
	var ports []string
	for port, row := range have.ports {
		if row.ExternalIDs[providerKey] != "" && (port == link || link == "") {
			ports = append(ports, row.UUID)
		}
	}
	if len(ports) == 0 {
		return nil
	}
	operations, err := db.Where(have.row).Mutate(have.row, model.Mutation{Field: &have.row.Ports, Mutator: ovsdb.MutateOperationDelete, Value: ports})
	if err == nil {
		_, err = transact(ctx, db, operations)
	}
	if err != nil {
		return fmt.Errorf("remove the uplink of bridge %s: %w", name, err)
	}
	return nil
}

// deleteBridge deletes a bridge with its ports.
func deleteBridge(ctx context.Context, db *client.Client, name string) error {
	have, err := readBridge(ctx, db, name)
	if err != nil || have.row == nil {
		return err
	}
	row, err := root(ctx, db)
	if err != nil {
		return err
	}
	operations, err := db.Where(row).Mutate(row, model.Mutation{Field: &row.Bridges, Mutator: ovsdb.MutateOperationDelete, Value: []string{have.row.UUID}})
	if err == nil {
		_, err = transact(ctx, db, operations)
	}
	if err != nil {
		return fmt.Errorf("delete bridge %s: %w", name, err)
	}
	return nil
}

// awaitPort returns once ovs-vswitchd has made or attached an interface (ovs-vswitchd.conf.db(5), Interface, ofport).
func awaitPort(ctx context.Context, db *client.Client, name string) error {
	row := &vswitch.Interface{Name: name}
	milliseconds := int(attachTime / time.Millisecond)
	wait, err := db.Where(row).Wait(ovsdb.WaitConditionNotEqual, &milliseconds, row, &row.Ofport)
	if err == nil {
		_, err = transact(ctx, db, wait)
	}
	if err != nil {
		return fmt.Errorf("wait for ovs-vswitchd to attach interface %s: %w", name, err)
	}
	var found []vswitch.Interface
	if err := db.Where(&vswitch.Interface{Name: name}).List(ctx, &found); err != nil {
		return fmt.Errorf("read interface %s: %w", name, err)
	}
	for _, f := range found {
		if f.Error != nil && *f.Error != "" {
			return fmt.Errorf("ovs-vswitchd cannot attach interface %s: %s", name, *f.Error)
		}
	}
	return nil
}

// setIDs changes external_ids of Open_vSwitch.
func setIDs(ctx context.Context, db *client.Client, remove []string, set map[string]string) error {
	row, err := root(ctx, db)
	if err != nil {
		return err
	}
	set = difference(row.ExternalIDs, set)
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
		_, err = transact(ctx, db, operations)
	}
	if err != nil {
		return fmt.Errorf("write external_ids of Open_vSwitch: %w", err)
	}
	return nil
}

// report writes the result of a provider network if it changed.
func report(ctx context.Context, db *client.Client, provider string, result providerbridge.Result) error {
	row, err := root(ctx, db)
	if err != nil {
		return err
	}
	old, found := providerbridge.Results(row.ExternalIDs)[provider]
	result.Time = time.Now().UTC().Truncate(time.Second)
	if found && old.State == result.State && old.Reason == result.Reason {
		result.Time = old.Time
	}
	return setIDs(ctx, db, nil, map[string]string{providerbridge.ResultKey(provider): result.Format()})
}

// forget deletes the results of provider networks without a request.
func forget[T any](ctx context.Context, db *client.Client, requests map[string]T, malformed map[string]error) error {
	row, err := root(ctx, db)
	if err != nil {
		return err
	}
	own, err := ownBridges(ctx, db)
	if err != nil {
		return err
	}
	var remove []string
	for key := range row.ExternalIDs {
		provider, found := strings.CutPrefix(key, providerbridge.ResultKey(""))
		_, requested := requests[provider]
		if found && !requested && malformed[provider] == nil && own[providerbridge.Bridge(provider)] == "" {
			remove = append(remove, key)
		}
	}
	return setIDs(ctx, db, remove, nil)
}

// mapBridge adds the bridge of a provider network to ovn-bridge-mappings, or removes it. Entries of others stay.
func mapBridge(ctx context.Context, db *client.Client, provider string, present bool) error {
	row, err := root(ctx, db)
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
	return setIDs(ctx, db, remove, set)
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

// mappingConflict returns a failure if ovn-bridge-mappings has the name of the provider network for another bridge.
func mappingConflict(ctx context.Context, db *client.Client, provider string) providerbridge.Result {
	row, err := root(ctx, db)
	if err != nil {
		return failure(err)
	}
	for _, pair := range list(row.ExternalIDs[mappingsKey]) {
		name, bridge, _ := strings.Cut(pair, ":")
		if name == provider && bridge != providerbridge.Bridge(provider) {
			return failed(providerbridge.ReasonConflict, "ovn-bridge-mappings of the node's Open vSwitch has the bridge %s for %s: "+
				"remove this entry, or choose another name for the provider network", bridge, provider)
		}
	}
	return providerbridge.Result{}
}
