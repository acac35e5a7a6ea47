// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/golden"
)

func TestMain(m *testing.M) { golden.Main(m) }

// script is a Runner that writes its steps down. A command that contains a text of fails does not succeed.
type script struct {
	Runner
	steps []string
	fails []string
}

func newScript(environment map[string]string, fails ...string) *script {
	s := &script{fails: fails}
	s.Runner = Runner{
		Root:   "/src",
		Getenv: func(name string) string { return environment[name] },
		Do: func(_ context.Context, c Command) error {
			line := c.String()
			s.steps = append(s.steps, line)
			for _, text := range s.fails {
				if strings.Contains(line, text) {
					return errors.New("exit status 1")
				}
			}
			return nil
		},
		Idle: func(_ context.Context, load string) error {
			s.steps = append(s.steps, "# wait for a load of "+load)
			return nil
		},
		Judge: func(_ context.Context, run Run, attempts []Attempt) error {
			for _, a := range attempts {
				s.steps = append(s.steps, fmt.Sprintf("# judge %s: %v", a.Report, a.Exit))
			}
			s.steps = append(s.steps, fmt.Sprintf("# a spec must pass in %d", run.Passes()))
			return nil
		},
		Load: func(_ context.Context, busy int) (func(), error) {
			s.steps = append(s.steps, fmt.Sprintf("# start %d busy processes", busy))
			return func() { s.steps = append(s.steps, "# end the busy processes") }, nil
		},
		Say: func(string, ...any) {},
	}
	return s
}

func (s *script) run(t *testing.T, name string) error {
	t.Helper()
	suite, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return s.Run(t.Context(), suite)
}

// TestCommandsOfSuites compares the commands of each suite, with the usual variables and with others.
func TestCommandsOfSuites(t *testing.T) {
	var out strings.Builder
	for _, variant := range []struct {
		suites      []string
		environment map[string]string
	}{
		{suites: inLabNames()},
		{[]string{"test-e2e"}, map[string]string{"KEEP": "1", "DATAPATH": "kernel", "CONTROL_PLANES": "3", "WORKERS": "4"}},
		{[]string{"test-smoke"}, map[string]string{"KILN_SEEDS": "1764"}},
		{[]string{"crashes"}, map[string]string{"DATAPATH": "kernel", "KERNEL": "host", "CRASHES": "2"}},
		{[]string{"alerts"}, map[string]string{"ALERT": "KilnNorthd|KilnOVN", "ALERTS_FASTER": "10"}},
		{[]string{"conformance"}, map[string]string{"ALL": "1", "FOCUS": `\[sig-network\].*Netpol`, "SKIP": "SCTP"}},
		{[]string{"test-kernel"}, map[string]string{"GROUP": "services rules", "KEEP": "1"}},
		{[]string{"test-install"}, map[string]string{"WAYS": "bundle readme", "KEEP": "1"}},
		{[]string{"test-upgrade"}, map[string]string{"FROM": "main"}},
		{[]string{"bench-datapath"}, map[string]string{"BENCH_FLAGS": "-for 1s -quiet"}},
	} {
		for _, name := range variant.suites {
			s := newScript(variant.environment)
			if err := s.run(t, name); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			fmt.Fprintf(&out, "## %s %v\n%s\n\n", name, variant.environment, strings.Join(s.steps, "\n"))
		}
	}
	golden.Compare(t, "testdata/commands.txt", []byte(out.String()))
}

// inLabNames returns the names of the suites with labs.
func inLabNames() []string {
	var names []string
	for _, s := range All {
		if s.labs != nil {
			names = append(names, s.Name)
		}
	}
	return names
}

func TestALabStaysUpAfterAFailure(t *testing.T) {
	s := newScript(nil, "e2e.test -test.v")
	if err := s.run(t, "underlay-single-nic"); err == nil {
		t.Fatal("the suite passed")
	}
	if last := s.steps[len(s.steps)-1]; last != "lab status" {
		t.Errorf("the last command is %q, want the state of the lab", last)
	}
	if n := count(s.steps, "lab up"); n != 1 {
		t.Errorf("%d labs were brought up, want one: the first failed", n)
	}
}

func TestTheLabOfConformanceIsTakenDownAfterAFailure(t *testing.T) {
	s := newScript(nil, "run-conformance -families")
	if err := s.run(t, "conformance"); err == nil {
		t.Fatal("the suite passed")
	}
	if last := s.steps[len(s.steps)-1]; last != "lab down" {
		t.Errorf("the last command is %q, want the end of the lab", last)
	}
	s = newScript(map[string]string{"KEEP": "1"}, "run-conformance -families")
	if err := s.run(t, "conformance"); err == nil {
		t.Fatal("the suite passed")
	}
	if n := count(s.steps, "lab down"); n != 1 {
		t.Errorf("KEEP=1: the lab was taken down %d times, want once, before the suite", n)
	}
}

