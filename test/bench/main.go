// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures the pod path of `kiln controller` against what the same machine can do at best. It starts its own etcd,
// API server, OVN databases and ovn-northd, and speaks only to the API server and the databases. docs/performance.md says how to
// read what it prints.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// options are the flags.
type options struct {
	scenarios []string
	// sizes of the bursts, each on top of those before.
	sizes []int
	// floorPods, serial, restarts and remove are how often the other scenarios do what they do.
	floorPods, serial, restarts, remove int
	parallel, nodes                     int
	// northd says whether ovn-northd runs or is paused.
	northd bool
	// kiln is the binary under test.
	kiln string
	// json is the file of results, profiles the directory of profiles; empty for none.
	json, profiles string
	// old and new are the revisions to compare, in so many pairs of runs.
	old, new string
	pairs    int
	timeout  time.Duration
}

// scenarios in the order in which they run, whatever the order they are asked for.
var scenarios = []string{"floor", "serial", "burst", "restart", "delete"}

func main() {
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	what := f.String("bench", strings.Join(scenarios, ","), "what to measure; without floor there are no ratios")
	sizes := f.String("n", "1000", "pods of the bursts, each on top of those before, such as 1000,5000")
	northd := f.String("northd", "on", "on, or paused: then only the system's own part is measured")
	f.StringVar(&o.kiln, "kiln", "", "binary to measure; by default it is built from the working directory")
	f.StringVar(&o.json, "json", "", "file for the results")
	f.StringVar(&o.old, "old", "", "with -new: compare two git revisions or two binaries, in alternation")
	f.StringVar(&o.new, "new", "", "the other revision")
	f.IntVar(&o.pairs, "pairs", 5, "runs of each of the two")
	f.StringVar(&o.profiles, "profiles", "", "directory for CPU profiles of the controller in bursts")
	f.IntVar(&o.floorPods, "floor-pods", 1000, "pods of the floor of bursts")
	f.IntVar(&o.serial, "serial", 200, "pods one at a time")
	f.IntVar(&o.restarts, "restarts", 3, "restarts of the controller")
	f.IntVar(&o.remove, "delete", 1000, "pods to delete")
	f.IntVar(&o.nodes, "nodes", 3, "nodes without a kubelet")
	f.IntVar(&o.parallel, "parallel", 32, "requests of the driver at a time")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "time for everything")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if (o.old == "") != (o.new == "") {
		return o, errors.New("-old and -new belong together")
	}
	switch *northd {
	case "on", "paused":
		o.northd = *northd == "on"
	default:
		return o, fmt.Errorf("-northd %s: on or paused", *northd)
	}
	for size := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-n %s: not a list of numbers of pods", *sizes)
		}
		o.sizes = append(o.sizes, n)
	}
	o.scenarios = strings.Split(*what, ",")
	for _, name := range o.scenarios {
		if !slices.Contains(scenarios, name) {
			return o, fmt.Errorf("-bench %s: there are %s", name, strings.Join(scenarios, ", "))
		}
	}
	return o, nil
}

// bench is one run.
type bench struct {
	options options
	world   *world
	loader  *loader
	floors  floors
	// ports follows NB's logical switch ports, bindings SB's port bindings.
	ports, bindings *rowWatch
	// pods that exist, the oldest first.
	pods   []string
	bursts int
	// firstCost is the CPU time per pod of the first burst, in milliseconds.
	firstCost float64
	rows      []row
}

func run(ctx context.Context, o options) error {
	ctx, stop := context.WithTimeout(ctx, o.timeout)
	defer stop()
	on, err := cpus()
	if err != nil {
		return err
	}
	m := machineOf(on, o.northd)
	if o.kiln != "" {
		m.Revision = filepath.Base(o.kiln)
	}
	if o.old != "" {
		m.Revision = o.old + " and " + o.new
		return compare(ctx, o, m)
	}
	rows, err := measure(ctx, o)
	if err != nil {
		return err
	}
	printTable(os.Stdout, m, rows)
	return writeJSON(o.json, m, rows)
}

// measure runs the scenarios in a world of their own.
func measure(ctx context.Context, o options) (rows []row, err error) {
	ctx, stop := context.WithCancel(ctx)
	b := &bench{options: o}
	b.world, err = newWorld(ctx, o.nodes)
	defer func() {
		stop() // the watches first: the API server waits for them
		err = errors.Join(err, b.world.close())
	}()
	if err != nil {
		return nil, err
	}
	if o.kiln == "" {
		if b.options.kiln, err = build(ctx, ".", b.world.dir); err != nil {
			return nil, err
		}
	}
	if b.loader, err = newLoader(ctx, b.world, o.parallel, o.nodes); err != nil {
		return nil, err
	}
	err = b.scenarios(ctx)
	return b.rows, err
}

func (b *bench) scenarios(ctx context.Context) error {
	if b.wanted("floor") {
		if err := b.measureFloors(ctx); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
	}
	if !slices.ContainsFunc(scenarios[1:], b.wanted) {
		return nil
	}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if b.wanted("serial") {
		if err := b.serial(ctx); err != nil {
			return fmt.Errorf("serial: %w", err)
		}
	}
	sizes := b.options.sizes
	if !slices.ContainsFunc([]string{"burst", "restart", "delete"}, b.wanted) {
		sizes = nil // the others need pods that exist
	}
	for _, n := range sizes {
		if err := b.burst(ctx, n); err != nil {
			return fmt.Errorf("burst of %d: %w", n, err)
		}
	}
	if b.wanted("restart") {
		if err := b.restart(ctx); err != nil {
			return fmt.Errorf("restart: %w", err)
		}
	}
	if b.wanted("delete") {
		if err := b.remove(ctx, b.options.remove); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
	}
	return nil
}

func (b *bench) wanted(scenario string) bool { return slices.Contains(b.options.scenarios, scenario) }
