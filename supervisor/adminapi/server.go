// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package adminapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/kiln-net/kiln/internal/serving/httpserver"
	"github.com/kiln-net/kiln/internal/serving/tlsdir"
)

// Handler serves a member and its metrics. Errors of the member are returned as status 500 with their text.
func Handler(db Database, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+MetricsPath, metrics)
	mux.HandleFunc("GET /status", telling(db.Status))
	mux.HandleFunc("GET /schemas", telling(db.Schemas))
	mux.HandleFunc("GET /beyond-vxlan", telling(db.BeyondVXLAN))
	mux.HandleFunc("POST /convert", func(w http.ResponseWriter, r *http.Request) { answer(w, db.Convert(r.Context())) })
	mux.HandleFunc("GET /chassis", telling(db.Chassis))
	mux.HandleFunc("POST /chassis/remove", func(w http.ResponseWriter, r *http.Request) {
		answer(w, db.RemoveChassis(r.Context(), r.URL.Query()["name"]))
	})
	mux.HandleFunc("POST /kick", func(w http.ResponseWriter, r *http.Request) {
		server := r.URL.Query().Get("server")
		if server == "" {
			http.Error(w, "the query parameter server is missing: a server ID or address", http.StatusBadRequest)
			return
		}
		answer(w, db.Kick(r.Context(), server))
	})
	mux.HandleFunc("POST /leave", func(w http.ResponseWriter, r *http.Request) { answer(w, db.Leave(r.Context())) })
	mux.HandleFunc("POST /compact", func(w http.ResponseWriter, r *http.Request) { answer(w, db.Compact(r.Context())) })
	return mux
}

// ArchiveHandler serves the backups of an archive.
func ArchiveHandler(a Archive) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", telling(a.Status))
	mux.HandleFunc("GET /backups/{name}", func(w http.ResponseWriter, r *http.Request) {
		file, err := a.Open(r.PathValue("name"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer file.Close()
		if _, err := io.Copy(w, file); err != nil {
			panic(http.ErrAbortHandler) // aborts the response, so that the client detects that it is truncated
		}
	})
	return mux
}

// telling returns a handler that responds with the result of get as JSON.
func telling[T any](get func(context.Context) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := get(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value) // fails only when the client has disconnected
	}
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// callersFile has the CA of callers, in the directory of tls.crt and tls.key.
const callersFile = "admin-ca.crt"

// limited refuses requests of kube-ovn-monitor for anything but metrics.
func limited(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && r.TLS.PeerCertificates[0].Subject.CommonName == MonitorName && (r.Method != http.MethodGet || r.URL.Path != MetricsPath) {
			http.Error(w, MonitorName+" may read metrics only", http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// Serve serves on address (`[::]:6651`) until ctx ends.
func Serve(ctx context.Context, address, tlsDir string, handler http.Handler) error {
	plain, err := httpserver.Listen(ctx, address)
	if err != nil {
		return fmt.Errorf("serve the operator: %w", err)
	}
	listener := tls.NewListener(plain, tlsdir.Server(tlsDir, callersFile))
	server := httpserver.New(limited(handler))
	// Only the operator, kube-ovn-monitor and members of the databases pass the handshake. They keep connections and download backups.
	server.SetKeepAlivesEnabled(true)
	server.ReadTimeout, server.WriteTimeout, server.IdleTimeout = backupTimeout, backupTimeout, 2*idleTimeout
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); ctx.Err() == nil {
		return fmt.Errorf("serve the operator on %s: %w", address, err)
	}
	return nil
}
