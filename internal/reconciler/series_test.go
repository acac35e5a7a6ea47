// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kiln-net/kiln/internal/reconciler"
)

func TestAnObjectHasOneSeries(t *testing.T) {
	used := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "test_used"}, []string{"subnet", "cidr"})
	free := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "test_free"}, []string{"subnet", "cidr"})
	s := reconciler.NewSeries(used, free)
	s.Set([]string{"a", "10.0.0.0/24"}, 1, 253)
	s.Set([]string{"b", "10.0.1.0/24"}, 2, 252)
	s.Set([]string{"a", "10.0.0.0/16"}, 3, 65531)
	if n := testutil.CollectAndCount(used); n != 2 {
		t.Errorf("%d series of 2 subnets, one with a changed label", n)
	}
	if v := testutil.ToFloat64(free.WithLabelValues("a", "10.0.0.0/16")); v != 65531 {
		t.Errorf("free addresses: %v", v)
	}
	s.Delete("a")
	s.Delete("a")
	s.Delete("none")
	if n := testutil.CollectAndCount(free); n != 1 {
		t.Errorf("%d series after one of two subnets was deleted", n)
	}
}
