// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one number.
type row struct {
	Scenario string  `json:"scenario"`
	Metric   string  `json:"metric"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit,omitempty"`
	// TimesFloor is the ratio of the time to the floor of the same run.
	TimesFloor float64 `json:"timesFloor,omitempty"`
	// Bar is the target, and Met is whether it is met. KubeOVN and OVNKubernetes are the numbers of these systems in other runs.
	Bar           string `json:"bar,omitempty"`
	Met           *bool  `json:"met,omitempty"`
	KubeOVN       string `json:"kubeOVN,omitempty"`
	OVNKubernetes string `json:"ovnKubernetes,omitempty"`
}

// bar is a target. The numbers of the other systems come from another run, on one core; this run does not measure them.
type bar struct {
	scenario, metric       string
	atMost                 float64
	timesFloor             bool
	kubeOVN, ovnKubernetes string
}

// bars apply to the scenarios that begin with their scenario; the first match counts.
var bars = []bar{
	{"burst 5000", "rate", 1.5, true, "19", "35"},
	{"burst", "rate", 1.5, true, "16 (paused: 32)", "48 (52)"},
	{"burst", "NB transactions per pod", 0.1, false, "3.0", "1"},
	{"burst", "API writes per pod", 2, false, "5.2 to 7", "1.0 to 1.4"},
	{"burst", "controller CPU per pod", 1.5, false, "10 to 28", "3.5 to 7"},
	{"burst", "API lists", 0, false, "", ""},
	{"burst", "controller CPU until annotated, against the first burst", 1.2, false, "2.8 at 6,000", "2 at 7,000"},
	{"burst", "controller allocations, against the first burst", 1.2, false, "", ""},
	{"burst", "created to port in NB, p50, against the first burst of this size", 1.2, false, "", ""},
	{"burst", "controller RSS, 20s later", 120, false, "265 at 6,100", "265 at 7,100"},
	{"serial", "created to annotated, p50", 6, false, "38.5", "10.7"},
	{"serial", "created to annotated, p99", 12, false, "71", "19.6"},
	{"serial", "created to port in NB, p50, against the first pods", 1.2, false, "", ""},
	{"restart", "exec to the first new pod, median", 1.5, false, "7.1 at 6,100", "5.9 at 7,100"},
	{"takeover", "Lease taken to the first new pod, median", 1, false, "", ""},
	{"takeover", "API lists per takeover", 0, false, "", ""},
	{"1000 nodes", "all joined after", 60, false, "hours", "–"},
	{"1000 nodes", "controller CPU, last quarter against the first", 1.2, false, "", ""},
	{"delete", "IP objects left behind", 0, false, "", ""},
	{"delete", "NB clean after the last delete", 2, false, "10.5", "–"},
}

func (b *bench) add(scenario, metric, unit string, value float64) {
	b.addRatio(scenario, metric, unit, value, 0)
}

// addRatio adds a number together with its ratio to the floor, zero for none.
func (b *bench) addRatio(scenario, metric, unit string, value, timesFloor float64) {
	if !b.wanted("floor") {
		timesFloor = 0
	}
	r := row{Scenario: scenario, Metric: metric, Unit: unit, Value: value, TimesFloor: timesFloor}
	for _, bar := range bars {
		if strings.HasPrefix(scenario, bar.scenario) && metric == bar.metric {
			bar.judge(&r)
			break
		}
	}
	b.rows = append(b.rows, r)
	fmt.Fprintf(os.Stderr, "%s: %s: %s %s\n", scenario, strings.TrimSpace(metric), short(value), unit)
}

func (b bar) judge(r *row) {
	value := r.Value
	r.Bar, r.KubeOVN, r.OVNKubernetes = "≤ "+short(b.atMost), b.kubeOVN, b.ovnKubernetes
	if b.timesFloor {
		value = r.TimesFloor
		r.Bar = "≤ " + short(b.atMost) + "× floor"
	}
	if value != 0 || !b.timesFloor {
		printed, _ := strconv.ParseFloat(short(value), 64) // judges the value as printed
		met := printed <= b.atMost
		r.Met = &met
	}
}

// machine describes the conditions of a run.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Layout layout `json:"layout"`
	Northd string `json:"northd"`
	// Policies is on if the API server has the admission policies. Account is the user of the system under test.
	Policies string `json:"policies"`
	Account  string `json:"account"`
	// PortSecurity is the value for subnets that do not set theirs.
	PortSecurity string `json:"portSecurity"`
	Revision     string `json:"revision"`
	Go           string `json:"go"`
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s; %s; ovn-northd %s; admission policies %s; system under test is %s; portSecurity %s",
		m.CPU, m.Cores, m.Layout, m.Go, m.Northd, m.Policies, m.Account, m.PortSecurity)
}

func machineOf(o options) machine {
	m := machine{
		CPU: "unknown", Cores: runtime.NumCPU(), Layout: o.layout, Northd: "on", Policies: "off", Account: o.account(),
		PortSecurity: string(o.portSecurity), Revision: revision(), Go: runtime.Version(),
	}
	if o.admission {
		m.Policies = "on"
	}
	if o.system != kilnCommand {
		m.Revision = o.system
	}
	if !o.northd {
		m.Northd = "paused"
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m
	}
	m.Cores = strings.Count(string(info), "processor\t:")
	if _, after, ok := strings.Cut(string(info), "model name\t: "); ok {
		m.CPU, _, _ = strings.Cut(after, "\n")
	}
	return m
}

// revision describes the commit of the working directory.
func revision() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func printTable(to io.Writer, m machine, rows []row) {
	fmt.Fprintf(to, "%s; %s\n\n", m, m.Revision)
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "scenario\tmetric\tvalue\t× floor\tbar\tkube-ovn\tovn-kubernetes")
	last := ""
	for _, r := range rows {
		scenario, times, bar := r.Scenario, "", r.Bar
		if scenario == last {
			scenario = ""
		}
		last = r.Scenario
		if r.TimesFloor != 0 {
			times = short(r.TimesFloor)
		}
		if r.Met != nil && !*r.Met {
			bar += " MISSED"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			scenario, r.Metric, strings.TrimSpace(short(r.Value)+" "+r.Unit), times, bar, r.KubeOVN, r.OVNKubernetes)
	}
	_ = table.Flush() // for people; an error here has no effect
}

// writeJSON writes results of any kind. It does nothing if file is "".
func writeJSON(file string, m machine, results any) error {
	if file == "" {
		return nil
	}
	content, err := json.MarshalIndent(map[string]any{"machine": m, "results": results}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.WriteFile(file, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// short formats a value with three digits, or with all digits before the decimal point.
func short(value float64) string {
	switch {
	case value == 0:
		return "0"
	case value >= 100 || value <= -100:
		return strconv.FormatFloat(value, 'f', 0, 64)
	default:
		return strconv.FormatFloat(value, 'g', 3, 64)
	}
}

func rate(each time.Duration) float64      { return 1 / each.Seconds() }
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func megabytes(bytes int64) float64        { return float64(bytes) / 1e6 }