func TestAllWaysToInstallAreTriedAfterAFailure(t *testing.T) {
	s := newScript(nil, "INSTALL_BY=installer", "INSTALL_BY=readme")
	err := s.run(t, "test-install")
	if err == nil || !strings.Contains(err.Error(), "lab installer: ") || !strings.Contains(err.Error(), "lab readme: ") || strings.Contains(err.Error(), "bundle") {
		t.Errorf("error %v, want one with both failed ways", err)
	}
	if n := count(s.steps, "INSTALL_BY="); n != len(waysToInstall) {
		t.Errorf("%d ways were tried, want %d", n, len(waysToInstall))
	}
	if n := count(s.steps, "lab status"); n != 2 {
		t.Errorf("the state was printed %d times, want once for each failure", n)
	}
}

func TestAllGroupsAreTriedAfterAFailure(t *testing.T) {
	s := newScript(nil, "/policy_test.go")
	err := s.run(t, "test-kernel")
	if err == nil || !strings.Contains(err.Error(), "policies: ") {
		t.Errorf("error %v, want one with the failed group", err)
	}
	if n := count(s.steps, "lab run"); n != len(kernelGroups) {
		t.Errorf("%d groups were run, want %d", n, len(kernelGroups))
	}
}

func TestAllSuitesOfASuiteAreTriedAfterAFailure(t *testing.T) {
	s := newScript(nil, "FAULTS_REPORT", "BGP_REPORT")
	err := s.run(t, "test-hard")
	if err == nil || !strings.Contains(err.Error(), "faults: ") || !strings.Contains(err.Error(), "bgp-lab: ") || strings.Contains(err.Error(), "alerts: ") {
		t.Errorf("error %v, want one with both failed suites", err)
	}
	if n, hard := count(s.steps, "lab run"), 6; n != hard {
		t.Errorf("%d suites were run, want %d", n, hard)
	}
}

func TestNoLabIsBroughtUpIfABuildFails(t *testing.T) {
	s := newScript(nil, "go test -c")
	if err := s.run(t, "test-e2e"); err == nil {
		t.Fatal("the suite passed")
	}
	if n := count(s.steps, "lab up"); n != 0 {
		t.Error("a lab was brought up")
	}
}

func TestABusyMachineIsRefusedBeforeALabIsUp(t *testing.T) {
	s := newScript(map[string]string{"LOAD": "0.2"})
	s.Idle = func(_ context.Context, load string) error { return fmt.Errorf("more than %s", load) }
	if err := s.run(t, "test-timing"); err == nil || err.Error() != "more than 0.2" {
		t.Errorf("error %v, want the refusal", err)
	}
	if n := count(s.steps, "lab up"); n != 0 {
		t.Error("a lab was brought up")
	}
}

func TestFailedRunsAreJudgedTogether(t *testing.T) {
	s := newScript(nil, "timed-2.json")
	s.Do = func(do func(context.Context, Command) error) func(context.Context, Command) error {
		return func(ctx context.Context, c Command) error {
			if c.Args[0] == "rm" {
				return nil
			}
			return do(ctx, c)
		}
	}(s.Do)
	if err := s.run(t, "test-timing"); err != nil {
		t.Errorf("the judge said nothing, but the suite failed: %v", err)
	}
	for _, want := range []string{
		"# judge /src/_output/runs/timed-1.json: <nil>", "# judge /src/_output/runs/timed-2.json: exit status 1",
		"# judge /src/_output/runs/timed-3.json: <nil>", "# judge /src/_output/runs/known-defect-3.json: <nil>", "lab down",
	} {
		if !slices.Contains(s.steps, want) {
			t.Errorf("no step %q", want)
		}
	}
}

func TestAnInterruptEndsASuite(t *testing.T) {
	for _, name := range []string{"test-install", "test-kernel", "test-cluster", "test-timing"} {
		ctx, cancel := context.WithCancel(t.Context())
		s := newScript(nil)
		s.Do = func(ctx context.Context, c Command) error {
			if len(c.Args) > 1 && c.Args[1] == "run" {
				cancel()
			}
			s.steps = append(s.steps, c.String())
			return ctx.Err()
		}
		suite, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(ctx, suite); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", name, err)
		}
		if n := count(s.steps, "e2e.test -test.v"); n != 1 {
			t.Errorf("%s: %d programs were run, want only the interrupted one", name, n)
		}
	}
}

func count(steps []string, text string) (n int) {
	for _, s := range steps {
		if strings.Contains(s, text) {
			n++
		}
	}
	return n
}
