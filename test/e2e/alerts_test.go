// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/hack/dashboard/page"
)

// Environment variables of the specs of alerts.
const (
	alertsReport = "ALERTS_REPORT"
	// alertsFaster is the factor by which the durations of alerts are shortened.
	alertsFaster = "ALERTS_FASTER"
)

const alertsNamespace = "e2e-alerts"

// leastRange is the shortest range of a rate: it has four samples.
const leastRange = 4 * prometheusInterval

// alertFault is a fault that makes alerts fire. Other alerts may fire as well.
type alertFault struct {
	name  string
	begin func(context.Context) func(context.Context)
	fires []string
}

// newestBackup is the age of the newest backup at which KilnBackupTooOld fires here, instead of two days: the suite has one made each minute.
const newestBackup = 2 * time.Minute

var _ = Describe("alerts", Label("alerts", disruptive, mayRestart), Ordered, ContinueOnFailure, func() {
	var get page.Getter
	report := &strings.Builder{}
	BeforeAll(func(ctx SpecContext) {
		get = startPrometheus(ctx, fasterRules())
		changeOVNCluster(ctx, `{"central":{"backup":{"interval":"1m"}}}`, `{"central":{"backup":{"interval":null}}}`)
		makeNamespace(ctx, alertsNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, alertsNamespace) }, NodeTimeout(3*time.Minute))
		fmt.Fprintf(report, "| fault | alert | fires after | resolves after |\n|---|---|---|---|\n")
	}, NodeTimeout(8*time.Minute))
	AfterAll(func() {
		GinkgoWriter.Println(report)
		if path := os.Getenv(alertsReport); path != "" {
			Expect(os.WriteFile(path, []byte(report.String()), 0o644)).To(Succeed())
		}
	})

	for _, group := range alertFaults {
		names := make([]string, 0, len(group))
		for _, f := range group {
			names = append(names, f.name)
		}
		It("fire while "+strings.Join(names, "; "), func(ctx SpecContext) {
			Eventually(firing).WithContext(ctx).WithArguments(get).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(BeEmpty())
			var ends []func(context.Context)
			begun, fired := map[string]time.Time{}, map[string]time.Time{} // by alert
			var last time.Time
			for _, f := range group {
				ends = append(ends, f.begin(ctx))
				last = time.Now()
				for _, alert := range f.fires {
					begun[alert] = last
				}
			}
			Eventually(func(g Gomega) {
				now, err := firing(ctx, get)
				g.Expect(err).NotTo(HaveOccurred())
				for _, alert := range now {
					if fired[alert].IsZero() {
						fired[alert] = time.Now()
					}
				}
				for alert := range begun {
					g.Expect(fired).To(HaveKey(alert))
				}
			}).WithContext(ctx).WithTimeout(6 * time.Minute).WithPolling(time.Second).Should(Succeed())
			for _, end := range slices.Backward(ends) {
				end(ctx)
			}
			ended, resolved := time.Now(), map[string]time.Duration{}
			Eventually(func(g Gomega) {
				now, err := firing(ctx, get)
				g.Expect(err).NotTo(HaveOccurred())
				for alert := range fired {
					if _, done := resolved[alert]; !done && !slices.Contains(now, alert) {
						resolved[alert] = time.Since(ended)
					}
				}
				g.Expect(now).To(BeEmpty())
			}).WithContext(ctx).WithTimeout(4 * time.Minute).WithPolling(time.Second).Should(Succeed())
			row := func(fault, alert string, begun time.Time) {
				fmt.Fprintf(report, "| %s | %s | %.0f s | %.0f s |\n", fault, alert, fired[alert].Sub(begun).Seconds(), resolved[alert].Seconds())
			}
			for _, f := range group {
				for _, alert := range f.fires {
					row(f.name, alert, begun[alert])
				}
			}
			for _, alert := range slices.Sorted(maps.Keys(fired)) {
				if begun[alert].IsZero() {
					row("one of these", alert, last)
				}
			}
		}, SpecTimeout(15*time.Minute))
	}
})

// firing returns the names of the alerts that fire.
func firing(ctx context.Context, get page.Getter) ([]string, error) {
	series, err := get.Instant(ctx, `group by (alertname) (ALERTS{alertstate="firing"})`)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range series {
		names = append(names, s.Labels["alertname"])
	}
	slices.Sort(names)
	return names, nil
}

var ranges = regexp.MustCompile(`\[(\w+)\]`)

// fasterRules returns the alerts with shortened durations.
func fasterRules() string {
	GinkgoHelper()
	factor := 20
	if text := os.Getenv(alertsFaster); text != "" {
		var err error
		factor, err = strconv.Atoi(text)
		Expect(err).NotTo(HaveOccurred(), alertsFaster)
	}
	shorter := func(text string, least time.Duration) string {
		d, err := time.ParseDuration(text)
		Expect(err).NotTo(HaveOccurred(), "a duration of an alert")
		return fmt.Sprintf("%ds", int(max(least, d/time.Duration(factor)).Seconds()))
	}
	file := alertRules()
	var tried []string
	for _, f := range slices.Concat(alertFaults...) {
		tried = append(tried, f.fires...)
	}
	for _, group := range file.Groups {
		for i := range group.Rules {
			rule := &group.Rules[i]
			Expect(tried).To(ContainElement(rule.Alert), "each alert has a fault")
			rule.Expr = strings.Replace(rule.Expr, "172800", strconv.Itoa(int(newestBackup.Seconds())), 1)
			if rule.For != "" {
				rule.For = shorter(rule.For, time.Second)
			}
			rule.Expr = ranges.ReplaceAllStringFunc(rule.Expr, func(text string) string {
				return "[" + shorter(ranges.FindStringSubmatch(text)[1], leastRange) + "]"
			})
		}
	}
	text, err := yaml.Marshal(file)
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}
