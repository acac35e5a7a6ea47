// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// columns is the first row of the file of all measured values. Each run of the suite adds a row for each value.
var columns = []string{"commit", "time", "spec", "value", "limit", "median", "first", "second", "third"}

// Columns that trends read.
const (
	specColumn, valueColumn, medianColumn = 2, 3, 5
)

// Value is a measured value in all runs of a suite.
type Value struct {
	Spec, Name string
	Limit      float64
	// Seconds has the value of each run in which the spec measured it: the greatest, if it did so several times.
	Seconds []float64
}

// Median returns the median of the runs.
func (v Value) Median() float64 { return median(v.Seconds) }

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	if n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[n/2]
}

// Values returns the values that the specs of several runs measured.
func Values(runs []Ran) []*Value {
	var values []*Value
	for _, r := range runs {
		for _, s := range r.specs {
			greatest := map[string]Timing{}
			var names []string
			for _, t := range s.timings {
				before, measured := greatest[t.What]
				if !measured {
					names = append(names, t.What)
				}
				if !measured || t.Seconds > before.Seconds {
					greatest[t.What] = t
				}
			}
			for _, name := range names {
				i := slices.IndexFunc(values, func(v *Value) bool { return v.Spec == s.name && v.Name == name })
				if i < 0 {
					values = append(values, &Value{Spec: s.name, Name: name})
					i = len(values) - 1
				}
				values[i].Seconds = append(values[i].Seconds, greatest[name].Seconds)
				values[i].Limit = greatest[name].Limit
			}
		}
	}
	return values
}

// Record adds values to the file of all runs. It returns a line for each median that is more than 30 % above the median of the last ten.
func Record(path, commit string, at time.Time, values []*Value) ([]string, error) {
	rows, err := readRows(path)
	if err != nil {
		return nil, err
	}
	var trends []string
	seconds := func(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }
	var added [][]string
	for _, v := range values {
		if line := trend(rows, v); line != "" {
			trends = append(trends, line)
		}
		row := []string{commit, at.UTC().Format(time.RFC3339), v.Spec, v.Name, seconds(v.Limit), seconds(v.Median())}
		for _, s := range v.Seconds {
			row = append(row, seconds(s))
		}
		for len(row) < len(columns) {
			row = append(row, "")
		}
		added = append(added, row)
	}
	return trends, appendRows(path, len(rows) == 0, added)
}

// Limits of trends.
const (
	trendRows  = 10
	trendRatio = 1.3
)

// trend returns a line if a value is greater than usual, otherwise an empty one. Fewer than three earlier values say nothing.
func trend(rows [][]string, v *Value) string {
	var before []float64
	for _, row := range rows {
		if f, err := strconv.ParseFloat(row[medianColumn], 64); err == nil && row[specColumn] == v.Spec && row[valueColumn] == v.Name {
			before = append(before, f)
		}
	}
	before = before[max(0, len(before)-trendRows):]
	if len(before) < 3 || v.Median() <= trendRatio*median(before) {
		return ""
	}
	return fmt.Sprintf("trend: %s of %q is %.3f s, %.0f %% above the median of the last %d (%.3f s; limit %.3f s)", v.Name, v.Spec, v.Median(),
		100*(v.Median()/median(before)-1), len(before), median(before), v.Limit)
}

func readRows(path string) ([][]string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("open the measured values: %w", err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.FieldsPerRecord = len(columns)
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read the measured values: %w", err)
	}
	return rows, nil
}

func appendRows(path string, withHeader bool, rows [][]string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of the measured values: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the measured values: %w", err)
	}
	w := csv.NewWriter(f)
	if withHeader {
		_ = w.Write(columns)
	}
	_ = w.WriteAll(rows) // flushes
	if err := errors.Join(w.Error(), f.Close()); err != nil {
		return fmt.Errorf("write the measured values: %w", err)
	}
	return nil
}
