// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// exported holds the metrics of the system under test, by name. It is empty for a system that exports none.
type exported map[string]*dto.MetricFamily

// scrape reads metrics in the text format of Prometheus. A system without metrics is no error.
func scrape(ctx context.Context, address string) (exported, error) {
	body, err := get(ctx, "http://"+address+"/metrics")
	if err != nil {
		return exported{}, nil //nolint:nilerr // the system exports no metrics
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of the system under test: %w", err)
	}
	return families, nil
}

// scrapes is the number of scrapes whose median duration is reported.
const scrapes = 9

// addScrape adds the number of series that a Prometheus gets from the system under test, and the time of a scrape.
func (b *bench) addScrape(ctx context.Context, scenario string) error {
	var took []time.Duration
	families := exported{}
	for range scrapes {
		began := time.Now()
		var err error
		if families, err = scrape(ctx, b.leader.metrics); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	if len(families) == 0 {
		return nil
	}
	slices.Sort(took)
	b.add(scenario, "series of the controller's metrics", "", float64(families.series()))
	b.add(scenario, "scrape and decoding of the controller's metrics", "ms", took[scrapes/2].Seconds()*1000)
	return nil
}

// series returns the number of series: a histogram has one for each bucket, and for its sum and count.
func (e exported) series() int {
	n := 0
	for _, family := range e {
		for _, m := range family.Metric {
			n++
			if m.Histogram != nil {
				n += len(m.Histogram.Bucket) + 1
			}
		}
	}
	return n
}

// value returns the value of a counter or gauge without labels, or false if there is none.
func (e exported) value(name string) (float64, bool) {
	family := e[name]
	if family == nil || len(family.Metric) != 1 {
		return 0, false
	}
	m := family.Metric[0]
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue(), true
}

// histogram is the increase of a histogram between two times.
type histogram struct {
	name string
	// bounds are upper bounds; counts are the numbers of values that do not exceed each.
	bounds []float64
	counts []uint64
	total  uint64
}

// histogramsSince returns the histograms with this prefix that have new values, sorted by name.
func (e exported) histogramsSince(before exported, prefix string) []histogram {
	var all []histogram
	for _, name := range slices.Sorted(maps.Keys(e)) {
		if !strings.HasPrefix(name, prefix) || e[name].GetType() != dto.MetricType_HISTOGRAM {
			continue
		}
		earlier := map[string]*dto.Histogram{}
		if family := before[name]; family != nil {
			for _, m := range family.Metric {
				earlier[labels(m)] = m.Histogram
			}
		}
		for _, m := range e[name].Metric {
			h := gained(m.Histogram, earlier[labels(m)])
			h.name = strings.TrimSpace(name + " " + labels(m))
			if h.total > 0 {
				all = append(all, h)
			}
		}
	}
	return all
}

func labels(m *dto.Metric) string {
	var all []string
	for _, l := range m.Label {
		all = append(all, l.GetName()+"="+l.GetValue())
	}
	return strings.Join(all, " ")
}

func gained(now, before *dto.Histogram) histogram {
	h := histogram{total: now.GetSampleCount() - before.GetSampleCount()}
	for i, bucket := range now.GetBucket() {
		if math.IsInf(bucket.GetUpperBound(), 1) {
			break
		}
		count := bucket.GetCumulativeCount()
		if i < len(before.GetBucket()) {
			count -= before.GetBucket()[i].GetCumulativeCount()
		}
		h.bounds, h.counts = append(h.bounds, bucket.GetUpperBound()), append(h.counts, count)
	}
	return h
}

// quantile is estimated as in Prometheus, by linear interpolation in its bucket. Values above all bounds count as the last bound.
func (h histogram) quantile(percent int) float64 {
	rank := float64(h.total) * float64(percent) / 100
	lower, below := 0.0, uint64(0)
	for i, bound := range h.bounds {
		if float64(h.counts[i]) >= rank {
			return lower + (bound-lower)*(rank-float64(below))/float64(max(1, h.counts[i]-below))
		}
		lower, below = bound, h.counts[i]
	}
	return lower
}

// addLegs adds the system's own measurements, in addition to the driver's.
func (b *bench) addLegs(scenario string, n int, before, after exported) {
	for _, h := range after.histogramsSince(before, b.options.legs) {
		name, unit, factor := "  its own "+strings.Replace(strings.TrimPrefix(h.name, b.options.legs), "_seconds", "", 1), "", 1.0
		if strings.Contains(h.name, "_seconds") {
			unit, factor = "ms", 1000
		}
		if h.total != uint64(n) {
			name += fmt.Sprintf(" (%s per pod)", short(float64(h.total)/float64(n)))
		}
		b.add(scenario, name+", p50", unit, factor*h.quantile(50))
		b.add(scenario, name+", p99", unit, factor*h.quantile(99))
	}
}

func get(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", url, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("%s is %s", url, response.Status), response.Body.Close())
	}
	return response.Body, nil
}
