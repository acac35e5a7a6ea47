// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Long runs the tests that the gate leaves out and that a make target runs, see internal/testing/gate. Arguments after the target are for go test.
//
//	go run ./hack/long test-operator-long -v
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/internal/testing/gate"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: long TARGET [flags of go test]")
		os.Exit(2)
	}
	if err := run(gate.Target(os.Args[1]), os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "long:", err)
		os.Exit(1)
	}
}

// run runs the tests of a target, and fails if there are none.
func run(target gate.Target, flags []string) error {
	found, err := find(".")
	if err != nil {
		return err
	}
	tests := found[target]
	if len(tests) == 0 {
		return fmt.Errorf("no test has the mark of the target %s: is the name right?", target)
	}
	var names []string
	for _, of := range tests {
		names = append(names, of...)
	}
	packages := slices.Sorted(maps.Keys(tests))
	slices.Sort(names)
	fmt.Printf("%s: %d tests of %d packages\n", target, len(names), len(packages))
	arguments := append([]string{"test", "-count=1", "-run", "^(" + strings.Join(slices.Compact(names), "|") + ")$"}, flags...)
	command := exec.Command("go", append(arguments, packages...)...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.Env = append(os.Environ(), gate.TargetEnv+"="+string(target))
	if err := command.Run(); err != nil {
		return errors.Join(fmt.Errorf("the tests of %s failed", target), err)
	}
	return nil
}
