// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kiln-net/kiln/internal/serving/httpserver"
	"github.com/kiln-net/kiln/internal/version"
)

// Probes are the clients of /healthz and /readyz.
type Probes string

const (
	// ProbesLocal is for pods on the host network, whose kubelet probes the loopback address.
	ProbesLocal Probes = "Local"
	// ProbesRemote is for pods with a network of their own.
	ProbesRemote Probes = "Remote"
)

// shutdownTime is the time in which responses may finish when the manager stops.
const shutdownTime = time.Second

// NoServer switches off controller-runtime's own server of metrics, which has no bounds on connections. Serve replaces it.
func NoServer() metricsserver.Options { return metricsserver.Options{BindAddress: "0"} }

// Served are the endpoints of a process with a manager, besides /healthz and version.Path.
type Served struct {
	// Address to listen on; nothing is served if it is empty or "0".
	Address string
	Probes  Probes
	// Ready is the check of /readyz.
	Ready healthz.Checker
	// Access limits who may read metrics (Access.Handler); nil for no limit.
	Access func(metrics http.Handler) http.Handler
	// More are further handlers by their paths.
	More map[string]http.Handler
}

// Serve adds a server to a manager. It listens at once, and serves as soon as the manager starts, before caches have synced.
func Serve(mgr manager.Manager, s Served) error {
	if s.Address == "" || s.Address == "0" {
		return nil
	}
	listener, err := httpserver.Listen(context.Background(), s.Address)
	if err != nil {
		return fmt.Errorf("serve metrics and health: %w", err)
	}
	server := &manager.Server{Name: "metrics and health", Server: httpserver.New(s.handler()), Listener: listener, ShutdownTimeout: new(shutdownTime)}
	if err := mgr.Add(server); err != nil {
		return fmt.Errorf("add the server of metrics and health: %w", err)
	}
	return nil
}

func (s Served) handler() http.Handler {
	figures := registered()
	if s.Access != nil {
		figures = s.Access(figures)
	}
	probes := func(check healthz.Checker) http.Handler {
		handler := http.Handler(healthz.CheckHandler{Checker: check})
		if s.Probes == ProbesLocal {
			handler = httpserver.Local(handler)
		}
		return handler
	}
	mux := http.NewServeMux()
	mux.Handle(Path, figures)
	mux.Handle("/healthz", probes(healthz.Ping))
	mux.Handle("/readyz", probes(s.Ready))
	mux.Handle(version.Path, version.Handler(version.Own))
	for path, handler := range s.More {
		mux.Handle(path, handler)
	}
	return mux
}

// gatherTimeout is unused by collectors of a registry, which have no context.
const gatherTimeout = time.Minute

// registered serves the metrics of the global registry. Remote clients share the figures for a second.
func registered() http.Handler {
	shared := prometheus.GathererFunc(httpserver.ShareResult(gatherTimeout, func(context.Context) ([]*dto.MetricFamily, error) { return metrics.Registry.Gather() }))
	options := promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}
	local, remote := promhttp.HandlerFor(metrics.Registry, options), promhttp.HandlerFor(shared, options)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if httpserver.IsLocal(r) {
			local.ServeHTTP(w, r)
			return
		}
		remote.ServeHTTP(w, r)
	})
}
