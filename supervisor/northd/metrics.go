// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northd

import (
	"context"
	"net/http"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/unixctl"
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

// answerTime shows iterations that are too long for a collection. The averages of the daemon's own stopwatch do not: between two long iterations
// there are many that change nothing.
var answerTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Name: "kiln_northd_answer_seconds", Help: "Time until ovn-northd answered a request of its supervisor, one every 2 s: the rest of an iteration of its main loop.",
	Buckets: []float64{0.01, 0.1, 0.5, 1, 2, 5, 10, 15},
}, []string{"hostname"})

// component is the value of the label component, which is Kube-OVN's.
const component = "ovn-northd"

// serveMetrics serves metrics to kube-ovn-monitor until ctx ends. ovn-northd runs without it.
func (s *supervised) serveMetrics(ctx context.Context) {
	if s.options.MetricsAddress == "" {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+adminapi.MetricsPath, supervisor.MetricsHandler(supervisor.NewCollector(s.collect), answerTime, repairs))
	report := func(err error) {
		if ctx.Err() == nil {
			s.options.Log.Error(err, "serving metrics again")
		}
	}
	supervisor.Retry(ctx, report, func() error { return adminapi.Serve(ctx, s.options.MetricsAddress, s.options.TLSDir, mux) })
}

// collect queries the daemon, which answers between two iterations of its main loop. During a long iteration it adds no figures of the
// daemon.
func (s *supervised) collect(ctx context.Context, f *supervisor.Figures) {
	host := s.options.Node
	supervisor.CollectCertificate(f, host, component, filepath.Join(s.options.TLSDir, "tls.crt"))
	answers := s.answers(ctx, "status", "nb-connection-status", "sb-connection-status", "stopwatch/show", "inc-engine/show-stats")
	switch status, answered := answers["status"]; {
	case status == "Status: active":
		f.Gauge(statusDesc, 1, host, component)
	case status == "Status: standby":
		f.Gauge(statusDesc, 2, host, component)
	case answered || ctx.Err() == nil:
		f.Gauge(statusDesc, 0, host, component)
	}
	for database, command := range map[string]string{"northbound": "nb-connection-status", "southbound": "sb-connection-status"} {
		if answer, answered := answers[command]; answered || ctx.Err() == nil {
			f.Present(connectedDesc, answer == "connected", host, database)
		}
	}
	collectStopwatches(f, host, unixctl.ParseStopwatches(answers["stopwatch/show"]))
	for _, n := range unixctl.ParseEngine(answers["inc-engine/show-stats"]) {
		f.Counter(engineDesc, n.Recomputed, host, n.Name, "recompute")
		f.Counter(engineDesc, n.Computed, host, n.Name, "compute")
		f.Counter(engineDesc, n.Cancelled, host, n.Name, "cancel")
	}
}

// answers returns the output of the commands that the daemon answers. They are sent at once, so that one pause between iterations is enough.
func (s *supervised) answers(ctx context.Context, commands ...string) map[string]string {
	texts, errs := make([]string, len(commands)), make([]error, len(commands))
	var all sync.WaitGroup
	for i, command := range commands {
		all.Go(func() { texts[i], errs[i] = s.call(ctx, command) })
	}
	all.Wait()
	answers := map[string]string{}
	for i, command := range commands {
		if errs[i] == nil {
			answers[command] = texts[i]
		}
	}
	return answers
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
