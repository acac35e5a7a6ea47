// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

// Files of the output directory.
const (
	logFile     = "e2e.log"
	junitFile   = "junit.xml"
	reportFile  = "report.json"
	summaryFile = "summary.md"
)

// test runs the tests and returns a summary of ginkgo's report. A missing report is an error; failed tests are not.
func (c *conformance) test(ctx context.Context, l *lab.Cluster) (summary, error) {
	out, err := os.Create(filepath.Join(c.output, logFile))
	if err != nil {
		return summary{}, fmt.Errorf("create the log: %w", err)
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(c.cache.Bin(), prepare.Ginkgo), c.arguments(l)...)
	progressLines := &progressWriter{report: c.report}
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.output, io.MultiWriter(out, progressLines), out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // SIGTERM lets tests clean up after themselves
	cmd.WaitDelay = time.Minute
	fmt.Fprintf(out, "+ %s\n", cmd)
	var failed error
	err = c.report.Step("run the tests that match "+c.focus+" (log: "+out.Name()+")", func() error {
		failed = cmd.Run()
		return nil
	})
	if err != nil {
		return summary{}, err
	}
	s, err := readSummary(filepath.Join(c.output, reportFile))
	if err != nil {
		return s, fmt.Errorf("%w (log: %s)", errors.Join(err, failed), out.Name())
	}
	if failed != nil && s.verdict() == nil {
		s.suite = append(s.suite, fmt.Sprintf("ginkgo says %s (log: %s)", failed, out.Name()))
	}
	return s, nil
}

func (c *conformance) arguments(l *lab.Cluster) []string {
	args := []string{
		"--procs=" + strconv.Itoa(c.procs), "--timeout=" + c.timeout.String(), "--focus=" + c.focus, "-v", "--no-color",
		"--output-dir=" + c.output, "--junit-report=" + junitFile, "--json-report=" + reportFile,
	}
	if c.skip != "" {
		args = append(args, "--skip="+c.skip)
	}
	workers := 0 // tests read the number of schedulable nodes from --num-nodes
	for _, n := range l.Nodes() {
		if !n.ControlPlane {
			workers++
		}
	}
	bin := c.cache.Bin()
	return append(args, filepath.Join(bin, prepare.E2ETest), "--",
		"--kubeconfig="+l.Kubeconfig(), "--kubectl-path="+filepath.Join(bin, "kubectl"), "--provider=skeleton", "--node-os-distro=custom",
		"--disable-log-dump", "--num-nodes="+strconv.Itoa(workers))
}

// progressWriter parses ginkgo's output and reports each finished test as one line: its outcome (ok, or for example FAILED) and its name.
// ginkgo prints the outcome line before the line with the name.
type progressWriter struct {
	report  *progress.Reporter
	partial []byte
	outcome string // of the test that the next line names
}

// labels matches the labels that ginkgo prints after a name.
var labels = regexp.MustCompile(` \[sig-[^\]]*\]$`)

var ended = regexp.MustCompile(`^S*•(?: \[([A-Z]+)\])?.* \[[0-9.]+ seconds\]$`)

func (t *progressWriter) Write(p []byte) (int, error) {
	t.partial = append(t.partial, p...)
	for {
		line, rest, whole := bytes.Cut(t.partial, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		t.line(string(line))
		t.partial = rest
	}
}

func (t *progressWriter) line(line string) {
	if t.outcome != "" {
		t.report.Say("%4s  %s", t.outcome, labels.ReplaceAllString(line, ""))
		t.outcome = ""
	}
	if m := ended.FindStringSubmatch(line); m != nil {
		t.outcome = cmp.Or(m[1], "ok")
	}
}
