// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command mutants measures how well the tests detect defects. Its table lists plausible defects of the product, each as a replacement of one
// text of one file. For each of them the program runs the tests that must detect it, and prints which test did. The files do not change: the
// go command reads the changed file from an overlay (go help build).
//
// It exits non-zero when a mutant survives that is no known survivor, when the tests kill a known survivor, or when an entry of the table
// has an error: a text that its file does not have exactly once, a mutant that does not compile, or a -run expression that matches no test.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"time"
)

// options are the flags.
type options struct {
	id       string
	pkg      string
	jobs     int
	timeout  time.Duration
	limit    time.Duration
	baseline bool
	page     string
}

func main() {
	var o options
	flag.StringVar(&o.id, "id", "", "only the mutants whose id matches this regular expression")
	flag.StringVar(&o.pkg, "package", "", "only the mutants whose file has this text in its path")
	flag.IntVar(&o.jobs, "jobs", 1, "how many mutants are tested at a time")
	flag.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long the tests of one mutant may take; tests that hang have detected it")
	flag.DurationVar(&o.limit, "limit", 20*time.Second, "how long one wait of a test may take")
	flag.BoolVar(&o.baseline, "baseline", true, "run the tests without a mutant first: they have to pass")
	flag.StringVar(&o.page, "page", "", "write the verdicts to the table in this page")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1) //nolint:gocritic // the deferred stop has nothing left to do
	}
}

func run(ctx context.Context, o options) error {
	chosen, err := choose(table(), o)
	if err != nil {
		return err
	}
	r := runner{timeout: o.timeout, limit: o.limit}
	if o.baseline {
		if err := r.baseline(ctx, chosen); err != nil {
			return err
		}
	}
	results := r.all(ctx, chosen, o.jobs)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if o.page != "" {
		if err := record(o.page, table(), results); err != nil {
			return err
		}
	}
	return summary(chosen, results)
}

// choose returns the mutants that the flags select.
func choose(all []mutant, o options) ([]mutant, error) {
	id, err := regexp.Compile(o.id)
	if err != nil {
		return nil, fmt.Errorf("-id: %w", err)
	}
	var chosen []mutant
	for _, m := range all {
		if id.MatchString(m.id) && strings.Contains(m.file, o.pkg) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("the flags select no mutant")
	}
	return chosen, nil
}

// all tests mutants, jobs at a time, and prints each result. It returns the results by id.
func (r runner) all(ctx context.Context, mutants []mutant, jobs int) map[string]result {
	var mu sync.Mutex
	var wait sync.WaitGroup
	results := map[string]result{}
	places := make(chan struct{}, max(1, jobs))
	for _, m := range mutants {
		places <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wait.Go(func() {
			defer func() { <-places }()
			begun := time.Now()
			got := r.test(ctx, m)
			if ctx.Err() != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			results[m.id] = got
			fmt.Printf("%-9s %s: %s: %s (%s)\n", got.verdict, m.id, m.bug, got.detail, time.Since(begun).Round(time.Second))
		})
	}
	wait.Wait()
	return results
}

// summary prints the number of mutants by verdict. It returns an error that names the mutants with another verdict than the table's.
func summary(mutants []mutant, results map[string]result) error {
	counts := map[verdict]int{}
	var wrong []error
	for _, m := range mutants {
		got := results[m.id]
		counts[got.verdict]++
		switch {
		case got.verdict == invalid:
			wrong = append(wrong, fmt.Errorf("%s: the table is wrong: %s", m.id, got.detail))
		case got.verdict == survived && m.survives == "":
			wrong = append(wrong, fmt.Errorf("%s survives: write a test that fails with it", m.id))
		case got.verdict == killed && m.survives != "":
			wrong = append(wrong, fmt.Errorf("%s is a known survivor, and %s: remove its reason from the table", m.id, got.detail))
		}
	}
	fmt.Printf("%d mutants: %d killed, %d survived, %d invalid\n", len(mutants), counts[killed], counts[survived], counts[invalid])
	return errors.Join(wrong...)
}
