// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// health answers load balancers outside which ask, at a port of a Service's own, whether this node has endpoints of it
// (spec.healthCheckNodePort).
type health struct {
	mu     sync.Mutex
	checks map[types.NamespacedName]*check
}

// check is the server of one Service.
type check struct {
	port   int32
	count  atomic.Int32
	server *http.Server
}

// set makes a Service's server answer with a number of endpoints; port 0 ends it.
func (h *health) set(service types.NamespacedName, port int32, count int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.checks[service]
	if c != nil && c.port != port {
		_ = c.server.Close()
		delete(h.checks, service)
		c = nil
	}
	if port == 0 {
		return nil
	}
	if c == nil {
		listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", ":"+strconv.Itoa(int(port)))
		if err != nil {
			return fmt.Errorf("listen at the health check node port of Service %s: %w", service, err)
		}
		c = &check{port: port}
		c.server = &http.Server{Handler: c.handler(service), ReadHeaderTimeout: 5 * time.Second}
		if h.checks == nil {
			h.checks = map[types.NamespacedName]*check{}
		}
		h.checks[service] = c
		go func() { _ = c.server.Serve(listener) }() // until Close
	}
	c.count.Store(int32(count)) //nolint:gosec // endpoints of one node
	return nil
}

// close ends all servers.
func (h *health) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var failed []error
	for service, c := range h.checks {
		failed = append(failed, c.server.Close())
		delete(h.checks, service)
	}
	return errors.Join(failed...)
}

// handler answers as kube-proxy does: 200 while there are endpoints here, 503 otherwise.
func (c *check) handler(service types.NamespacedName) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		count := c.count.Load()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(int(count)))
		if count == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"service":             map[string]string{"namespace": service.Namespace, "name": service.Name},
			"localEndpoints":      count,
			"serviceProxyHealthy": true,
		})
	})
}
