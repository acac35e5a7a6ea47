// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	ginkgotypes "github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/gate"
)

// The time limits of Eventually are long, so that specs pass on a busy machine. They hide a controller that became slow or depends
// on its last retry. Therefore each Eventually is recorded. A duration above longWait, times the slowdown of the machine meanwhile, fails the suite unless slowWaits
// lists its place. The gate reports it.
const longWait = 10 * time.Second

// slowWaits lists the places of waits that take long by design, each with the reason.
var slowWaits = []struct {
	where *regexp.Regexp
	why   string
}{
	{regexp.MustCompile(`^upgrade_test.go:`), "an upgrade replaces the pods node by node"},
	{regexp.MustCompile(`^(members|recovery)_test.go:`), "members join after an election, and backups are made once a minute"},
	{regexp.MustCompile(`^faults(_\w+)?_test.go:`), "a fault has limits of its own"},
	{regexp.MustCompile(`^gateway_test.go:.*expect(Active|Seen)`), "a failover has a limit of its own, and a gateway node takes over again 10 s after it is back"},
	{regexp.MustCompile(`^(lbrule|routerlbrule)_test.go:`), "health checks need three answers, one every 5 s"},
	{regexp.MustCompile(`^transit_test.go:`), "probes fail several times before the kubelet restarts a container, and a failover has a limit of its own"},
	{regexp.MustCompile(`^latency_test.go:.*measureCNI`), "two kubelets end 100 pods"},
	{regexp.MustCompile(`^(switches|changes)_test.go:`), "the operator replaces pods node by node"},
	{regexp.MustCompile(`^pinger_test.go:`), "checks of a fault end at their timeouts, a port counts as unbound after 15 s, and pods start on every node"},
	{regexp.MustCompile(`^service_objects_test.go:.*rolledOut`), "a Deployment replaces its pods one after another"},
	{regexp.MustCompile(`^underlay_test.go:`), "an attempt to start a pod without a gateway takes 3 s, and nodes are reported every 10 s"},
	{regexp.MustCompile(`^mistakes_test.go:`), "events about names of ports and classes of load balancers come after a minute"},
	{regexp.MustCompile(`^samples_test.go:`), "the pods and gateways of all samples start at the same time"},
	{regexp.MustCompile(`^(alerts(_\w+)?|monitoring|prometheus)_test.go:`), "Prometheus scrapes every 8 s, and alerts have durations of their own"},
	{regexp.MustCompile(`^bgp_(\w+_)?test.go:`), "a session begins again five seconds after its end, and ends after its hold time"},
	{regexp.MustCompile(`^removal_test.go:`), "Kiln is removed from every node and installed again"},
	{regexp.MustCompile(`^underlay_(single_test.go:|vlans_test.go:.*connectVLANs)`), "nodes are reported every 10 s, and interfaces with addresses move node by node"},
	{regexp.MustCompile(`^underlay_lease_test.go:`), "leases of two minutes"},
	{regexp.MustCompile(`^underlay_vlans_test.go:.*removeMany`), "a kubelet ends 236 pods"},
	{regexp.MustCompile(`^suite_test.go:.*install`), "the OVNCluster waits for its nodes"},
}

func slowByDesign(where string) bool {
	for _, w := range slowWaits {
		if w.where.MatchString(where) {
			return true
		}
	}
	return false
}

// ended is the record of an Eventually.
type ended struct {
	where, spec string
	begun       time.Time
	took        time.Duration
}

var waits struct {
	sync.Mutex
	list  []ended
	speed *eventually.Sampling
}

// recordWaits makes gomega record the duration of each Eventually, and starts to measure the speed of the machine.
func recordWaits() {
	Default = recorder{Default}
	waits.speed = eventually.StartSampling(usualSampling)
}

// recorder adds the record to gomega. Gomega calls Inner to find its own implementation.
type recorder struct{ Gomega }

// Inner returns the implementation of gomega.
func (r recorder) Inner() Gomega { return r.Gomega }

// Eventually records how long an assertion takes.
func (r recorder) Eventually(actualOrCtx any, args ...any) types.AsyncAssertion {
	pc, file, line, _ := runtime.Caller(2) // the caller of gomega.Eventually
	where := fmt.Sprintf("%s:%d %s", filepath.Base(file), line, runtime.FuncForPC(pc).Name())
	return &recorded{AsyncAssertion: r.EventuallyWithOffset(1, actualOrCtx, args...), where: where}
}

// recorded is an assertion with a record.
type recorded struct {
	types.AsyncAssertion
	where string
}

