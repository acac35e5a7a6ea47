// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"os"
	"os/exec"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// TestAlertsFireAndResolve runs alerts.test.yaml. It fails for an alert that has no time at which the file expects it to fire, or no later
// time at which the file expects that it does not.
func TestAlertsFireAndResolve(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts.test.yaml"}} {
		command, err := prepared.Command("bin/promtool")
		if err != nil {
			t.Fatal(err)
		}
		command = append(command, args...)
		// promtool evaluates rules as Prometheus does; its packages are not a library with a stable API.
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	var rules struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	unmarshal(t, "alerts.yaml", &rules)
	var tests struct {
		Tests []struct {
			Times []struct {
				Alert  string `json:"alertname"`
				Firing []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	unmarshal(t, "alerts.test.yaml", &tests)
	fired, resolved := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, at := range test.Times {
			resolved[at.Alert] = fired[at.Alert] && len(at.Firing) == 0
			fired[at.Alert] = fired[at.Alert] || len(at.Firing) > 0
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if !fired[r.Alert] || !resolved[r.Alert] {
				t.Errorf("alerts.test.yaml: %s fires %t, and resolves after it %t", r.Alert, fired[r.Alert], resolved[r.Alert])
			}
		}
	}
}

func unmarshal(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}
