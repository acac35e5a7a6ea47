// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/hack/dashboard/page"
	"github.com/kiln-net/kiln/hack/dashboard/panels"
	"github.com/kiln-net/kiln/test/cluster"
)

// monitoringReport is the environment variable with the path of the tables that the specs write.
const monitoringReport = "MONITORING_REPORT"

// metricNames finds the names of metrics in tables.
var metricNames = regexp.MustCompile("`((?:kiln|kube_ovn|pinger|cni|subnet|ovs|centralized)_[a-z0-9_]+)`")

// ruleFile is the form of a Prometheus rule file.
type ruleFile struct {
	Groups []struct {
		Name  string      `json:"name"`
		Rules []alertRule `json:"rules"`
	} `json:"groups"`
}

type alertRule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func alertRules() ruleFile {
	GinkgoHelper()
	var file ruleFile
	Expect(yaml.Unmarshal(render.Alerts, &file)).To(Succeed())
	return file
}

var _ = Describe("a Prometheus", Label("monitoring"), Ordered, ContinueOnFailure, func() {
	var get page.Getter
	report := &strings.Builder{}
	BeforeAll(func(ctx SpecContext) {
		get = startPrometheus(ctx, string(render.Alerts))
		makeNamespace(ctx, "e2e-monitoring") // pods, whose latency is measured
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, "e2e-monitoring") }, NodeTimeout(3*time.Minute))
		for i := range 3 {
			_, err := suite.Cluster.Run(ctx, cluster.Server("e2e-monitoring", fmt.Sprintf("pod-%d", i), suite.Workers[i%2]))
			Expect(err).NotTo(HaveOccurred())
		}
		// A rate needs two samples. The counters of interfaces change once a minute.
		Eventually(func(g Gomega) {
			series, err := get.Instant(ctx, `min(count_over_time(up[10m]))`)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(series).To(HaveLen(1))
			g.Expect(series[0].Value.Value).To(BeNumerically(">=", 8))
		}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}, NodeTimeout(8*time.Minute))
	AfterAll(func(ctx SpecContext) {
		GinkgoWriter.Println(report)
		if path := os.Getenv(monitoringReport); path != "" {
			Expect(os.WriteFile(path, []byte(report.String()), 0o644)).To(Succeed())
			_, err := page.Write(ctx, get, filepath.Join(filepath.Dir(path), "dashboards"), time.Now(), 5*time.Minute)
			Expect(err).NotTo(HaveOccurred())
		}
	}, NodeTimeout(2*time.Minute))

	It("evaluates each alert, and none fires", func(ctx SpecContext) {
		for _, group := range alertRules().Groups {
			for _, rule := range group.Rules {
				_, err := get.Instant(ctx, rule.Expr)
				Expect(err).NotTo(HaveOccurred(), rule.Alert)
			}
		}
		Expect(get.Instant(ctx, `ALERTS{alertstate="firing"}`)).To(BeEmpty())
	}, SpecTimeout(2*time.Minute))

	It("has data for each panel of our dashboard", func(ctx SpecContext) {
		fmt.Fprintf(report, "| panel | series |\n|---|---|\n")
		var missing []string
		for _, p := range panels.Overview.Panels {
			series := 0
			for _, q := range p.Queries {
				found, err := get.Instant(ctx, q.For("1m"))
				Expect(err).NotTo(HaveOccurred(), p.Title)
				series += len(found)
			}
			reason := ""
			if series == 0 {
				reason = p.Empty
			}
			fmt.Fprintf(report, "| %s | %d %s |\n", p.Title, series, reason)
			if series == 0 && p.Empty == "" {
				missing = append(missing, p.Title)
			}
		}
		Expect(missing).To(BeEmpty(), "panels without data")
	}, SpecTimeout(2*time.Minute))

	It("has data for each metric of Kube-OVN's dashboards, with the labels that they use", func(ctx SpecContext) {
		explained, err := os.ReadFile("../../docs/reference/compatibility.md")
		Expect(err).NotTo(HaveOccurred())
		fmt.Fprintf(report, "\n| dashboard | metric | series | reason |\n|---|---|---|---|\n")
		var missing []string
		for _, name := range slices.Sorted(maps.Keys(panels.KubeOVN)) {
			for _, use := range panels.KubeOVN[name] {
				found, err := get.Instant(ctx, panels.Query{Expr: use.Expr()}.For("1m"))
				Expect(err).NotTo(HaveOccurred(), use.Expr())
				reason := ""
				if strings.Contains(string(explained), "`"+use.Metric+"`") {
					reason = "docs/reference/compatibility.md"
				}
				fmt.Fprintf(report, "| %s | `%s` | %d | %s |\n", name, use.Metric, len(found), reason)
				if (len(found) == 0 || !labelled(found, use.Labels)) && reason == "" {
					missing = append(missing, name+": "+use.Expr())
				}
			}
		}
		Expect(missing).To(BeEmpty())
	}, SpecTimeout(2*time.Minute))

	It("has data for the other metrics of Kube-OVN", func(ctx SpecContext) {
		names := values(ctx, get, "group by (__name__) ({__name__!=\"\"})", "__name__")
		explained, err := os.ReadFile("../../docs/reference/compatibility.md")
		Expect(err).NotTo(HaveOccurred())
		list, err := os.ReadFile("../../hack/docs/testdata/kube-ovn-metrics.txt")
		Expect(err).NotTo(HaveOccurred())
		var missing []string
		for name := range strings.Lines(string(list)) {
			name = strings.TrimSpace(name)
			has := names[name] || names[name+"_count"] || name == "" || strings.HasPrefix(name, "#")
			if !has && !strings.Contains(string(explained), "`"+name+"`") {
				missing = append(missing, name)
			}
		}
		Expect(missing).To(BeEmpty())
		documented, err := os.ReadFile("../../docs/operations/metrics.md")
		Expect(err).NotTo(HaveOccurred())
		fmt.Fprintf(report, "\nMetrics of docs/operations/metrics.md without data:\n")
		for _, m := range metricNames.FindAllStringSubmatch(string(documented), -1) {
			if !names[m[1]] && !names[m[1]+"_count"] {
				fmt.Fprintf(report, "- `%s`\n", m[1])
			}
		}
	}, SpecTimeout(2*time.Minute))

	It("scrapes few series of each component in a short time", func(ctx SpecContext) {
		fmt.Fprintf(report, "\n| component | series of a pod | duration of a scrape | memory |\n|---|---|---|---|\n")
		for _, job := range slices.Sorted(maps.Keys(values(ctx, get, "up", "job"))) {
			of := func(expr string) float64 {
				found, err := get.Instant(ctx, fmt.Sprintf(expr, job))
				Expect(err).NotTo(HaveOccurred())
				Expect(found).To(HaveLen(1), expr)
				return found[0].Value.Value
			}
			series := of(`max(scrape_samples_scraped{job=%q})`)
			fmt.Fprintf(report, "| %s | %.0f | %.0f ms | %.0f MiB |\n", job, series, 1000*of(`max(avg_over_time(scrape_duration_seconds{job=%q}[1m]))`),
				of(`max(process_resident_memory_bytes{job=%q})`)/(1<<20))
			Expect(series).To(BeNumerically("<", 3000), job)
		}
	}, SpecTimeout(2*time.Minute))
})

// labelled reports whether one of the series has all labels.
func labelled(found []page.Series, labels []string) bool {
	return slices.ContainsFunc(found, func(s page.Series) bool {
		return !slices.ContainsFunc(labels, func(l string) bool { return s.Labels[l] == "" })
	})
}

// values returns the values of a label of an expression's series.
func values(ctx context.Context, get page.Getter, expr, label string) map[string]bool {
	GinkgoHelper()
	found, err := get.Instant(ctx, expr)
	Expect(err).NotTo(HaveOccurred())
	all := map[string]bool{}
	for _, s := range found {
		all[s.Labels[label]] = true
	}
	return all
}
