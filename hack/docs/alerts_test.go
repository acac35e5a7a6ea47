// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/hack/dashboard/panels"
)

// libraryMetrics are metrics of Prometheus, Go, controller-runtime and client-go.
var libraryMetrics = []string{
	"up", "go_goroutines", "process_cpu_seconds_total", "process_resident_memory_bytes", "rest_client_requests_total", "workqueue_adds_total",
	"workqueue_depth", "workqueue_queue_duration_seconds", "workqueue_retries_total",
}

type alert struct {
	Alert, Expr string
	Labels      map[string]string
	Annotations map[string]string
}

func alerts(t *testing.T) []alert {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "controllers/operator/render/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var all []alert
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 20 {
		t.Fatalf("there are %d alerts: this proves nothing", len(all))
	}
	return all
}

var (
	strays     = regexp.MustCompile(`"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)`)
	identifier = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\s*\(?`)
	operators  = []string{"and", "or", "unless", "bool", "e", "offset"}
	suffixes   = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// metricsOf returns the metrics of a PromQL expression: identifiers that are not functions, operators or labels. `promtool check rules` checks
// the grammar (TestAlertsFireAndResolve).
func metricsOf(expr string) []string {
	var found []string
	for _, name := range identifier.FindAllString(strays.ReplaceAllString(expr, " "), -1) {
		if name = strings.TrimSpace(name); !strings.HasSuffix(name, "(") && !slices.Contains(operators, name) {
			found = append(found, name)
		}
	}
	return found
}

func TestMetricsOfExpressions(t *testing.T) {
	for expr, want := range map[string][]string{
		`absent(up{job="a"} == 1)`: {"up"},
		`histogram_quantile(0.95, sum by (le, db) (rate(x_seconds_bucket{db!=""}[5m]))) > 1000`: {"x_seconds_bucket"},
		`a{state="desired"} - on (component) b{state="ready"} > 0`:                              {"a", "b"},
		`sum(c{x=~"y.*"} == bool 1) == 0 or time() - max(d) > 3`:                                {"c", "d"},
		`e_total / (e_total + f) > 0.9`:                                                         {"e_total", "e_total", "f"},
	} {
		if got := metricsOf(expr); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", expr, got, want)
		}
	}
}

func TestAlertsUseExistingMetrics(t *testing.T) {
	defined := definedMetrics(t)
	for _, a := range alerts(t) {
		checkExpression(t, defined, a.Alert, a.Expr)
	}
}

func TestPanelsUseExistingMetrics(t *testing.T) {
	defined := definedMetrics(t)
	for _, p := range panels.Overview.Panels {
		for _, q := range p.Queries {
			checkExpression(t, defined, p.Title, q.For("1m"))
		}
	}
}

// checkExpression fails for metrics and labels that no program exports.
func checkExpression(t *testing.T, defined map[string][]string, of, expr string) {
	t.Helper()
	names := metricsOf(expr)
	if len(names) == 0 {
		t.Errorf("%s has no metric: %s", of, expr)
	}
	for _, name := range names {
		_, exact := defined[name]
		_, histogram := defined[suffixes.ReplaceAllString(name, "")]
		if !exact && !histogram && !slices.Contains(libraryMetrics, name) {
			t.Errorf("%s uses %s, which no program exports", of, name)
		}
	}
	for _, label := range labelsOf(expr) {
		if slices.Contains([]string{"job", "instance", "le"}, label) || label == "name" && strings.Contains(expr, "workqueue_") {
			continue
		}
		if !slices.ContainsFunc(names, func(name string) bool {
			labels := slices.Concat(defined[name], defined[suffixes.ReplaceAllString(name, "")])
			return slices.Contains(labels, label)
		}) {
			t.Errorf("%s uses the label %s, which none of %q has", of, label, names)
		}
	}
}

var labelUses = regexp.MustCompile(`\{([^}]*)\}|\b(?:by|on)\s*\(([^)]*)\)`)

// labelsOf returns the labels in selectors and groupings of an expression.
func labelsOf(expr string) []string {
	var all []string
	for _, m := range labelUses.FindAllStringSubmatch(expr, -1) {
		for part := range strings.SplitSeq(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(m[1]+m[2], ""), ",") {
			if name := strings.Trim(part, " =!~"); name != "" {
				all = append(all, name)
			}
		}
	}
	return all
}

func TestAlertsHaveRunbooks(t *testing.T) {
	const at = "https://github.com/kiln-net/kiln/blob/main/docs/operations/runbooks/"
	index, err := os.ReadFile(filepath.Join(root, "docs/operations/runbooks/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]bool{"README.md": true}
	for _, a := range alerts(t) {
		page := a.Alert + ".md"
		pages[page] = true
		if a.Annotations["runbook_url"] != at+page || a.Annotations["summary"] == "" {
			t.Errorf("%s: its annotations are %v", a.Alert, a.Annotations)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s has the severity %q", a.Alert, a.Labels["severity"])
		}
		text, err := os.ReadFile(filepath.Join(root, "docs/operations/runbooks", page))
		if err != nil {
			t.Errorf("%s has no page: %v", a.Alert, err)
			continue
		}
		for _, want := range []string{"`" + a.Expr + "`", "Severity " + a.Labels["severity"], "## State", "## Cause", "## What to do"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("the page of %s has no %q", a.Alert, want)
			}
		}
		if !strings.Contains(string(index), "("+page+")") {
			t.Errorf("%s is not in the list of runbooks", a.Alert)
		}
	}
	files, err := os.ReadDir(filepath.Join(root, "docs/operations/runbooks"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !pages[f.Name()] {
			t.Errorf("docs/operations/runbooks/%s is of no alert", f.Name())
		}
	}
}

// TestMetricsOfKubeOVNAreExportedOrExplained: users' dashboards of Kube-OVN have data, or docs/reference/compatibility.md says why not.
func TestMetricsOfKubeOVNAreExportedOrExplained(t *testing.T) {
	list, err := os.ReadFile("testdata/kube-ovn-metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	compatibility, err := os.ReadFile(filepath.Join(root, "docs/reference/compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	defined := definedMetrics(t)
	for name := range strings.Lines(string(list)) {
		name = strings.TrimSpace(name)
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		_, exported := defined[name]
		exported = exported || slices.Contains(libraryMetrics, name)
		explained := strings.Contains(string(compatibility), "`"+name+"`")
		if exported == explained && exported != strings.HasPrefix(name, "subnet_") { // the page names these two as replacements
			t.Errorf("%s: exported %t, in the table of docs/reference/compatibility.md %t", name, exported, explained)
		}
	}
}
