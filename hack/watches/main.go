// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command watches finds event sources of controllers that no test needs. It runs the tests of a package once per call of Watches,
// WatchesRawSource, WatchesMetadata or Owns, each time without that source. The tests are built once, from an overlay (go build
// -overlay: the files do not change) in which an environment variable names the source to leave out. It prints the test that failed
// and its message, and exits non-zero when no test failed for some source.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// options are the flags.
type options struct {
	timeout  time.Duration
	limit    time.Duration
	parallel int
	only     string
	tests    string
	baseline bool
}

func main() {
	var o options
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "how long the tests of a package may take; tests that hang have seen the source")
	flag.DurationVar(&o.limit, "limit", 30*time.Second, "how long one wait of a test may take; tests of Leases need 20 s")
	flag.IntVar(&o.parallel, "parallel", 1, "how many sources are left out at a time, each in a process of its own")
	flag.StringVar(&o.only, "only", "", "only the sources whose file:line or call contains this")
	flag.StringVar(&o.tests, "run", "", "only the tests that this regular expression matches, as for go test")
	flag.BoolVar(&o.baseline, "baseline", true, "run the tests with all sources first: they have to pass")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: watches [flags] directory[=directory of the tests]…")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	unseen := 0
	for _, argument := range flag.Args() {
		directory, tests, apart := strings.Cut(argument, "=")
		if !apart {
			tests = directory
		}
		n, err := run(ctx, o, filepath.Clean(directory), filepath.Clean(tests))
		if err != nil {
			fmt.Fprintln(os.Stderr, "watches:", err)
			os.Exit(2) //nolint:gocritic // the deferred stop has nothing left to do
		}
		unseen += n
	}
	if unseen > 0 {
		fmt.Fprintf(os.Stderr, "watches: %d sources that no test needs\n", unseen)
		os.Exit(1)
	}
}

// run runs the tests once for each source of a directory, and returns how many sources no test needs.
func run(ctx context.Context, o options, directory, tests string) (unseen int, err error) {
	dir, err := os.MkdirTemp("", "watches")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	list, overlay, err := switchable(directory, dir)
	if err != nil {
		return 0, err
	}
	s := suite{options: o, program: filepath.Join(dir, "suite.test"), directory: tests}
	if err := s.build(ctx, overlay); err != nil {
		return 0, err
	}
	if o.baseline {
		if result, passed, err := s.without(ctx, ""); err != nil || !passed {
			return 0, errors.Join(fmt.Errorf("the tests of %s fail with all sources: %s", tests, result), err)
		}
	}
	var mu sync.Mutex
	var wait sync.WaitGroup
	places := make(chan struct{}, o.parallel)
	for _, source := range list {
		if !strings.Contains(source.id+" "+source.text, o.only) {
			continue
		}
		places <- struct{}{}
		wait.Go(func() {
			defer func() { <-places }()
			begun := time.Now()
			result, passed, oneErr := s.without(ctx, source.id)
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, oneErr)
			if passed {
				unseen++
			}
			if oneErr == nil {
				fmt.Printf("%s %s: %s (%s)\n", source.id, source.text, result, time.Since(begun).Round(time.Second))
			}
		})
	}
	wait.Wait()
	return unseen, err
}
