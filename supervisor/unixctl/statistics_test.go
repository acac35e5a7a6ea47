// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package unixctl

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The texts have the form of Open vSwitch 3.5 and OVN 25.03. Tests of the supervisors parse the output of running daemons.
func TestParseDatapaths(t *testing.T) {
	got := ParseDatapaths(`system@ovs-system:
  lookups: hit:251 missed:12 lost:1
  flows: 7
  masks: hit:503 total:4 hit/pkt:1.91
  cache: hit:60 hit-rate:22.81%
  caches:
    masks-cache: size:256
  port 0: ovs-system (internal)
  port 1: br-int (internal)
  port 2: genev_sys_6081 (geneve: packet_type=ptap)
  port 3: 1f2e3d4c5b6a_h
netdev@ovs-netdev:
  lookups: hit:5 missed:0 lost:0
  flows: 0
  port 0: ovs-netdev (tap)
`)
	want := []Datapath{
		{
			Name: "ovs-system", Type: "system", Hit: 251, Missed: 12, Lost: 1, Flows: 7, Masks: &Masks{Hit: 503, Total: 4, Ratio: 1.91},
			Ports: []DatapathPort{{"0", "ovs-system", "internal"}, {"1", "br-int", "internal"}, {"2", "genev_sys_6081", "geneve"}, {"3", "1f2e3d4c5b6a_h", ""}},
		},
		{Name: "ovs-netdev", Type: "netdev", Hit: 5, Ports: []DatapathPort{{"0", "ovs-netdev", "tap"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseStopwatches(t *testing.T) {
	got := ParseStopwatches(`Statistics for 'ovn-northd-loop'
  Total samples: 15
  Maximum: 72 msec
  Minimum: 1 msec
  95th percentile: 50.250000 msec
  Short term average: 3.500000 msec
  Long term average: 7.250000 msec
Statistics for 'lflows_ports'
  Total samples: 0
  Maximum: 0 msec
`)
	want := []Stopwatch{{Name: "ovn-northd-loop", Samples: 15, Maximum: 72, Percentile: 50.25, ShortTerm: 3.5, LongTerm: 7.25}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseEngine(t *testing.T) {
	got := ParseEngine(`Node: nb_nb_global
- recompute:            1
- compute:              0
- cancel:               0
Node: northd
- recompute:            3
- compute:             21
- cancel:               2
Node: unused
- recompute:            0
- compute:              0
- cancel:               0
`)
	want := []EngineNode{{Name: "nb_nb_global", Recomputed: 1}, {Name: "northd", Recomputed: 3, Computed: 21, Cancelled: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestOtherTextGivesNoStatistics(t *testing.T) {
	for _, text := range []string{"", "flows: 7\n", "port 1: x\n- compute: 3\n  Maximum: 4 msec\n", "system@ovs-system:\n  lookups: hit:many\n"} {
		for _, d := range ParseDatapaths(text) {
			if d.Hit != 0 || len(d.Ports) > 0 {
				t.Errorf("%q: %+v", text, d)
			}
		}
		if s, e := ParseStopwatches(text), ParseEngine(text); len(s) > 0 || len(e) > 0 {
			t.Errorf("%q: %+v %+v", text, s, e)
		}
	}
}
