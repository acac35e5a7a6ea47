// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northd

import (
	"context"
	"net/http"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/internal/supervisor"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
	"github.com/kiln-net/kiln/internal/supervisor/unixctl"
)

// Figures of ovn-northd.
var (
	statusDesc = prometheus.NewDesc("kube_ovn_ovn_status", "State of a daemon: 1 leader or active, 2 follower or standby, 0 not serving.",
		[]string{"hostname", "component"}, nil)
	connectedDesc = prometheus.NewDesc("kiln_northd_connected", "1 while ovn-northd is connected to a database, otherwise 0.", []string{"hostname", "database"}, nil)
	stopwatchDesc = prometheus.NewDesc("kiln_northd_stopwatch_milliseconds", "Durations of a part of ovn-northd's main loop; ovn-northd-loop is a whole iteration.",
		[]string{"hostname", "stopwatch", "statistic"}, nil)
	samplesDesc = prometheus.NewDesc("kiln_northd_stopwatch_samples_total", "How often a part of ovn-northd's main loop ran.", []string{"hostname", "stopwatch"}, nil)
	engineDesc  = prometheus.NewDesc("kiln_northd_engine_runs_total", "How often a node of ovn-northd's engine was computed: from changes (compute), from all its inputs (recompute), or not (cancel).",
		[]string{"hostname", "node", "kind"}, nil)
)

// component is the value of the label component, which is Kube-OVN's.
const component = "ovn-northd"

// serveMetrics serves metrics to kube-ovn-monitor until ctx ends. ovn-northd runs without it.
func (s *supervised) serveMetrics(ctx context.Context) {
	if s.options.MetricsAddress == "" {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+adminapi.MetricsPath, supervisor.MetricsHandler(supervisor.NewCollector(s.collect)))
	report := func(err error) {
		if ctx.Err() == nil {
			s.options.Log.Error(err, "serving metrics again")
		}
	}
	supervisor.Retry(ctx, report, func() error { return adminapi.Serve(ctx, s.options.MetricsAddress, s.options.TLSDir, mux) })
}

// collect queries the daemon, which answers between two iterations of its main loop. During a long iteration it adds no figures of the daemon.
func (s *supervised) collect(ctx context.Context, f *supervisor.Figures) {
	host := s.options.Node
	supervisor.CollectCertificate(f, host, component, filepath.Join(s.options.TLSDir, "tls.crt"))
	status, err := s.call(ctx, "status")
	if ctx.Err() != nil {
		return
	}
	switch {
	case err == nil && status == "Status: active":
		f.Gauge(statusDesc, 1, host, component)
	case err == nil && status == "Status: standby":
		f.Gauge(statusDesc, 2, host, component)
	default:
		f.Gauge(statusDesc, 0, host, component)
	}
	for database, command := range map[string]string{"northbound": "nb-connection-status", "southbound": "sb-connection-status"} {
		answer, err := s.call(ctx, command)
		f.Present(connectedDesc, err == nil && answer == "connected", host, database)
	}
	if text, err := s.call(ctx, "stopwatch/show"); err == nil {
		collectStopwatches(f, host, unixctl.ParseStopwatches(text))
	}
	if text, err := s.call(ctx, "inc-engine/show-stats"); err == nil {
		for _, n := range unixctl.ParseEngine(text) {
			f.Counter(engineDesc, n.Recomputed, host, n.Name, "recompute")
			f.Counter(engineDesc, n.Computed, host, n.Name, "compute")
			f.Counter(engineDesc, n.Cancelled, host, n.Name, "cancel")
		}
	}
}

func collectStopwatches(f *supervisor.Figures, host string, all []unixctl.Stopwatch) {
	for _, w := range all {
		f.Counter(samplesDesc, w.Samples, host, w.Name)
		f.Gauge(stopwatchDesc, w.Maximum, host, w.Name, "max")
		f.Gauge(stopwatchDesc, w.Percentile, host, w.Name, "p95")
		f.Gauge(stopwatchDesc, w.ShortTerm, host, w.Name, "short_term_average")
		f.Gauge(stopwatchDesc, w.LongTerm, host, w.Name, "long_term_average")
	}
}
