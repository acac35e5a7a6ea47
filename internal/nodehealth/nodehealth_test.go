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
	"testing"
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
