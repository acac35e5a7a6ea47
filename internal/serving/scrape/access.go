// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scrape decides who may read the metrics of a process, as spec.monitoring.access says: everyone, over plain HTTP, or users with a
// right to them, over TLS.
package scrape

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/serving/httpserver"
)

// Path is the HTTP path of metrics.
const Path = "/metrics"

// PortOffset is the distance from the port of plain metrics to the port of metrics over TLS.
const PortOffset = 200

// retryDelay is the pause before the port is opened again after a failure.
const retryDelay = 5 * time.Second

// Access is the access to the metrics of one process.
type Access struct {
	// Port of metrics over TLS.
	Port int
	// Config returns how to reach the API server. It is called when TLS is first needed.
	Config func() (*rest.Config, error)
	Log    logr.Logger

	access  atomic.Pointer[v1alpha1.MetricsAccess]
	metrics atomic.Pointer[http.Handler]
	// stop ends the TLS server and waits for its end; nil while it does not run.
	stop func()
}

// Handler returns a handler that serves the metrics while the access is Open, and registers them for TLS. It refuses requests until the
// OVNCluster is known.
func (a *Access) Handler(metrics http.Handler) http.Handler {
	a.metrics.Store(&metrics)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch access := a.access.Load(); {
		case access == nil:
			http.Error(w, "waiting for the OVNCluster `default`, whose spec.monitoring.access says who may read metrics", http.StatusServiceUnavailable)
		case *access == v1alpha1.MetricsAuthorized:
			http.Error(w, fmt.Sprintf("spec.monitoring.access is Authorized: use TLS on port %d with a token", a.Port), http.StatusForbidden)
		default:
			metrics.ServeHTTP(w, r)
		}
	})
}

// Set starts or stops the TLS server. It must not be called concurrently. The server also ends with ctx.
func (a *Access) Set(ctx context.Context, access v1alpha1.MetricsAccess) {
	a.access.Store(&access)
	authorized := access == v1alpha1.MetricsAuthorized
	switch {
	case authorized && a.stop == nil:
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.run(ctx)
		}()
		a.stop = func() { cancel(); <-done }
	case !authorized && a.stop != nil:
		a.stop()
		a.stop = nil
	}
}

// run serves until ctx ends, and tries again after a failure.
func (a *Access) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := a.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		a.Log.Error(err, "serving metrics over TLS again")
		select {
		case <-ctx.Done():
		case <-time.After(retryDelay):
		}
	}
}

func (a *Access) serve(ctx context.Context) error {
	config, err := a.Config()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil // the reviewer limits the rate, and tokens that are allowed are not counted
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client for reviews: %w", err)
	}
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	reviews := newReviewer(client.AuthenticationV1().TokenReviews(), client.AuthorizationV1().SubjectAccessReviews(), time.Now)
	listener, err := httpserver.ListenWith(ctx, fmt.Sprintf(":%d", a.Port), reviews.isKnown)
	if err != nil {
		return fmt.Errorf("serve metrics over TLS: %w", err)
	}
	server := httpserver.New(reviews.authorized(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if metrics := a.metrics.Load(); metrics != nil {
			(*metrics).ServeHTTP(w, r)
		}
	})))
	server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics over TLS: %w", err)
	}
	return nil
}

// selfSigned returns a certificate that no client can verify. TLS protects the token and the metrics from readers of the network.
func selfSigned() (tls.Certificate, error) {
	certificate, key, err := certutil.GenerateSelfSignedCertKey("kiln-metrics", nil, nil)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("use the certificate: %w", err)
	}
	return pair, nil
}