func (r *recorded) measure(assert func() bool) bool {
	begun := time.Now()
	defer func() { // a failing assertion panics
		waits.Lock()
		defer waits.Unlock()
		waits.list = append(waits.list, ended{r.where, CurrentSpecReport().FullText(), begun, time.Since(begun)})
	}()
	return assert()
}

func (r *recorded) with(a types.AsyncAssertion) types.AsyncAssertion {
	return &recorded{AsyncAssertion: a, where: r.where}
}

// Should waits until a matcher matches.
func (r *recorded) Should(m types.GomegaMatcher, description ...any) bool {
	return r.measure(func() bool { return r.AsyncAssertion.WithOffset(3).Should(m, description...) })
}

// ShouldNot waits until a matcher does not match.
func (r *recorded) ShouldNot(m types.GomegaMatcher, description ...any) bool {
	return r.measure(func() bool { return r.AsyncAssertion.WithOffset(3).ShouldNot(m, description...) })
}

// WithTimeout, like the methods below, returns a recorded assertion.
func (r *recorded) WithTimeout(d time.Duration) types.AsyncAssertion {
	return r.with(r.AsyncAssertion.WithTimeout(d))
}

// WithPolling is gomega's.
func (r *recorded) WithPolling(d time.Duration) types.AsyncAssertion {
	return r.with(r.AsyncAssertion.WithPolling(d))
}

// WithContext is gomega's.
func (r *recorded) WithContext(ctx context.Context) types.AsyncAssertion {
	return r.with(r.AsyncAssertion.WithContext(ctx))
}

// WithArguments is gomega's.
func (r *recorded) WithArguments(args ...any) types.AsyncAssertion {
	return r.with(r.AsyncAssertion.WithArguments(args...))
}

// allowedSkips lists the specs that may skip themselves, each with the reason.
var allowedSkips = map[string]string{
	"faults a node with members: power cut, and removed from the cluster": "the lab has one node of the control plane",
}

var _ = ReportAfterSuite("waits and skips", func(report Report) {
	waits.speed.Stop()
	longest, tooLong := slowest(waits.list, waits.speed.Factor)
	fmt.Printf("The longest waits:\n%s\n", strings.Join(longest, "\n"))
	if gate.Running() {
		fmt.Printf("Waits of more than %s × the factor of the machine, which fail other targets: %d\n%s\n", longWait, len(tooLong), strings.Join(tooLong, "\n"))
		fmt.Printf("Errors in logs that a busy machine can cause, which fail other targets: %d\n%s\n", len(busyErrors), strings.Join(busyErrors, "\n"))
		tooLong = nil
	}
	var skips []string
	for i := range report.SpecReports {
		spec := &report.SpecReports[i]
		// A spec that a filter deselects has no message.
		if _, known := allowedSkips[spec.FullText()]; spec.State.Is(ginkgotypes.SpecStateSkipped) && spec.Failure.Message != "" && !known {
			skips = append(skips, spec.FullText()+": "+spec.Failure.Message)
		}
	}
	if !report.SuiteSucceeded {
		// Ginkgo's summary has only line numbers, and the output of a failed spec is thousands of lines above.
		for _, spec := range report.SpecReports.WithState(ginkgotypes.SpecStateFailureStates) {
			fmt.Printf("%s: %s\n", spec.FullText(), spec.Failure.Message[:min(len(spec.Failure.Message), 1000)])
		}
		return // a failed spec makes others wait or skip
	}
	failures = append(failures, slices.Concat(skips, tooLong)...)
	Expect(skips).To(BeEmpty(), "specs that skipped themselves")
	Expect(tooLong).To(BeEmpty(), "waits of more than %s × the factor of the machine", longWait)
})

// slowest returns the longest waits, and those above the limit that slowWaits does not list. factor returns the slowdown of the
// machine between two times.
func slowest(list []ended, factor func(from, to time.Time) float64) (longest, tooLong []string) {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b ended) int { return cmp.Compare(b.took, a.took) })
	for i, w := range list {
		slowdown := max(factor(w.begun, w.begun.Add(w.took)), calibration.slowdown)
		text := fmt.Sprintf("%6.1f s  at %.1f times the usual  %s  (%s)", w.took.Seconds(), slowdown, w.where, w.spec)
		if i < 30 {
			longest = append(longest, text)
		}
		if w.took > time.Duration(float64(longWait)*slowdown) && !slowByDesign(w.where) {
			tooLong = append(tooLong, text)
		}
	}
	return longest, tooLong
}
