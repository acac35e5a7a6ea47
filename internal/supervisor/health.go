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

	"github.com/kiln-net/kiln/internal/version"
)

// readyTimeout bounds what a readiness probe may cost: the kubelet's own limit is a second by default.
const readyTimeout = 5 * time.Second

// ServeHealth answers /healthz, which is 200 while the supervisor runs, and /readyz, which is 200 while ready returns nil and
// else says why not, and the versions of what runs, on address until ctx ends.
func ServeHealth(
	ctx context.Context, address string, ready func(context.Context) error, versions func(context.Context) (version.Programs, error),
) error {
	mux := http.NewServeMux()
	mux.Handle("GET "+version.Path, version.Handler(versions))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		if err := ready(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: readyTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health on %s: %w", address, err)
	}
	return nil
}

// HealthAddress is the loopback address of a port, for probes of the kubelet of a host network's pod.
func HealthAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// terminationLog is where Kubernetes reads why a container ended (core/v1, Container.terminationMessagePath).
const terminationLog = "/dev/termination-log"

// ReportFailure leaves err as the container's termination message, and returns it. Without such a file, outside of Kubernetes,
// it does nothing more.
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
