// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gate leaves tests out of the gate, `make test`, for targets that run longer or need an idle machine.
package gate

import (
	"os"
	"slices"
	"strings"
	"testing"
)

const (
	// Env is the environment variable that `make test-unit` sets: tests run as a part of the gate.
	Env = "KILN_GATE"
	// TargetEnv is the environment variable that hack/long sets: the target whose tests run although they are not in the gate.
	TargetEnv = "KILN_GATE_TARGET"
)

// Target is a make target that runs tests which the gate leaves out.
type Target string

const (
	// Long runs tests that measure costs, depend on timers, or take a whole simulated cluster.
	Long Target = "test-long"
	// OperatorLong runs tests in which the operator installs, upgrades and removes all components with simulated workloads.
	OperatorLong Target = "test-operator-long"
)

// Targets are all targets that run tests which the gate leaves out.
var Targets = map[string]Target{"Long": Long, "OperatorLong": OperatorLong}

// Environment returns the variables of a process without changesTests: a record and the result of the gate are of all tests, whatever the shell sets. Make's own variables
// would pass the command line of an outer make to an inner one.
func Environment(variables []string) []string {
	return slices.DeleteFunc(slices.Clone(variables), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(changesTests, name)
	})
}

// changesTests are the variables that Environment removes. Those that the table of suites names are not here: they are settings of a record.
var changesTests = []string{
	Env, TargetEnv, "KILN_TEST_FULL", "KILN_SEED", "KILN_SEEDS", "KILN_WAITS", "KILN_WAIT_LIMIT", "KILN_UNDERLAY_KILLS", "STAGES", "TEST_WAIT_LIMIT", "TEST_PACKAGES", "TOOLS", "UNIT", "SLOWEST", "SOAK",
	"SOAK_VPCS", "SOAK_SUBNETS", "SOAK_PODS", "SOAK_NODES", "SOAK_KILLS", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL",
}

// Running reports whether tests run as a part of the gate.
func Running() bool { return os.Getenv(Env) != "" }

// Skip skips a test in the gate: the target runs it. Outside of the gate the test runs as others do. It must be a statement of the test's own
// function, because hack/long selects the tests of a target by their source.
func Skip(t testing.TB, target Target) {
	t.Helper()
	if Running() && os.Getenv(TargetEnv) != string(target) {
		t.Skipf("the gate leaves this test out; run it with: make %s", target)
	}
}
