// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kiln-net/kiln/internal/netprobe"
	"github.com/kiln-net/kiln/internal/netprobe/measure"
)

// PerfReport is the output of `kubectl ko perf -o json`.
type PerfReport struct {
	// Seconds is the duration of each measurement.
	Seconds float64   `json:"seconds"`
	Rows    []PerfRow `json:"rows"`
	// Recovery has the measurements of --disrupt, which makes no others.
	Recovery []PerfRecovery `json:"recovery,omitempty"`
}

// PerfRow has the measurements of a path with one protocol in one address family.
type PerfRow struct {
	// Path is "pod network", "Service" or "host network".
	Path     string `json:"path"`
	From     string `json:"fromNode"`
	To       string `json:"toNode"`
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	// BitsPerSecond is the throughput: of one TCP connection, or of UDP packets of PacketBytes that arrived. Lost is the part of these that did not.
	BitsPerSecond float64 `json:"bitsPerSecond"`
	PacketBytes   int     `json:"packetBytes,omitempty"`
	Lost          float64 `json:"lost"`
	// RoundTrips are of messages of each size.
	RoundTrips []RoundTrip `json:"roundTrips"`
	// Errors are of measurements that failed.
	Errors []string `json:"errors,omitempty"`
}

// RoundTrip has the times from sending a message until its echo, in microseconds. Lost is the part of messages without an echo.
type RoundTrip struct {
	Bytes  int     `json:"bytes"`
	Median float64 `json:"medianMicroseconds"`
	P99    float64 `json:"p99Microseconds"`
	Lost   float64 `json:"lost,omitempty"`
}

// measureAll makes all measurements, one after another. With an error, the report has those until then.
func (r *perfRun) measureAll(ctx context.Context) (*PerfReport, error) {
	report := &PerfReport{Seconds: r.duration.Seconds(), Rows: []PerfRow{}}
	paths := r.paths()
	protocols := []string{netprobe.TCP, netprobe.UDP}
	total := time.Duration(len(paths)*len(protocols)) * r.rowTime()
	fmt.Fprintf(r.errOut, "measuring %d paths, which takes about %s\n", len(paths), total.Round(time.Second))
	for _, path := range paths {
		fmt.Fprintf(r.errOut, "%s, %s → %s, %s\n", path.name, path.from.Spec.NodeName, path.node, familyOf(path.to.Addr().String()))
		for _, protocol := range protocols {
			row := r.measureRow(ctx, path, protocol)
			if ctx.Err() != nil {
				return report, fmt.Errorf("interrupted: %w", context.Cause(ctx))
			}
			report.Rows = append(report.Rows, row)
		}
	}
	return report, nil
}

// measureRow measures a path with one protocol.
func (r *perfRun) measureRow(ctx context.Context, path perfPath, protocol string) PerfRow {
	row := PerfRow{
		Path: path.name, From: path.from.Spec.NodeName, To: path.node, Family: familyOf(path.to.Addr().String()), Protocol: protocol, RoundTrips: []RoundTrip{},
	}
	throughput, roundTrip := measure.Stream, measure.RR
	if protocol == netprobe.UDP {
		throughput, roundTrip = measure.Full, measure.UDPRR
	}
	m := measure.Measurement{Kind: throughput, Address: path.to.String(), Key: r.key, Duration: r.duration}
	list := []measure.Measurement{m}
	m.Kind = roundTrip
	for _, m.Size = range messageSizes {
		list = append(list, m)
	}
	outcomes, err := r.measure(ctx, path.from, list)
	if err != nil {
		row.Errors = []string{plain(err.Error())}
		return row
	}
	for i, o := range outcomes {
		switch {
		case o.Error != "" && i == 0:
			row.Errors = append(row.Errors, "throughput: "+plain(o.Error))
		case o.Error != "":
			row.Errors = append(row.Errors, fmt.Sprintf("round trips of %d bytes: %s", list[i].Size, plain(o.Error)))
		case i > 0:
			row.RoundTrips = append(row.RoundTrips, RoundTrip{Bytes: list[i].Size, Median: o.Median, P99: o.P99, Lost: o.Lost})
		case protocol == netprobe.UDP:
			row.BitsPerSecond, row.PacketBytes, row.Lost = o.Rate*8*float64(o.Size), o.Size, o.Lost
		default:
			row.BitsPerSecond = o.Rate
		}
	}
	return row
}

// failure returns an error if a measurement failed, or if there are none.
func (r *perfRun) failure(report *PerfReport) error {
	var between []string
	count := 0
	for i := range report.Rows {
		if row := &report.Rows[i]; len(row.Errors) > 0 {
			count += len(row.Errors)
			between = append(between, row.From+" → "+row.To)
		}
	}
	slices.Sort(between)
	switch {
	case count > 0:
		return fmt.Errorf("%d measurements failed: %s", count, shortened(slices.Compact(between)))
	case r.failed > 0:
		return fmt.Errorf("pods do not start on %s", shortened(slices.Compact(r.between)))
	case len(report.Rows) == 0:
		return errors.New("nothing was measured")
	}
	return nil
}

// write writes the report as a table.
func (p *PerfReport) write(out io.Writer) error {
	if len(p.Recovery) > 0 {
		return p.writeRecovery(out)
	}
	if len(p.Rows) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "PATH\tNODES\tFAMILY\tPROTOCOL\tTHROUGHPUT\tLOST")
	for _, size := range messageSizes {
		fmt.Fprintf(w, "\t%s", bytesOf(size))
	}
	fmt.Fprintln(w)
	for i := range p.Rows {
		fmt.Fprintln(w, strings.Join(p.Rows[i].columns(), "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	fmt.Fprintln(out, "The last columns are round trips of messages of this size in bytes: median/99th percentile in microseconds.")
	for i := range p.Rows {
		row := &p.Rows[i]
		for _, problem := range row.Errors {
			fmt.Fprintf(out, "FAIL  %s, %s → %s, %s, %s: %.400s\n", row.Path, row.From, row.To, row.Family, row.Protocol, problem)
		}
	}
	return nil
}

// columns are the columns of a row in the table. A measurement that failed has a hyphen.
func (row *PerfRow) columns() []string {
	nodes := row.From
	if row.To != row.From {
		nodes += " → " + row.To
	}
	throughput, lost := "-", "-"
	if row.BitsPerSecond > 0 {
		throughput = bitsOf(row.BitsPerSecond)
		if row.Protocol == netprobe.UDP {
			lost = fmt.Sprintf("%.1f %%", 100*row.Lost)
		}
	}
	columns := []string{row.Path, nodes, row.Family, row.Protocol, throughput, lost}
	for _, size := range messageSizes {
		column := "-"
		if i := slices.IndexFunc(row.RoundTrips, func(t RoundTrip) bool { return t.Bytes == size }); i >= 0 {
			column = fmt.Sprintf("%.0f/%.0f", row.RoundTrips[i].Median, row.RoundTrips[i].P99)
		}
		columns = append(columns, column)
	}
	return columns
}

func bitsOf(perSecond float64) string {
	if perSecond >= 1e9 {
		return fmt.Sprintf("%.2f Gbit/s", perSecond/1e9)
	}
	return fmt.Sprintf("%.1f Mbit/s", perSecond/1e6)
}

func bytesOf(size int) string {
	if size >= 1024 {
		return strconv.Itoa(size/1024) + "k"
	}
	return strconv.Itoa(size)
}
