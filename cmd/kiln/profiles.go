// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/serving/httpserver"
	"github.com/kiln-net/kiln/supervisor"
)

// profilingOffset is the distance from the port of a process's /healthz to that of its profiles.
const profilingOffset = 100

// profiles serves net/http/pprof on the loopback address while it is enabled.
type profiles struct {
	port int
	// stop ends the server and waits for its end; nil while it does not run.
	stop func()
}

// set starts or stops the server. It must not be called concurrently. The server also ends with ctx.
func (p *profiles) set(ctx context.Context, profiling v1alpha1.Profiling) {
	enabled := profiling == v1alpha1.ProfilingEnabled
	switch {
	case enabled && p.stop == nil:
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			address := supervisor.HealthAddress(p.port)
			supervisor.Retry(ctx, func(err error) { ctrl.Log.Error(err, "serving profiles again") }, func() error { return serveProfiles(ctx, address) })
		}()
		p.stop = func() { cancel(); <-done }
	case !enabled && p.stop != nil:
		p.stop()
		p.stop = nil
	}
}

// serveProfiles serves profiles until ctx ends.
func serveProfiles(ctx context.Context, address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for requests of profiles: %w", err)
	}
	ctrl.Log.Info("serving profiles", "address", address)
	defer ctrl.Log.Info("profiles are no longer served", "address", address)
	server := httpserver.New(mux)
	server.ReadTimeout, server.WriteTimeout = 0, 0 // the caller says for how long a profile is recorded
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve profiles on %s: %w", address, err)
	}
	return nil
}
