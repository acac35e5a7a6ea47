// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-net/kiln/hack/dashboard/panels"
)

//go:embed page.html
var source string

var pageTemplate = template.Must(template.New("page").Parse(source))

// Size of a diagram in pixels, and of its plot.
const (
	width, height = 460, 190
	left, right   = 58, 10
	top, bottom   = 8, 22
)

// rateRange is the range of rates.
const rateRange = "1m"

var colours = []string{"#3274d9", "#e0752d", "#299c46", "#b877d9", "#d44a3a", "#1f978a", "#c4a000", "#705da0", "#8f3bb8", "#555555"}

type diagram struct {
	Title, Empty  string
	Lines         []line
	Ticks         []tick
	Times         []tick
	Width, Height int
	Left, Right   int
}

type line struct{ Name, Colour, Points, Last string }

type tick struct {
	At   int
	Text string
}

// Write writes a page for each dashboard to a directory, and returns their paths.
func Write(ctx context.Context, get Getter, directory string, now time.Time, last time.Duration) ([]string, error) {
	if err := os.MkdirAll(directory, 0o750); err != nil {
		return nil, fmt.Errorf("make the directory of pages: %w", err)
	}
	var written []string
	for _, d := range append([]panels.Dashboard{panels.Overview}, panels.KubeOVNDashboards()...) {
		var diagrams []diagram
		for _, p := range d.Panels {
			drawn, err := draw(ctx, get, p, now.Add(-last), now)
			if err != nil {
				return written, err
			}
			diagrams = append(diagrams, drawn)
		}
		text := &bytes.Buffer{}
		if err := pageTemplate.Execute(text, map[string]any{"Title": d.Title, "At": now.UTC().Format(time.DateTime), "Last": last, "Diagrams": diagrams}); err != nil {
			return written, fmt.Errorf("write the page of %s: %w", d.Name, err)
		}
		path := filepath.Join(directory, d.Name+".html")
		if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
			return written, err
		}
		written = append(written, path)
	}
	return written, nil
}

// draw draws a panel. Values that are no numbers, such as quantiles of nothing, interrupt a line.
func draw(ctx context.Context, get Getter, p panels.Panel, from, to time.Time) (diagram, error) {
	d := diagram{Title: p.Title, Empty: p.Empty, Width: width, Height: height, Left: left, Right: width - right}
	type named struct {
		name   string
		points []Point
	}
	var all []named
	highest := 0.0
	for _, q := range p.Queries {
		series, err := get.Range(ctx, q.For(rateRange), from, to, max(time.Second, to.Sub(from)/200))
		if err != nil {
			return d, err
		}
		for _, s := range series {
			all = append(all, named{s.name(q.Legend), s.Points})
			for _, point := range s.Points {
				if !math.IsNaN(point.Value) && !math.IsInf(point.Value, 0) {
					highest = max(highest, point.Value)
				}
			}
		}
	}
	ceiling := roundUp(highest, p.Unit)
	clock := "15:04"
	if to.Sub(from) < 10*time.Minute {
		clock = time.TimeOnly
	}
	x := func(at float64) float64 {
		return left + (at-float64(from.Unix()))/to.Sub(from).Seconds()*(width-left-right)
	}
	y := func(value float64) float64 { return top + (1-value/ceiling)*(height-top-bottom) }
	for i, s := range all {
		l := line{Name: s.name, Colour: colours[i%len(colours)], Last: format(s.points[len(s.points)-1].Value, p.Unit)}
		var path strings.Builder
		pen := "M"
		for _, point := range s.points {
			if math.IsNaN(point.Value) || math.IsInf(point.Value, 0) {
				pen = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", pen, x(point.At), y(point.Value))
			pen = "L"
		}
		l.Points = path.String()
		d.Lines = append(d.Lines, l)
	}
	for i := range 5 {
		value := ceiling * float64(i) / 4
		d.Ticks = append(d.Ticks, tick{int(y(value)), format(value, p.Unit)})
		at := from.Add(to.Sub(from) * time.Duration(i) / 4)
		d.Times = append(d.Times, tick{int(x(float64(at.Unix()))), at.UTC().Format(clock)})
	}
	return d, nil
}

// roundUp returns the top of an axis, which is not below the value: 1, 2, 4 or 8 times a power of ten, so that its quarters have few digits. For
// bytes these are multiples of a power of 1024.
func roundUp(value float64, unit string) float64 {
	if value <= 0 {
		return 1
	}
	prefix := 1.0
	if unit == "bytes" || unit == "Bps" {
		prefix = math.Pow(1024, max(0, math.Floor(math.Log2(value)/10)))
	}
	power := prefix * math.Pow(10, math.Floor(math.Log10(value/prefix)))
	for _, factor := range []float64{1, 2, 4, 8} {
		if value <= factor*power {
			return factor * power
		}
	}
	return 10 * power
}

// format writes a value with its unit.
func format(value float64, unit string) string {
	switch {
	case math.IsNaN(value):
		return "no data"
	case unit == "percentunit":
		return number(value*100) + " %"
	case unit == "dtdurations" && value >= 86400:
		return number(value/86400) + " d"
	case unit == "dtdurations" && value >= 3600:
		return number(value/3600) + " h"
	case unit == "s" || unit == "dtdurations":
		return number(value) + " s"
	case unit == "ms":
		return number(value) + " ms"
	case unit == "bytes" || unit == "Bps":
		suffix := map[string]string{"bytes": "B", "Bps": "B/s"}[unit]
		for _, prefix := range []string{"", "Ki", "Mi", "Gi"} {
			if math.Abs(value) < 1024 || prefix == "Gi" {
				return number(value) + " " + prefix + suffix
			}
			value /= 1024
		}
	case unit == "pps":
		return number(value) + " /s"
	}
	return number(value)
}

// number writes three significant digits.
func number(value float64) string {
	if math.Abs(value) >= 1000 {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strconv.FormatFloat(value, 'g', 3, 64)
}
