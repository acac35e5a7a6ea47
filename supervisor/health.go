// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/kiln-net/kiln/internal/serving/httpserver"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// readyTimeout bounds one readiness check. The kubelet's own limit is one second by default.
const readyTimeout = 5 * time.Second

// Endpoint is one more path that ServeHealth serves to GET requests.
type Endpoint struct {
	Path    string
	Handler http.Handler
}

// ServeHealth serves paths on address until ctx ends: /healthz returns 200 while the supervisor runs; /readyz returns 200
// while ready returns nil, otherwise 503 with the error; version.Path returns the versions of the running programs; adminapi.MetricsPath is served by
// metrics unless it is nil. It also serves more. /healthz and /readyz are for the node's own processes. All callers share the results of ready and
// versions, so that the load on daemons does not depend on the number of requests.
func ServeHealth(
	ctx context.Context, address string, ready func(context.Context) error, versions func(context.Context) (version.Programs, error), metrics http.Handler,
	more ...Endpoint,
) error {
	mux := http.NewServeMux()
	for _, e := range more {
		mux.Handle("GET "+e.Path, e.Handler)
	}
	if metrics != nil {
		mux.Handle("GET "+adminapi.MetricsPath, metrics)
	}
	mux.Handle("GET "+version.Path, version.Handler(versions))
	mux.Handle("GET /healthz", httpserver.Local(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })))
	shared := httpserver.Share(readyTimeout, ready)
	mux.Handle("GET /readyz", httpserver.Local(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := shared(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})))
	listener, err := httpserver.Listen(ctx, address)
	if err != nil {
		return fmt.Errorf("serve health: %w", err)
	}
	server := httpserver.New(mux)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health on %s: %w", address, err)
	}
	return nil
}

// HealthAddress returns the loopback address with the port, for the kubelet's probes of a host-network pod.
func HealthAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// terminationLog is the file from which Kubernetes reads why a container ended (core/v1, Container.terminationMessagePath).
const terminationLog = "/dev/termination-log"

// ReportFailure writes err to the container's termination message and returns it. Outside of Kubernetes the file does not exist,
// and ReportFailure only returns err.
func ReportFailure(err error) error {
	if err == nil {
		return nil
	}
	file, openErr := os.OpenFile(terminationLog, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(openErr, os.ErrNotExist) {
		return err
	}
	if openErr != nil {
		return errors.Join(err, fmt.Errorf("write the termination message: %w", openErr))
	}
	_, writeErr := fmt.Fprintln(file, err)
	return errors.Join(err, writeErr, file.Close())
}
