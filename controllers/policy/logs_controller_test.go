// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// meters waits until the rates of all meters equal want, and each ACL that logs names an existing meter, which its rules share.
func (w *world) meters(want ...float64) {
	w.Helper()
	w.Eventually(func() string {
		var rates []float64
		ofLogs := func(row nbtest.Row) bool {
			return strings.HasPrefix(row["external_ids"].(map[string]string)["kiln-owner"], "PolicyLogs/")
		}
		for _, row := range w.Database.Rows("Meter_Band") {
			if ofLogs(row) {
				rates = append(rates, row["rate"].(float64))
			}
		}
		names := map[any]bool{}
		for _, row := range w.Database.Rows("Meter") {
			if !ofLogs(row) {
				continue
			}
			if names[row["name"]] = true; fmt.Sprint(row["fair"]) != "false" {
				return fmt.Sprintf("each rule has the whole rate of meter %v", row)
			}
		}
		for _, acl := range w.Database.Rows("ACL") {
			if acl["log"] == true && !names[acl["meter"]] {
				return fmt.Sprintf("ACL %v logs without a meter", acl["name"])
			}
		}
		if fmt.Sprint(rates) != fmt.Sprint(want) || len(names) != len(want) {
			return fmt.Sprintf("%d meters have the rates %v, want %v", len(names), rates, want)
		}
		return ""
	})
}

// TestThePoliciesOfANamespaceShareAMeter creates, deletes and restores logging policies.
func TestThePoliciesOfANamespaceShareAMeter(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	w.pod("default", "web", "app=web")
	const spec = "podSelector: {matchLabels: {app: web}}"
	first := w.policyOf("default", "first", spec, "enable_log", "true")
	w.meters(100)
	second := w.policyOf("default", "second", spec, "enable_log", "true", "acl_log_meter_rate", "2000000000")
	w.meters(1000)
	w.Change(second, func() { delete(second.Annotations, "ovn.kubernetes.io/enable_log") })
	w.meters(100)
	w.Database.Transact(nbtest.Op{"op": "delete", "table": "Meter", "where": []any{}}, nbtest.Op{"op": "delete", "table": "Meter_Band", "where": []any{}})
	w.meters(100)
	process.Stop()

	w.Delete(first)
	w.start()
	w.meters()
}
