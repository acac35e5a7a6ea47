// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"math"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

func TestPagesShowTheDataOfPrometheus(t *testing.T) {
	get := Getter(func(_ context.Context, path string, parameters url.Values) ([]byte, error) {
		if path != "query_range" || strings.Contains(parameters.Get("query"), "$") {
			t.Errorf("request of %s with %v", path, parameters)
		}
		if !strings.Contains(parameters.Get("query"), "kube_ovn_dp_flows_total") {
			return []byte(`{"status":"success","data":{"result":[]}}`), nil
		}
		return []byte(`{"status":"success","data":{"result":[{"metric":{"hostname":"<n1>"},"values":[[100,"7"],[110,"NaN"],[120,"9"]]}]}}`), nil
	})
	dir := t.TempDir()
	written, err := Write(t.Context(), get, dir, time.Unix(120, 0), time.Minute)
	if err != nil || len(written) != 6 {
		t.Fatalf("wrote %v: %v", written, err)
	}
	text, err := os.ReadFile(dir + "/kiln-overview.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"&lt;n1&gt;: 9", `d="M319.3`, "no data: kube-ovn-pinger is disabled"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page has no %q", want)
		}
	}
}

func TestAnErrorOfPrometheusIsReturned(t *testing.T) {
	get := Getter(func(context.Context, string, url.Values) ([]byte, error) {
		return []byte(`{"status":"error","error":"parse error: unexpected end"}`), nil
	})
	if _, err := get.Instant(t.Context(), "sum("); err == nil || !strings.Contains(err.Error(), "sum(: parse error") {
		t.Errorf("the error is %v", err)
	}
}

func TestAxesEndAtRoundValues(t *testing.T) {
	for _, c := range []struct {
		value float64
		unit  string
		want  float64
	}{
		{0, "short", 1}, {0.03, "s", 0.04}, {7, "short", 8}, {9, "short", 10}, {300 << 10, "bytes", 400 << 10}, {1000 << 20, "bytes", 1000 << 20}, {700, "Bps", 800},
	} {
		if got := roundUp(c.value, c.unit); math.Abs(got-c.want) > 1e-9*c.want {
			t.Errorf("the axis of %v %s ends at %v, want %v", c.value, c.unit, got, c.want)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		value float64
		unit  string
		want  string
	}{
		{0.123456, "s", "0.123 s"}, {1500, "short", "1500"}, {0.5, "percentunit", "50 %"}, {3 << 20, "bytes", "3 MiB"}, {172800, "dtdurations", "2 d"}, {10, "Bps", "10 B/s"},
	} {
		if got := format(c.value, c.unit); got != c.want {
			t.Errorf("%v %s is %q, want %q", c.value, c.unit, got, c.want)
		}
	}
}
