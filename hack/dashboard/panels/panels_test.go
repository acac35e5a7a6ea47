// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package panels

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestTheOverviewIsGenerated compares the committed dashboard with Overview. `go run ./hack/dashboard json` writes it.
func TestTheOverviewIsGenerated(t *testing.T) {
	want, err := Overview.Grafana()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../../config/dashboards/" + Overview.Name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("config/dashboards/%s.json differs: go run ./hack/dashboard json", Overview.Name)
	}
}

func TestPanelsAreComplete(t *testing.T) {
	titles := map[string]bool{}
	for _, p := range Overview.Panels {
		if p.Title == "" || p.Unit == "" || len(p.Queries) == 0 || titles[p.Title] {
			t.Errorf("%+v lacks a title of its own, a unit or an expression", p)
		}
		titles[p.Title] = true
		for _, q := range p.Queries {
			if q.Legend == "" || strings.Contains(q.For("1m"), "$") {
				t.Errorf("%s: %+v lacks a legend, or has a variable other than %s", p.Title, q, rateInterval)
			}
		}
	}
}

func TestExpressionsOfKubeOVNsMetrics(t *testing.T) {
	for want, use := range map[string]Use{
		`sum by () (pinger_ovs_up)`:                     {Metric: "pinger_ovs_up"},
		`sum by (code) (rate(x_total{job=~"a|b"}[1m]))`: {Metric: "x_total", Labels: []string{"code"}, Jobs: []string{"a", "b"}},
		`sum by (instance, le) (rate(y_bucket[1m]))`:    {Metric: "y_bucket", Labels: []string{"instance", "le"}},
		`sum by (instance) (kube_ovn_dp_flows_total)`:   {Metric: "kube_ovn_dp_flows_total", Labels: []string{"instance"}},
	} {
		if got := (Query{Expr: use.Expr()}).For("1m"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
