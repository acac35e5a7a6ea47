// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitor is `kiln monitor`: it reads the metrics of the databases' members and of ovn-northd over mTLS when its own are requested,
// and exports all of them. It has no access to the databases.
package monitor

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kiln-net/kiln/supervisor/adminapi"
)

const (
	// targetTimeout bounds the request to one target. It exceeds the time that supervisors give their daemons, and is shorter than the usual
	// timeout of a scrape, 10 s.
	targetTimeout = 6 * time.Second
	// gatherInterval is the age up to which metrics are served again.
	gatherInterval = time.Second
	// maxBody bounds the metrics of one target.
	maxBody = 16 << 20
)

// Target is one process whose metrics are read.
type Target struct {
	// Node is the name of its node.
	Node string
	// Component is the value of the label component, which is Kube-OVN's.
	Component string
	// Server is the name in its certificate.
	Server  string
	Address netip.AddrPort
}

// Monitor gathers the metrics of all targets. It implements prometheus.Gatherer.
type Monitor struct {
	// Targets returns the targets that exist now.
	Targets func(context.Context) ([]Target, error)
	// Client returns a client for a target.
	Client func(Target) (*adminapi.Client, error)
	Log    logr.Logger

	mu       sync.Mutex
	at       time.Time
	families []*dto.MetricFamily
	failed   map[string]float64 // by node
}

var (
	upDesc = prometheus.NewDesc("kiln_monitor_target_up", "1 if the metrics of a process were read, otherwise 0.", []string{"hostname", "component"}, nil)
	// statusDesc and failedDesc are Kube-OVN's. A process that answers reports its status itself.
	statusDesc = prometheus.NewDesc("kube_ovn_ovn_status", "State of a daemon: 1 leader or active, 2 follower or standby, 0 not serving.",
		[]string{"hostname", "component"}, nil)
	failedDesc = prometheus.NewDesc("kube_ovn_failed_req_count", "Requests of figures that failed since the start of the process.", []string{"hostname"}, nil)
)

// Gather implements prometheus.Gatherer.
func (m *Monitor) Gather() ([]*dto.MetricFamily, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.at) < gatherInterval {
		return m.families, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), targetTimeout)
	defer cancel()
	targets, err := m.Targets(ctx)
	if err != nil {
		return nil, err
	}
	results := make([]result, len(targets))
	var all sync.WaitGroup
	for i, t := range targets {
		all.Go(func() { results[i] = m.read(ctx, t) })
	}
	all.Wait()
	registry := prometheus.NewRegistry()
	registry.MustRegister(&outcome{monitor: m, targets: targets, results: results})
	own, err := registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather the state of targets: %w", err)
	}
	gathered := prometheus.Gatherers{constant(own)}
	help := map[string]string{}
	for _, f := range own {
		help[f.GetName()] = f.GetHelp()
	}
	for _, r := range results {
		for _, f := range r.families { // targets of another version may describe it in other words
			text, is := help[f.GetName()]
			if !is {
				text = f.GetHelp()
				help[f.GetName()] = text
			}
			f.Help = &text
		}
		gathered = append(gathered, constant(r.families))
	}
	// An error names metrics that contradict one another; the others are complete.
	families, err := gathered.Gather()
	if err != nil {
		m.Log.Error(err, "some metrics are left out")
	}
	m.families, m.at = families, time.Now()
	return families, nil
}

func constant(families []*dto.MetricFamily) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, nil })
}

type result struct {
	families []*dto.MetricFamily
	err      error
}

// read reads the metrics of one target.
func (m *Monitor) read(ctx context.Context, t Target) result {
	client, err := m.Client(t)
	if err != nil {
		return result{err: err}
	}
	defer client.Close()
	body, err := client.Metrics(ctx)
	if err != nil {
		return result{err: err}
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	byName, err := parser.TextToMetricFamilies(io.LimitReader(body, maxBody))
	if err != nil {
		return result{err: fmt.Errorf("parse the metrics of %s: %w", t.Address, err)}
	}
	var r result
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		// Supervisors export no other names. Those of Go and of the process are this process's own.
		if strings.HasPrefix(name, "kube_ovn_") || strings.HasPrefix(name, "kiln_") {
			r.families = append(r.families, byName[name])
		}
	}
	return r
}

// outcome exports which targets were read.
type outcome struct {
	monitor *Monitor
	targets []Target
	results []result
}

// Describe implements prometheus.Collector.
func (*outcome) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (o *outcome) Collect(to chan<- prometheus.Metric) {
	m := o.monitor
	if m.failed == nil {
		m.failed = map[string]float64{}
	}
	nodes := map[string]bool{}
	for i, t := range o.targets {
		nodes[t.Node] = true
		up := 1.0
		if err := o.results[i].err; err != nil {
			up = 0
			m.failed[t.Node]++
			m.Log.V(1).Info("a target was not read", "node", t.Node, "component", t.Component, "reason", err.Error())
			to <- prometheus.MustNewConstMetric(statusDesc, prometheus.GaugeValue, 0, t.Node, t.Component)
		}
		to <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up, t.Node, t.Component)
	}
	maps.DeleteFunc(m.failed, func(node string, _ float64) bool { return !nodes[node] })
	for node := range nodes {
		to <- prometheus.MustNewConstMetric(failedDesc, prometheus.GaugeValue, m.failed[node], node)
	}
}
