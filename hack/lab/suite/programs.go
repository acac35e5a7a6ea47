// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"path/filepath"
	"strings"
	"time"
)

// Archives of images, and the tag of the version that test-upgrade upgrades from (test/e2e/upgrade_from_test.go).
const (
	imageArchive = "_output/kiln.tar"
	fromArchive  = "_output/from.tar"
	fromTag      = "kiln.local/kiln:from"
)

// endToEnd is test/e2e, without flags that select specs. The module is the one whose CRDs the tests apply: a lab's kernel has no network.
var endToEnd = Program{
	Build: []Command{
		{Args: []string{"go", "mod", "download", "sigs.k8s.io/network-policy-api@v0.1.7", "sigs.k8s.io/network-policy-api"}},
		{Args: []string{"go", "test", "-c", "-o", "_output/e2e.test", "./test/e2e"}},
	},
	Command: []string{"--dir", "test/e2e", "../../_output/e2e.test", "-test.v", "-ginkgo.v", "-ginkgo.fail-on-empty"},
}

// demo has the checks of `make demo`.
var demo = Program{
	Build:   []Command{{Args: []string{"go", "build", "-o", "_output/demo", "./hack/demo"}}},
	Command: []string{"_output/demo"},
}

// kubernetesTests are the end-to-end tests of Kubernetes.
var kubernetesTests = Program{
	Build: []Command{
		{Args: []string{"go", "run", "./hack/conformance", "-build"}},
		{Args: []string{"go", "build", "-o", "_output/run-conformance", "./hack/conformance"}},
	},
	Command: []string{"_output/run-conformance"},
}

// datapath measures the data plane.
var datapath = Program{
	Build: []Command{
		{Args: []string{"go", "build", "-o", "_output/netprobe", "./test/bench/netprobe"}},
		{Args: []string{"go", "build", "-o", "_output/datapath", "./test/bench/datapath"}},
	},
	Command: []string{"_output/datapath"},
}

// selected returns a run of the specs of a label filter.
func selected(filter string, limit time.Duration) Run {
	return Run{Program: endToEnd, Args: []string{"-test.timeout", minutes(limit), "-ginkgo.label-filter=" + filter}}
}

func (r Run) with(env ...string) Run {
	r.Env = append(r.Env, env...)
	return r
}

func (r Run) times(name string, n int) Run {
	r.Name, r.Times = name, n
	return r
}

// minutes is a duration as in flags: 45m.
func minutes(d time.Duration) string { return strings.TrimSuffix(d.Round(time.Minute).String(), "0s") }

// oneLab returns the labs of a suite with one lab of the usual kind.
func oneLab(run func(In) Run) func(In) ([]Lab, error) {
	return func(in In) ([]Lab, error) {
		return []Lab{{Archives: []string{imageArchive}, Runs: []Run{run(in)}}}, nil
	}
}

// always returns the same run whatever the variables are.
func always(run Run) func(In) Run { return func(In) Run { return run } }

// withRouter makes the root file system of the BGP daemons.
func withRouter(In) []Command { return []Command{{Args: []string{"lab", "router-root"}}} }

// withProbe builds the program that measures in pods.
func withProbe(In) []Command {
	return []Command{{Args: []string{"go", "build", "-o", "_output/netprobe", "./test/bench/netprobe"}}}
}

// withEarlierVersion builds the image of the version that test-upgrade upgrades from.
func withEarlierVersion(in In) []Command {
	unpack := "rm -rf _output/from && mkdir -p _output/from && git archive " + quote(in.Values["FROM"]) + " | tar -x -C _output/from"
	return []Command{
		{Args: []string{"bash", "-eu", "-o", "pipefail", "-c", unpack}},
		{Dir: filepath.Join("_output", "from"), Args: []string{"go", "run", "./hack/image", "--output", filepath.Join(in.Root, fromArchive), "--tag", fromTag}},
	}
}
