// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package unixctl

import (
	"regexp"
	"strconv"
	"strings"
)

// Datapath is one datapath of ovs-vswitchd, from the output of `dpctl/show` (ovs-dpctl(8)).
type Datapath struct {
	// Name and Type: `ovs-system` and `system`, or `ovs-netdev` and `netdev`.
	Name, Type string
	// Hit, Missed and Lost are numbers of packets: with a flow in the datapath, without one, and dropped before ovs-vswitchd read them.
	Hit, Missed, Lost float64
	// Flows in the datapath.
	Flows float64
	// Masks are the figures of the kernel's table of masks; nil for the userspace datapath.
	Masks *Masks
	Ports []DatapathPort
}

// Masks has the number of masks, of the masks that lookups visited, and of visited masks by packet.
type Masks struct{ Hit, Total, Ratio float64 }

// DatapathPort is a port of a datapath.
type DatapathPort struct{ Number, Name, Type string }

var (
	datapathLine = regexp.MustCompile(`^(\w+)@(\S+):$`)
	lookupsLine  = regexp.MustCompile(`^\s+lookups: hit:(\d+) missed:(\d+) lost:(\d+)`)
	flowsLine    = regexp.MustCompile(`^\s+flows: (\d+)`)
	masksLine    = regexp.MustCompile(`^\s+masks: hit:(\d+) total:(\d+) hit/pkt:([\d.]+)`)
	portLine     = regexp.MustCompile(`^\s+port (\d+): (\S+)(?: \(([^:)]+))?`)
)

// ParseDatapaths parses the output of `dpctl/show`. Lines that it does not know are skipped.
func ParseDatapaths(text string) []Datapath {
	var all []Datapath
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := datapathLine.FindStringSubmatch(line); m != nil {
			all = append(all, Datapath{Type: m[1], Name: m[2]})
			continue
		}
		if len(all) == 0 {
			continue
		}
		d := &all[len(all)-1]
		if m := lookupsLine.FindStringSubmatch(line); m != nil {
			d.Hit, d.Missed, d.Lost = float(m[1]), float(m[2]), float(m[3])
		} else if m := flowsLine.FindStringSubmatch(line); m != nil {
			d.Flows = float(m[1])
		} else if m := masksLine.FindStringSubmatch(line); m != nil {
			d.Masks = &Masks{Hit: float(m[1]), Total: float(m[2]), Ratio: float(m[3])}
		} else if m := portLine.FindStringSubmatch(line); m != nil {
			d.Ports = append(d.Ports, DatapathPort{Number: m[1], Name: m[2], Type: m[3]})
		}
	}
	return all
}

// Stopwatch has the durations of one part of a daemon's main loop, in milliseconds, from the output of `stopwatch/show` (ovn-northd(8),
// ovn-controller(8)).
type Stopwatch struct {
	Name                string
	Samples             float64
	Maximum, Percentile float64 // Percentile is the 95th
	ShortTerm, LongTerm float64 // averages
}

var (
	stopwatchLine = regexp.MustCompile(`^Statistics for '([^']+)'`)
	figureLine    = regexp.MustCompile(`^\s+([A-Za-z0-9 ]+): ([\d.]+)`)
)

// ParseStopwatches parses the output of `stopwatch/show`. Stopwatches without samples are skipped.
func ParseStopwatches(text string) []Stopwatch {
	var all []Stopwatch
	for line := range strings.Lines(text) {
		if m := stopwatchLine.FindStringSubmatch(line); m != nil {
			all = append(all, Stopwatch{Name: m[1]})
			continue
		}
		m := figureLine.FindStringSubmatch(line)
		if m == nil || len(all) == 0 {
			continue
		}
		s, value := &all[len(all)-1], float(m[2])
		switch m[1] {
		case "Total samples":
			s.Samples = value
		case "Maximum":
			s.Maximum = value
		case "95th percentile":
			s.Percentile = value
		case "Short term average":
			s.ShortTerm = value
		case "Long term average":
			s.LongTerm = value
		}
	}
	used := all[:0]
	for _, s := range all {
		if s.Samples > 0 {
			used = append(used, s)
		}
	}
	return used
}

// EngineNode has how often a node of a daemon's incremental engine was computed, from the output of `inc-engine/show-stats`
// (ovn-northd(8)).
type EngineNode struct {
	Name string
	// Recomputed from all its inputs, Computed from changes, and Cancelled.
	Recomputed, Computed, Cancelled float64
}

var (
	nodeLine  = regexp.MustCompile(`^Node: (\S+)`)
	countLine = regexp.MustCompile(`^- (recompute|compute|cancel):\s+(\d+)`)
)

// ParseEngine parses the output of `inc-engine/show-stats`. Nodes that never ran are skipped.
func ParseEngine(text string) []EngineNode {
	var all []EngineNode
	for line := range strings.Lines(text) {
		if m := nodeLine.FindStringSubmatch(line); m != nil {
			all = append(all, EngineNode{Name: m[1]})
			continue
		}
		m := countLine.FindStringSubmatch(line)
		if m == nil || len(all) == 0 {
			continue
		}
		n, value := &all[len(all)-1], float(m[2])
		switch m[1] {
		case "recompute":
			n.Recomputed = value
		case "compute":
			n.Computed = value
		case "cancel":
			n.Cancelled = value
		}
	}
	used := all[:0]
	for _, n := range all {
		if n.Recomputed+n.Computed+n.Cancelled > 0 {
			used = append(used, n)
		}
	}
	return used
}

func float(text string) float64 {
	value, _ := strconv.ParseFloat(text, 64)
	return value
}

// ParseNumber parses a daemon's answer that is a number.
func ParseNumber(text string) (float64, bool) {
	value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	return value, err == nil
}

// ParseMeters parses the answer of ovn-controller's command meter-table-list, and returns the names of meters by their OpenFlow numbers.
func ParseMeters(text string) map[uint32]string {
	names := map[uint32]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		at := strings.LastIndex(line, ": ")
		if at < 0 {
			continue
		}
		if id, err := strconv.ParseUint(line[at+2:], 10, 32); err == nil {
			names[uint32(id)] = line[:at]
		}
	}
	return names
}
