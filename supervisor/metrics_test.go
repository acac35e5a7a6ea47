// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var testDesc = prometheus.NewDesc("test_figure", "A figure.", []string{"of"}, nil)

func scrape(t *testing.T, handler http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestManyRequestsCollectOnce(t *testing.T) {
	collections := 0
	handler := MetricsHandler(NewCollector(func(_ context.Context, f *Figures) {
		collections++
		f.Gauge(testDesc, 3, "a")
	}))
	for range 50 {
		if got := scrape(t, handler); !strings.Contains(got, `test_figure{of="a"} 3`) {
			t.Fatal(got)
		}
	}
	if collections > 2 { // 2 if the requests took longer than collectInterval
		t.Errorf("%d collections", collections)
	}
}

func TestTheOtherFiguresAreServedWhenOneIsRepeated(t *testing.T) {
	handler := MetricsHandler(NewCollector(func(_ context.Context, f *Figures) {
		f.Gauge(testDesc, 1, "a")
		f.Gauge(testDesc, 2, "a")
		f.Present(testDesc, true, "b")
	}))
	if got := scrape(t, handler); !strings.Contains(got, `test_figure{of="b"} 1`) {
		t.Error(got)
	}
}

func TestACollectionHasADeadline(t *testing.T) {
	handler := MetricsHandler(NewCollector(func(ctx context.Context, f *Figures) {
		if _, bounded := ctx.Deadline(); bounded {
			f.Present(testDesc, true, "bounded")
		}
	}))
	if got := scrape(t, handler); !strings.Contains(got, `test_figure{of="bounded"} 1`) {
		t.Error(got)
	}
}
