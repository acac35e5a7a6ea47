// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

// Keys in external_ids of rows that the engine owns.
const (
	keyOwner = "kiln-owner" // desired.Owner.String
	keyKey   = "kiln-key"   // desired.Row.Key
	// keyParent names the set that keeps the row alive, as "Logical_Switch/ports/UUID". The replica does not monitor that set.
	keyParent = "kiln-parent"
	// keyValues records the values of the row's Elements, and its Values, as "VALUE,VALUE". After a restart, the values in a set do not show which row added
	// them. The sets are not recorded: a change of a set's name would change the row, and ovn-northd computes much more for a changed port than for a changed set.
	keyValues = "kiln-values"
	// keyElements was the record before keyValues, as "Address_Set/addresses/UUID=VALUE,VALUE …".
	keyElements = "kiln-elements"
	keyVendor   = "vendor"
)

// vendor is the value by which other tools recognize rows of this network.
const vendor = "kube-ovn"

// namePrefix starts the names of owned rows in tables without external_ids: "kiln:OWNER#KEY".
const namePrefix = "kiln:"

// rowID names a row of the database.
type rowID struct{ table, uuid string }

// element is one value in a Shared set of strings.
type element struct {
	set   ovsdbclient.SetID
	value string
}

// identify returns the owner and key of a row, and false if the engine does not own it. A copy of an owned row has the same
// keys but another UUID, so the UUID must match too.
func identify(uuid string, model any) (desired.Ref, bool) {
	ref, ok := claim(model)
	if !ok || ref.UUID() != uuid {
		return desired.Ref{}, false
	}
	return ref, true
}

func claim(model any) (desired.Ref, bool) {
	switch row := model.(type) {
	case interface{ GetExternalIDs() map[string]string }:
		ids := row.GetExternalIDs()
		owner, ok := desired.ParseOwner(ids[keyOwner])
		return desired.Ref{Owner: owner, Key: ids[keyKey]}, ok
	case interface{ GetName() string }:
		rest, ok := strings.CutPrefix(row.GetName(), namePrefix)
		if !ok {
			return desired.Ref{}, false
		}
		name, key, _ := strings.Cut(rest, "#")
		owner, ok := desired.ParseOwner(name)
		return desired.Ref{Owner: owner, Key: key}, ok
	default:
		return desired.Ref{}, false
	}
}

// reservedName is the name of a row in a table without external_ids.
func reservedName(ref desired.Ref) string { return namePrefix + ref.Owner.String() + "#" + ref.Key }

// stamp returns a row's external_ids with the keys of the engine.
func stamp(ids map[string]string, ref desired.Ref, parent *ovsdbclient.SetID, values []string) (map[string]string, error) {
	stamped := make(map[string]string, len(ids)+5)
	maps.Copy(stamped, ids)
	stamped[keyVendor] = vendor
	stamped[keyOwner] = ref.Owner.String()
	stamped[keyKey] = ref.Key
	if parent != nil {
		stamped[keyParent] = formatSet(*parent)
	}
	if len(values) > 0 {
		record, err := formatValues(values)
		if err != nil {
			return nil, err
		}
		stamped[keyValues] = record
	}
	return stamped, nil
}

func setID(s desired.Set) ovsdbclient.SetID {
	return ovsdbclient.SetID{Table: s.Table, Column: s.Column, UUID: s.Row.UUID()}
}

func formatSet(s ovsdbclient.SetID) string { return s.Table + "/" + s.Column + "/" + s.UUID }

func parseSet(s string) (ovsdbclient.SetID, bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return ovsdbclient.SetID{}, false
	}
	return ovsdbclient.SetID{Table: parts[0], Column: parts[1], UUID: parts[2]}, true
}

// formatValues returns the keyValues value: the values, sorted and without duplicates.
func formatValues(values []string) (string, error) {
	for _, value := range values {
		if value == "" || strings.ContainsAny(value, " ,=") {
			return "", fmt.Errorf("element %q has a space, comma or equals sign", value)
		}
	}
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(values))), ","), nil
}

// recordedValues returns the values that an owned row records.
func recordedValues(model any) []string {
	if values := externalID(model, keyValues); values != "" {
		return strings.Split(values, ",")
	}
	var values []string
	for record := range strings.FieldsSeq(externalID(model, keyElements)) {
		_, some, _ := strings.Cut(record, "=")
		values = append(values, strings.Split(some, ",")...)
	}
	slices.Sort(values)
	return slices.Compact(values)
}

func externalID(model any, key string) string {
	if row, ok := model.(interface{ GetExternalIDs() map[string]string }); ok {
		return row.GetExternalIDs()[key]
	}
	return ""
}

// KeyOf returns the key of a row (desired.Row) from its external_ids.
func KeyOf(externalIDs map[string]string) string { return externalIDs[keyKey] }
