// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package page draws dashboards as HTML pages with the data of a Prometheus.
package page

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"
)

// Getter sends a GET request to a path of Prometheus' API, such as query, and returns the body of the response.
type Getter func(ctx context.Context, path string, parameters url.Values) ([]byte, error)

// HTTP returns a Getter for the URL of a Prometheus.
func HTTP(address string) Getter {
	return func(ctx context.Context, path string, parameters url.Values) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/api/v1/"+path+"?"+parameters.Encode(), http.NoBody)
		if err != nil {
			return nil, fmt.Errorf("make a request to Prometheus: %w", err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, fmt.Errorf("query Prometheus: %w", err)
		}
		defer response.Body.Close()
		return io.ReadAll(response.Body)
	}
}

// Series is a series of a result.
type Series struct {
	Labels map[string]string `json:"metric"`
	// Points are times and values: one for an instant, several for a range.
	Points []Point `json:"values"`
	Value  Point   `json:"value"`
}

// Point is a value at a time. Its form in JSON is [seconds, "value"].
type Point struct {
	At    float64
	Value float64
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Point) UnmarshalJSON(text []byte) error {
	var value string
	if err := json.Unmarshal(text, &[]any{&p.At, &value}); err != nil {
		return err
	}
	var err error
	p.Value, err = strconv.ParseFloat(value, 64)
	return err
}

// Instant returns the series of an expression now.
func (get Getter) Instant(ctx context.Context, expr string) ([]Series, error) {
	return get.series(ctx, "query", url.Values{"query": {expr}})
}

// Range returns the series of an expression in a time span.
func (get Getter) Range(ctx context.Context, expr string, from, to time.Time, step time.Duration) ([]Series, error) {
	return get.series(ctx, "query_range", url.Values{
		"query": {expr}, "start": {seconds(from)}, "end": {seconds(to)}, "step": {strconv.FormatFloat(step.Seconds(), 'f', -1, 64)},
	})
}

func seconds(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

func (get Getter) series(ctx context.Context, path string, parameters url.Values) ([]Series, error) {
	body, err := get(ctx, path, parameters)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error string
		Data  struct{ Result []Series }
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("decode the response to %s: %w: %.200s", parameters.Get("query"), err, body)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", parameters.Get("query"), answer.Error)
	}
	return answer.Data.Result, nil
}

var label = regexp.MustCompile(`\{\{(\w+)\}\}`)

// name returns the name of a series: the legend with the values of its labels.
func (s Series) name(legend string) string {
	return label.ReplaceAllStringFunc(legend, func(field string) string { return s.Labels[label.FindStringSubmatch(field)[1]] })
}
