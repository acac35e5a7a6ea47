// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/internal/serving/httpserver"
)

// health serves the health checks of external load balancers: each Service with spec.healthCheckNodePort has a port that reports whether
// this node has endpoints of it.
type health struct {
	checks map[types.NamespacedName]*check
}

// check is the server of one Service.
type check struct {
	port  int32
	count atomic.Int32
	end   context.CancelFunc
}

// set starts or updates the server of a Service with the number of its endpoints. The server runs until ctx ends, or set is called with
// port 0.
func (h *health) set(ctx context.Context, service types.NamespacedName, port int32, count int) {
	c := h.checks[service]
	if c != nil && c.port != port {
		c.end()
		delete(h.checks, service)
		c = nil
	}
	if port == 0 {
		return
	}
	if c == nil {
		own, end := context.WithCancel(ctx)
		c = &check{port: port, end: end}
		if h.checks == nil {
			h.checks = map[types.NamespacedName]*check{}
		}
		h.checks[service] = c
		go c.serve(own, service)
	}
	c.count.Store(int32(count)) //nolint:gosec // endpoints of one node
}

// serve serves until ctx ends. Another program may still use the port: kube-proxy, which the agent replaces, or the stopping server of
// another Service. Since no event reports that a port is free, serve retries. It also listens again after the kernel refused to accept
// connections, for example for lack of memory.
func (c *check) serve(ctx context.Context, service types.NamespacedName) {
	server := httpserver.New(c.handler(service))
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	said := false
	for ctx.Err() == nil {
		listener, err := httpserver.Listen(ctx, ":"+strconv.Itoa(int(c.port)))
		if err == nil {
			said = false
			err = server.Serve(listener) // until Close
		}
		if !said && ctx.Err() == nil {
			said = true
			log.FromContext(ctx).Error(err, "load balancers outside cannot ask whether this node has endpoints; trying again each second",
				"service", service, "healthCheckNodePort", c.port)
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
		}
	}
}

// handler responds as kube-proxy does: 200 if there are endpoints on this node, 503 otherwise.
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
