// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/serving/httpserver"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/version"
)

// TestParallelRequestsOfHealthCostOneCheck sends requests as the kubelet and the operator do, but many at once.
func TestParallelRequestsOfHealthCostOneCheck(t *testing.T) {
	listener := must.Value(net.Listen("tcp", "127.0.0.1:0"))
	address := listener.Addr().String()
	must.Succeed(t, listener.Close())
	var checks, versions atomic.Int32
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- ServeHealth(ctx, address,
			func(context.Context) error { checks.Add(1); return nil },
			func(context.Context) (version.Programs, error) { versions.Add(1); return version.Programs{}, nil }, nil)
	}()
	defer func() { cancel(); must.Succeed(t, <-done) }()
	get := func(path string) int {
		response, err := http.Get("http://" + address + path)
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	eventually.Wait{For: "the server", Limit: 10 * time.Second}.Holds(t, func() bool { return get("/healthz") == http.StatusOK })
	var all sync.WaitGroup
	for range 50 {
		for _, path := range []string{"/readyz", version.Path} {
			all.Go(func() {
				if code := get(path); code != http.StatusOK {
					t.Errorf("%s: %d", path, code)
				}
			})
		}
	}
	all.Wait()
	if permitted := 1 + int32(time.Since(began)/httpserver.Age); checks.Load() > permitted || versions.Load() > permitted {
		t.Errorf("%d checks and %d requests of versions", checks.Load(), versions.Load())
	}
}
