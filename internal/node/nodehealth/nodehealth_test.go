// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/serving/httpserver"
)

func TestGetReturnsTheServedReport(t *testing.T) {
	want := Report{OVNController: "does not answer", Ports: 3, Unbound: []string{"6d1e2f7c-6f0a-4f2c-9a68-0c3a4f2b6c11"}}
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, Handler(func(context.Context) Report { return want }))
	server := httptest.NewServer(mux)
	address := netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://"))
	if got, err := Get(t.Context(), address); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	server.Close()
	if got, err := Get(t.Context(), address); err == nil {
		t.Errorf("report %+v of a closed port", got)
	}
}

// TestManyRequestsMakeOneReport sends the requests that one pod can send at once. Each report opens control connections to the daemons.
func TestManyRequestsMakeOneReport(t *testing.T) {
	var reports, parallel, most atomic.Int32
	began := time.Now()
	handler := Handler(func(context.Context) Report {
		most.Store(max(most.Load(), parallel.Add(1)))
		defer parallel.Add(-1)
		return Report{Ports: int(reports.Add(1))}
	})
	var all sync.WaitGroup
	for range 500 {
		all.Go(func() {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, Path, http.NoBody))
		})
	}
	all.Wait()
	if permitted := 1 + int32(time.Since(began)/httpserver.Age); reports.Load() > permitted || most.Load() > 1 {
		t.Errorf("500 requests made %d reports, %d at a time", reports.Load(), most.Load())
	}
}

func TestGetRefusesOtherAnswers(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"an error":   func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", http.StatusServiceUnavailable) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) },
		"text":       func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) },
		"a report without end": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"openVSwitch":"` + strings.Repeat("x", maxReport)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(answer)
			defer server.Close()
			if got, err := Get(t.Context(), netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://"))); err == nil {
				t.Errorf("report %+v", got)
			}
		})
	}
}
