// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package httpserver makes the HTTP servers of all processes: with time limits, with bounds on the connections of each source, and with results
// that callers share. Pods and hosts of the network reach the ports of nodes, so that requests must cost a node little, no matter how many arrive.
package httpserver

import (
	"bytes"
	"context"
	"log"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	// headerTimeout bounds a TLS handshake and the time until a client has sent its header.
	headerTimeout = 5 * time.Second
	// exchangeTimeout bounds a request with its response. It is above the time limits of all handlers.
	exchangeTimeout = 30 * time.Second
	// maxHeader bounds a header, in bytes. The token of an OpenID provider has up to 8 KiB.
	maxHeader = 32 << 10
	// Age is how old a shared result may be.
	Age = time.Second
)

// New returns a server with time limits. It speaks HTTP/1.1 without persistent connections, so that the bounds of Listen on connections are
// bounds on requests.
func New(handler http.Handler) *http.Server {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       exchangeTimeout,
		WriteTimeout:      exchangeTimeout,
		IdleTimeout:       exchangeTimeout,
		MaxHeaderBytes:    maxHeader,
		Protocols:         &http.Protocols{},
		ErrorLog:          log.New(errorLog{}, "", log.LstdFlags),
	}
	server.Protocols.SetHTTP1(true)
	server.SetKeepAlivesEnabled(false)
	return server
}

// errorLog writes the errors of servers, except for failed TLS handshakes: a client could fill the log with them.
type errorLog struct{}

func (errorLog) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("TLS handshake error")) {
		return len(line), nil
	}
	return os.Stderr.Write(line)
}

// IsLocal reports whether a process in the network namespace of this process sent the request, by its loopback address or a Unix socket.
func IsLocal(r *http.Request) bool {
	source := Source(r)
	return !source.IsValid() || source.IsLoopback()
}

// Local serves requests of the network namespace of this process, such as the kubelet's probes of pods on the host network, and refuses others.
func Local(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsLocal(r) {
			http.Error(w, "this path is served on the loopback address only", http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// Share returns a function that returns the newest result of get to all its callers. It calls get if the result is older than Age, one call at a
// time. The context of get ends after the timeout, and not with a caller.
func Share[T any](timeout time.Duration, get func(context.Context) T) func() T {
	var mu sync.Mutex
	var at time.Time
	var newest T
	return func() T {
		mu.Lock()
		defer mu.Unlock()
		if at.IsZero() || time.Since(at) >= Age {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			newest = get(ctx)
			at = time.Now()
		}
		return newest
	}
}

// ShareResult is Share for functions that can fail. The error is shared as well.
func ShareResult[T any](timeout time.Duration, get func(context.Context) (T, error)) func() (T, error) {
	type result struct {
		value T
		err   error
	}
	share := Share(timeout, func(ctx context.Context) (r result) {
		r.value, r.err = get(ctx)
		return r
	})
	return func() (T, error) {
		r := share()
		return r.value, r.err
	}
}
