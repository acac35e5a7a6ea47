// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Series are gauges with one series for each object, whose labels change with the object. It is safe for concurrent use.
type Series struct {
	gauges []*prometheus.GaugeVec

	mu     sync.Mutex
	labels map[string][]string // of the exported series, by the object's name
}

// NewSeries registers gauges that have the same labels. The first label is the name of the object.
func NewSeries(gauges ...*prometheus.GaugeVec) *Series {
	for _, g := range gauges {
		metrics.Registry.MustRegister(g)
	}
	return &Series{gauges: gauges, labels: map[string][]string{}}
}

// Set exports a value for each gauge. It deletes the series that the object had with other labels.
func (s *Series) Set(labels []string, values ...float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := labels[0]
	if before := s.labels[name]; !slices.Equal(before, labels) {
		s.remove(before)
		s.labels[name] = labels
	}
	for i, g := range s.gauges {
		g.WithLabelValues(labels...).Set(values[i])
	}
}

// Delete deletes the series of an object.
func (s *Series) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(s.labels[name])
	delete(s.labels, name)
}

func (s *Series) remove(labels []string) {
	if labels == nil {
		return
	}
	for _, g := range s.gauges {
		g.DeleteLabelValues(labels...)
	}
}
