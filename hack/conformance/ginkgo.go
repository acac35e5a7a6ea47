// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/prepare"
)

// Files of the output directory.
const (
	logFile     = "e2e.log"
	junitFile   = "junit.xml"
	reportFile  = "report.json"
	summaryFile = "summary.md"
)

// test runs the tests and returns what its report says of them, as far as there is one. The error is about the run, not about tests that failed.
func (c *conformance) test(ctx context.Context, l *lab.Cluster) (summary, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return summary{}, fmt.Errorf("listen for the progress of the tests: %w", err)
	}
	server := &http.Server{Handler: c.progress(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	out, err := os.Create(filepath.Join(c.output, logFile))
	if err != nil {
		return summary{}, fmt.Errorf("create the log: %w", err)
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(c.cache.Bin(), prepare.Ginkgo), c.arguments(l, listener.Addr().String())...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.output, out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // tests clean up after themselves
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
		return s, fmt.Errorf("%w; ginkgo: %w (log: %s)", err, failed, out.Name())
	}
	if failed != nil && s.failed() == 0 {
		return s, fmt.Errorf("run ginkgo: %w (log: %s)", failed, out.Name())
	}
	return s, nil
}

func (c *conformance) arguments(l *lab.Cluster, progress string) []string {
	args := []string{
		"--procs=" + strconv.Itoa(c.procs), "--timeout=" + c.timeout.String(), "--focus=" + c.focus, "-v", "--no-color",
		"--output-dir=" + c.output, "--junit-report=" + junitFile, "--json-report=" + reportFile,
	}
	if c.skip != "" {
		args = append(args, "--skip="+c.skip)
	}
	bin := c.cache.Bin()
	return append(args, filepath.Join(bin, prepare.E2ETest), "--",
		"--kubeconfig="+l.Kubeconfig(), "--kubectl-path="+filepath.Join(bin, "kubectl"), "--provider=skeleton", "--node-os-distro=custom",
		"--disable-log-dump", "--progress-report-url=http://"+progress)
}

// progress tells a person about each test that has ended. The processes of ginkgo report each for itself.
func (c *conformance) progress() http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var update struct{ Msg string }
		if json.NewDecoder(r.Body).Decode(&update) != nil {
			return
		}
		if name, passed := strings.CutPrefix(update.Msg, "PASSED "); passed {
			c.report.Say("  ok  %s", name)
		} else if name, failed := strings.CutPrefix(update.Msg, "FAILED "); failed {
			c.report.Say("FAIL  %s", name)
		}
	})
}
