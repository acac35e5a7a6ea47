// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package envcheck checks through the API whether Kiln can run in a cluster, and which parts of a Kube-OVN installation it would not carry over.
// Read collects the objects. All checks are pure functions of them, and nothing is changed.
package envcheck

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// Level says what a finding requires.
type Level string

// Levels, the most important first.
const (
	// Failed and Lost make Report.Failed true. Failed: Kiln does not work in this cluster. Lost: Kiln does not carry this over from Kube-OVN.
	Failed Level = "failed"
	Lost   Level = "lost"
	// Warning should be looked at.
	Warning Level = "warning"
	// Manual cannot be seen through the API. The message says how to check it.
	Manual Level = "manual"
	// Differs works in Kiln in another way. Nothing has to be done.
	Differs Level = "differs"
	// Carried becomes a field of the proposed OVNCluster.
	Carried Level = "carried"
	OK      Level = "ok"
)

var order = []Level{Failed, Lost, Warning, Manual, Differs, Carried, OK}

// Finding is the result of one check, or a part of Kube-OVN's installation.
type Finding struct {
	Level Level `json:"level"`
	// Subject names the check, the object or the setting.
	Subject string `json:"subject"`
	Message string `json:"message"`
}

// Report has the findings, the most important first.
type Report struct {
	Findings []Finding `json:"findings"`
	// OVNCluster is the proposed manifest. Only reports about Kube-OVN have it.
	OVNCluster map[string]any `json:"ovnCluster,omitempty"`
}

func newReport(findings []Finding) *Report {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Compare(slices.Index(order, a.Level), slices.Index(order, b.Level))
	})
	return &Report{Findings: findings}
}

// Failed reports whether a finding has the level Failed or Lost.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Level == Failed || f.Level == Lost })
}

// WriteManifest prints the proposed OVNCluster.
func (r *Report) WriteManifest(w io.Writer) error {
	out, err := yaml.Marshal(r.OVNCluster)
	if err != nil {
		return fmt.Errorf("encode the OVNCluster: %w", err)
	}
	if _, err := w.Write(out); err != nil {
		return fmt.Errorf("write the OVNCluster: %w", err)
	}
	return nil
}

// WriteText prints the report for people.
func (r *Report) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Level, f.Subject, f.Message)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if r.OVNCluster == nil {
		return nil
	}
	fmt.Fprint(w, "\nProposed OVNCluster (only the manifest: -o ovncluster):\n\n")
	return r.WriteManifest(w)
}
