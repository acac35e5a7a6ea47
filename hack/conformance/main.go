// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command conformance runs the end-to-end tests of Kubernetes against Kiln in a lab that is up. The tests are built from the
// version that the lab runs; by default it runs the [sig-network] tests that are part of conformance. It exits non-zero when a test
// fails. See docs/development/conformance.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/hack/lab/cache"
	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/guest"
	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/progress"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	conformanceFocus = `\[sig-network\].*\[Conformance\]`
	networkFocus     = `\[sig-network\]`
	installTimeout   = 5 * time.Minute
)

// conformance is one run of the command.
type conformance struct {
	focus, skip, output, families string
	procs                         int
	timeout                       time.Duration

	cache  cache.Dir
	report *progress.Reporter
}

func main() {
	c := conformance{report: progress.New(os.Stdout)}
	all := flag.Bool("all", false, "run all tests of [sig-network] that make sense in the lab, not only the conformance tests")
	build := flag.Bool("build", false, "only build the tests into the lab's cache")
	flag.StringVar(&c.focus, "focus", "", "regular expression of the tests to run, instead of the conformance tests or all")
	flag.StringVar(&c.skip, "skip", "", "regular expression of tests not to run")
	flag.StringVar(&c.families, "families", cluster.Dual, "families of pods: dual, ipv4 or ipv6")
	flag.StringVar(&c.output, "output", "_output/conformance", "directory for the log, junit.xml, report.json and summary.md")
	flag.IntVar(&c.procs, "procs", 4, "tests to run at once")
	flag.DurationVar(&c.timeout, "timeout", time.Hour, "of all tests together")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *all {
		c.focus = cmp.Or(c.focus, networkFocus)
		c.skip = strings.Trim(skipElsewhere(c.report)+"|"+c.skip, "|")
	}
	c.focus = cmp.Or(c.focus, conformanceFocus)
	log.SetLogger(logr.Discard()) // controller-runtime would warn that no logger is set
	if err := c.run(ctx, *build); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1) //nolint:gocritic // the deferred stop has nothing left to do
	}
}

func (c *conformance) run(ctx context.Context, build bool) (err error) {
	if c.cache, err = cache.Open(); err != nil {
		return err
	}
	source, err := prepare.Source()
	if err != nil {
		return err
	}
	if os.Getenv(guest.InGuest) == "" { // there, the host has prepared everything
		if err := prepare.Conformance(ctx, prepare.Options{Cache: c.cache, Source: source, Report: c.report}); err != nil || build {
			return err
		}
	}
	l, err := lab.Open("")
	if err != nil {
		return err
	}
	if c.output, err = filepath.Abs(c.output); err != nil {
		return fmt.Errorf("find the output directory: %w", err)
	}
	if err := errors.Join(os.RemoveAll(c.output), os.MkdirAll(c.output, 0o755)); err != nil {
		return fmt.Errorf("make the output directory: %w", err)
	}
	if err := c.loadImages(ctx, l); err != nil {
		return err
	}
	if err := c.install(ctx, l, source); err != nil {
		return err
	}
	s, err := c.test(ctx, l)
	if err != nil {
		return err
	}
	return errors.Join(c.write(s), s.verdict())
}

// loadImages loads stand-ins for the images of the tests into the nodes.
func (c *conformance) loadImages(ctx context.Context, l *lab.Cluster) error {
	out, err := exec.CommandContext(ctx, filepath.Join(c.cache.Bin(), prepare.E2ETest), "--list-images").Output()
	if err != nil {
		return fmt.Errorf("list the images of the tests: %w", err)
	}
	into, err := os.MkdirTemp("", "conformance-images-")
	if err != nil {
		return fmt.Errorf("make a directory for layers: %w", err)
	}
	defer os.RemoveAll(into)
	made, err := prepare.TestImages(c.cache, into, strings.Fields(string(out)))
	if err != nil {
		return err
	}
	return l.LoadImages(ctx, "load the images of the tests", made, c.report)
}

func (c *conformance) install(ctx context.Context, l *lab.Cluster, source string) error {
	k, err := cluster.Connect(l.Kubeconfig())
	if err != nil {
		return err
	}
	spec, err := cluster.LabSpec(l, c.families)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	return c.report.Step("install Kiln and wait until the OVNCluster is Available", func() error {
		return k.Install(ctx, l.Kubeconfig(), filepath.Join(source, "hack/lab/manifests"), spec, func(message string) { c.report.Say("      %s", message) })
	})
}
