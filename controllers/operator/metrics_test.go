// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// series returns the values of a metric, by its label values in the order of the label names.
func series(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += l.GetValue() + " "
			}
			if family.GetName() == name {
				values[labels] = m.GetGauge().GetValue() + m.GetCounter().GetValue() // one of them is zero
			}
		}
	}
	return values
}

// TestAnInstallationIsMeasured checks the metrics after a replacement of pods, a backup and the issue of certificates.
func TestAnInstallationIsMeasured(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	replaced := series(t, "kiln_pods_replaced_total")[render.OpenVSwitch+" "] // other tests have replaced pods, too
	s := installed(t)
	s.programs.set(render.OpenVSwitch, version.Programs{Kiln: "v0.1.0"})
	w := s.atWork(t)
	g := newG(t)
	s.members["nb"].set(func(status *adminapi.Status) {
		status.Backups = []adminapi.Backup{{Name: "b1.db", Time: time.Unix(500, 0), Rows: 1}}
	})
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Agent.Resources = requests("20m") })
	g.Eventually(w.history).Should(Equal(forward[:4]))
	g.Expect(series(t, "kiln_pods_replaced_total")[render.OpenVSwitch+" "]).To(BeNumerically(">", replaced))
	for name, labels := range map[string]string{
		"kiln_component_pods":                         render.ControllerName + " ready ",
		"kiln_database_last_backup_timestamp_seconds": "nb node ",
		"kiln_authority_expiration_timestamp_seconds": "nb-server operator ",
	} {
		g.Eventually(func() map[string]float64 { return series(t, name) }).Should(HaveKeyWithValue(labels, BeNumerically(">", 0)), name)
	}
	g.Eventually(func() string {
		var all []string
		for labels := range series(t, "kiln_component_version_pods") {
			all = append(all, labels)
		}
		return strings.Join(all, "\n")
	}).Should(ContainSubstring(render.OpenVSwitch + " v"))
	for labels, until := range series(t, "kiln_authority_expiration_timestamp_seconds") {
		years := time.Unix(int64(until), 0).Sub(s.now()).Hours() / 24 / 365
		g.Expect(years).To(And(BeNumerically(">", 9), BeNumerically("<", 11)), labels)
	}
}
