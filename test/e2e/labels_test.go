// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	ginkgotypes "github.com/onsi/ginkgo/v2/types"
)

// Labels that decide which target runs a spec. The labels of suites with a lab of their own are next to their specs.
const (
	// smoke is the label of the specs of the gate, `make test`. They have no limit in seconds on what the product does, so that a busy machine gives the same
	// result. A spec gets it after 10 of 10 runs of `make stress-smoke`.
	smoke = "smoke"
	// timed is the label of specs that judge seconds, gaps or losses. `make test-timing` runs them on an idle machine.
	timed = "timed"
	// unstable is the label of specs that failed in the gate without a known cause. It takes them out of the gate: see unstableSince.
	unstable = "unstable"
)

// At most this many specs are unstable, each for at most this time. Then the cause is known, or the spec is deleted.
const (
	mostUnstable    = 5
	longestUnstable = 14 * 24 * time.Hour
)

// smokeIf returns the label smoke, or none.
func smokeIf(chosen bool) Labels {
	if chosen {
		return Label(smoke)
	}
	return Label()
}

// unstableSince returns the labels of a spec that is unstable since a date, such as 2026-11-28.
//
//nolint:unused // no spec is unstable now
func unstableSince(date string) Labels { return Label(unstable, unstable+"-since-"+date) }

// timedHelpers are functions and methods that judge seconds, gaps or losses, or return limits for it. The functions of this package that call one of them do,
// too.
var timedHelpers = []string{"within", "atMost", "bound", "boundAt", "losses", "gapsOver", "gapsLongerThan", "Further", "lossLimit"}

// untimed are functions that call a timed helper, but make up for a busy machine in specs without the label timed.
var untimed = []string{"connectsAtOnce"}

// fewestSmoke is the number of specs of the gate. A spec more raises it. To lower it is a decision about what the gate proves: the commit says why.
const fewestSmoke = 49

// preview returns the reports of all specs, with their labels and places. No spec runs.
var preview = sync.OnceValue(func() ginkgotypes.SpecReports {
	return PreviewSpecs("Kiln in the lab").SpecReports.WithLeafNodeType(ginkgotypes.NodeTypeIt)
})

// TestLabels checks the labels of all specs. It needs no lab; `make lint` runs it.
func TestLabels(t *testing.T) {
	read := parseSource(t)
	unstableSpecs, smokeSpecs := 0, 0
	if len(preview()) < 150 {
		t.Fatalf("found only %d specs", len(preview()))
	}
	for i := range preview() {
		spec := &preview()[i]
		labels := spec.Labels()
		has := func(label string) bool { return slices.Contains(labels, label) }
		way, err := read.timedHelper(spec)
		if err != nil {
			t.Errorf("the calls of %s are unknown: %v", spec.FullText(), err)
		}
		if way != "" && !has(timed) {
			t.Errorf("%s: %s: judges seconds, gaps or losses by %s: it needs the label timed", placeOf(spec.LeafNodeLocation), spec.FullText(), way)
		}
		if has(smoke) && has(timed) {
			t.Errorf("%s: %s: a spec of the gate cannot be timed", placeOf(spec.LeafNodeLocation), spec.FullText())
		}
		if has(smoke) {
			smokeSpecs++
		}
		if has(unstable) {
			unstableSpecs++
			if !recent(labels) {
				t.Errorf("%s: unstable for more than %s, or without a date: find the cause", spec.FullText(), longestUnstable)
			}
		}
	}
	if way := read.firstWay(read.hooks); way != "" {
		t.Errorf("what runs before or after each spec judges seconds, gaps or losses by %s, also in the gate", way)
	}
	if unstableSpecs > mostUnstable {
		t.Errorf("%d specs are unstable, more than %d", unstableSpecs, mostUnstable)
	}
	if smokeSpecs < fewestSmoke {
		t.Errorf("%d specs have the label smoke, fewer than %d: the gate proves less", smokeSpecs, fewestSmoke)
	}
}

// TestLabelsMeanSomething finds names in the lists about labels that the source no longer has.
func TestLabelsMeanSomething(t *testing.T) {
	read := parseSource(t)
	for _, name := range slices.Concat(timedHelpers, untimed) {
		if !read.declared[name] {
			t.Errorf("no function or method of this package, and no method of test/oracle, is called %s: TestLabels does not find its callers", name)
		}
	}
	cases := map[string]bool{}
	for _, c := range policyCases {
		cases[c.name] = true
	}
	for _, name := range smokeCases {
		if !cases[name] {
			t.Errorf("policyCases has no case %q: the gate has no spec of it", name)
		}
	}
}

// recent reports whether the labels have a date of unstableSince that is recent enough.
func recent(labels []string) bool {
	for _, l := range labels {
		if date, ok := strings.CutPrefix(l, unstable+"-since-"); ok {
			since, err := time.Parse(time.DateOnly, date)
			return err == nil && time.Since(since) < longestUnstable
		}
	}
	return false
}
