// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"slices"
	"strings"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// WithoutIncarnations returns the rows of a northbound database, by table and UUID, with UUIDs of load balancers that do not depend on the time
// of their insertion (docs/decisions/2026-11-27-defects-of-northd.md). Two load balancers with one key stay two rows. It changes the
// given rows.
func WithoutIncarnations(dump map[string]map[string]Row) map[string]map[string]Row {
	var pairs []string
	for uuid, row := range dump[nb.LoadBalancerTable] {
		ids, _ := row["external_ids"].(map[string]string)
		owner, _ := desired.ParseOwner(ids[OwnerID])
		key, _, numbered := strings.Cut(ids["kiln-key"], "~")
		if numbered {
			ids["kiln-key"] = key
			pairs = append(pairs, uuid, desired.Ref{Owner: owner, Key: key}.UUID())
		}
	}
	replacer := strings.NewReplacer(pairs...)
	out := map[string]map[string]Row{}
	for table, rows := range dump {
		out[table] = map[string]Row{}
		for uuid, row := range rows {
			for column, value := range row {
				row[column] = renamed(value, replacer)
			}
			name := replacer.Replace(uuid)
			for _, taken := out[table][name]; taken; _, taken = out[table][name] {
				name += " again"
			}
			out[table][name] = row
		}
	}
	return out
}

func renamed(value any, replacer *strings.Replacer) any {
	switch v := value.(type) {
	case string:
		return replacer.Replace(v)
	case []string:
		for i := range v {
			v[i] = replacer.Replace(v[i])
		}
		slices.Sort(v)
	case map[string]string:
		for key := range v {
			v[key] = replacer.Replace(v[key])
		}
	}
	return value
}
