// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures a controller of pod networks, by default `kiln controller`, against the best values that the same machine
// can reach. It starts its own etcd, API server, OVN databases and ovn-northd, and connects only to the API server and the
// databases. docs/development/performance.md explains the output.
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

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// options holds the flags.
type options struct {
	scenarios []string
	// sizes are the numbers of pods of the bursts; each burst adds to the previous ones.
	sizes []int
	// subnetSizes are the numbers of existing subnets at which one more is measured, each probes times.
	subnetSizes []int
	probes      int
	// vlans is the number of underlay subnets, and of overlay subnets to compare them with.
	vlans int
	// floorPods, serial, restarts, remove, subnets and joining are the sizes of the other scenarios.
	floorPods, serial, restarts, remove, subnets, joining int
	parallel, nodes                                       int
	// services, endpoints, policies and selected are the sizes of the scenarios of Services and policies.
	services, endpoints, policies, selected int
	// backgrounds are the sizes at which the time until enforced is measured, each on top of the previous one; rounds is how often.
	backgrounds []background
	rounds      int
	// northd is false when ovn-northd is paused.
	northd bool
	layout layout
	// system is the command under test and kiln the binary that Kiln's command runs; crds, lease and legs belong to the system.
	system, kiln, crds, lease, legs string
	// clusterAdmin makes the system under test a cluster administrator instead of a user of its ServiceAccount. admission installs
	// the operator's admission policies. portSecurity is the value for subnets that do not set theirs.
	clusterAdmin, admission bool
	portSecurity            kubeovnv1.PortSecurity
	// annotations of the pods.
	annotations map[string]string
	datapath    v1alpha1.Datapath
	// json is the file of results and profiles the directory of profiles; "" is none.
	json, profiles string
	// old and new are the revisions to compare, in pairs of runs.
	old, new string
	pairs    int
	// args are all flags; oldFlags are more flags for the runs of old.
	args     []string
	oldFlags string
	timeout  time.Duration
}

// scenario is one measurement.
type scenario struct {
	name string
	run  func(*bench, context.Context) error
	// pods is set if the scenario needs the pods of the bursts.
	pods bool
}

// scenarios are listed in the order in which they run, whatever the order in the -bench flag.
var scenarios = []scenario{
	{name: "floor", run: (*bench).measureFloors},
	{name: "serial", run: (*bench).serial},
	{name: "burst", run: (*bench).fill, pods: true},
	{name: "flat", run: (*bench).flat, pods: true},
	{name: "restart", run: (*bench).restart, pods: true},
	{name: "takeover", run: (*bench).takeover, pods: true},
	{name: "delete", run: (*bench).remove, pods: true},
	{name: "nodes", run: (*bench).join},
	{name: "subnets", run: (*bench).grow},
	{name: "underlay", run: (*bench).underlay},
	{name: "services", run: (*bench).serve},
	{name: "policy", run: (*bench).isolate},
	{name: "enforced", run: (*bench).enforce},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = o.layout.pin()
	}
	if err == nil {
		err = runInShare(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func runInShare(ctx context.Context, o options) error {
	if o.old != "" { // its runs have shares of their own
		return run(ctx, o)
	}
	leave, err := o.layout.enterShare()
	if err != nil {
		return err
	}
	return errors.Join(run(ctx, o), leave())
}

func parse(args []string) (options, error) {
	o := options{args: args}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	what := f.String("bench", "floor,serial,burst,restart,delete", "what to measure, of "+strings.Join(scenarioNames(), ", ")+"; without floor there are no ratios")
	sizes := f.String("n", "1000", "pods of the bursts, each on top of those before, such as 1000,5000")
	networks := f.String("subnet-sizes", "10,100,1000", "how many subnets there are when one more is measured")
	behind := f.String("backgrounds", "100:0,5000:1000", "pods and policies that there are when the time until enforced is measured")
	northd := f.String("northd", "on", "on, or paused: then only the system's own part is measured")
	on := f.String("layout", "", "one: everything on one CPU; split: servers on one, system under test and driver on another (the default with two CPUs)")
	share := f.Int("share", 0, "percent of these CPUs' time for everything, as on a slower machine (root); 0 is all")
	chosen := f.String("cpus", "", "CPUs to use, such as 0,1; by default all that this process may run on")
	f.StringVar(&o.kiln, "kiln", "", "Kiln's binary; by default it is built from the working directory")
	f.StringVar(&o.system, "system", kilnCommand, "command under test, for a shell; docs/development/performance.md says which variables it finds")
	f.StringVar(&o.crds, "crds", kilnCRDs, "directory of the kinds that the system under test needs")
	f.StringVar(&o.lease, "lease", kilnLease, "namespace and name of the Lease of its leader")
	f.StringVar(&o.legs, "legs", kilnLegs, "prefix of its histograms of a pod's stages")
	f.BoolVar(&o.clusterAdmin, "cluster-admin", false, "run the system under test as a cluster administrator, without the operator's roles and admission policies, as always with another -system")
	f.BoolVar(&o.admission, "admission-policies", true, "install the admission policies that the operator renders")
	f.StringVar((*string)(&o.portSecurity), "port-security", string(kubeovnv1.PortSecurityEnforced), "portSecurity of subnets that do not set theirs: Enforced or Requested")
	f.Func("pod-annotation", "an annotation of the pods, as key=value; more than once for several; an empty one removes those before", func(text string) error {
		if text == "" {
			o.annotations = nil
			return nil
		}
		key, value, found := strings.Cut(text, "=")
		if !found {
			return errors.New("not key=value")
		}
		if o.annotations == nil {
			o.annotations = map[string]string{}
		}
		o.annotations[key] = value
		return nil
	})
	f.StringVar((*string)(&o.datapath), "datapath", string(v1alpha1.DatapathKernel), "of the nodes: Kernel or Userspace")
	f.StringVar(&o.json, "json", "", "file for the results")
	f.StringVar(&o.old, "old", "", "with -new: compare two git revisions or two binaries, in alternation")
	f.StringVar(&o.new, "new", "", "the other revision")
	f.StringVar(&o.oldFlags, "old-flags", "", "with -old: more flags for its runs, such as '-admission-policies=false'")
	f.IntVar(&o.pairs, "pairs", 5, "runs of each of the two")
	f.StringVar(&o.profiles, "profiles", "", "directory for CPU profiles of the controller in bursts")
	f.IntVar(&o.floorPods, "floor-pods", 1000, "pods of the floor of bursts")
	f.IntVar(&o.serial, "serial", 200, "pods one at a time")
	f.IntVar(&o.restarts, "restarts", 5, "restarts and takeovers")
	f.IntVar(&o.remove, "delete", 1000, "pods to delete")
	f.IntVar(&o.nodes, "nodes", 3, "nodes of the pods, without a kubelet")
	f.IntVar(&o.subnets, "subnets", 100, "subnets that there are when nodes join")
	f.IntVar(&o.vlans, "vlans", 50, "VLANs with a subnet, and subnets of the overlay, for the pods of the first burst")
	f.IntVar(&o.probes, "probes", 20, "subnets that are one more")
	f.IntVar(&o.joining, "joining", 1000, "nodes that join")
	f.IntVar(&o.services, "services", 5000, "Services that there are when an endpoint of one more changes")
	f.IntVar(&o.endpoints, "endpoints", 1000, "endpoints of that one")
	f.IntVar(&o.policies, "policies", 500, "policies that there are when a label changes")
	f.IntVar(&o.selected, "selected", 1000, "pods that a new policy selects")
	f.IntVar(&o.rounds, "rounds", 10, "how often each change until enforced is measured")
	f.IntVar(&o.parallel, "parallel", 32, "requests of the driver at a time")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "time for everything")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if (o.old == "") != (o.new == "") {
		return o, errors.New("-old and -new belong together")
	}
	if min(o.floorPods, o.serial, o.restarts, o.remove, o.nodes, o.joining, o.parallel, o.pairs, o.probes, o.rounds, o.vlans) < 1 || min(o.services, o.endpoints, o.policies, o.selected) < 2 || o.subnets < 0 || o.joining%quarters != 0 {
		return o, fmt.Errorf("a number of things to do is less than one, or -joining is no multiple of %d", quarters)
	}
	if *northd != "on" && *northd != "paused" {
		return o, fmt.Errorf("-northd %s: on or paused", *northd)
	}
	o.northd = *northd == "on"
	if o.portSecurity != kubeovnv1.PortSecurityEnforced && o.portSecurity != kubeovnv1.PortSecurityRequested {
		return o, fmt.Errorf("-port-security %s: %s or %s", o.portSecurity, kubeovnv1.PortSecurityEnforced, kubeovnv1.PortSecurityRequested)
	}
	o.clusterAdmin = o.clusterAdmin || o.system != kilnCommand
	o.admission = o.admission && !o.clusterAdmin
	if *share < 0 || *share >= 100 {
		return o, fmt.Errorf("-share %d: 1 to 99", *share)
	}
	err := o.place(*on, *chosen, *share)
	if err != nil {
		return o, err
	}
	if o.backgrounds, err = backgroundsOf(*behind); err != nil {
		return o, err
	}
	return o, o.choose(*what, *sizes, *networks)
}

// place sets the layout.
func (o *options) place(name, chosen string, share int) error {
	on, err := cpus()
	if err != nil {
		return err
	}
	if chosen != "" {
		on = strings.Split(chosen, ",")
	}
	o.layout, err = layoutOf(name, on)
	o.layout.Share = share
	return err
}

// choose sets the scenarios and their sizes.
func (o *options) choose(what, sizes, networks string) (err error) {
	if o.sizes, err = numbers(sizes); err != nil {
		return fmt.Errorf("-n: %w", err)
	}
	if o.subnetSizes, err = numbers(networks); err != nil || !slices.IsSorted(o.subnetSizes) {
		return fmt.Errorf("-subnet-sizes %s: not a list of growing numbers", networks)
	}
	o.scenarios = strings.Split(what, ",")
	for _, name := range o.scenarios {
		if !slices.Contains(scenarioNames(), name) {
			return fmt.Errorf("-bench %s: there are %s", name, strings.Join(scenarioNames(), ", "))
		}
	}
	return nil
}

func numbers(list string) (all []int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s is not a list of numbers", list)
		}
		all = append(all, n)
	}
	return all, nil
}

func scenarioNames() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// bench is one run.
type bench struct {
	options options
	world   *world
	loader  *loader
	leader  *instance
	floors  floors
	// ports follows the logical switch ports in NB, switches its logical switches, bindings the port bindings in SB.
	ports, switches, bindings *arrivals
	// pods are the existing pods, oldest first.
	pods []string
	// made counts the groups of pods; it is part of their names.
	made   int
	bursts []costs
	// networks holds, for each number of subnets, the costs of single networks.
	networks [][]networkCosts
	// firstSerial is the median of the first serial pods, from the creation to the port in NB.
	firstSerial time.Duration
	rows        []row
}

func run(ctx context.Context, o options) error {
	ctx, stop := context.WithTimeout(ctx, o.timeout)
	defer stop()
	m := machineOf(o)
	if o.kiln != "" {
		m.Revision = filepath.Base(o.kiln)
	}
	if o.old != "" {
		m.Revision = strings.TrimSpace(o.old+" "+o.oldFlags) + " and " + o.new
		return compare(ctx, o, m)
	}
	rows, err := measure(ctx, o, (*bench).scenarios)
	if err != nil {
		return err
	}
	printTable(os.Stdout, m, rows)
	return writeJSON(o.json, m, rows)
}

// measure calls do in a new world and returns its numbers.
func measure(ctx context.Context, o options, do func(*bench, context.Context) error) (rows []row, err error) {
	ctrl.SetLogger(logr.Discard())
	ctx, stop := context.WithCancelCause(ctx)
	b := &bench{options: o}
	b.world, err = newWorld(ctx, o, stop)
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		stop(context.Canceled) // the watches first: the API server waits for them to end
		err = errors.Join(err, b.world.close())
	}()
	if err != nil {
		return nil, err
	}
	if o.kiln == "" && o.system == kilnCommand {
		if b.options.kiln, err = build(ctx, ".", b.world.dir); err != nil {
			return nil, err
		}
	}
	if b.loader, err = newLoader(ctx, b.world, o.parallel, o.nodes); err != nil {
		return nil, err
	}
	b.loader.annotations = o.annotations
	err = do(b, ctx)
	return b.rows, err
}

// scenarios runs the requested scenarios. It also runs the bursts if a scenario needs their pods, and starts the system under test
// before the first scenario other than the floor.
func (b *bench) scenarios(ctx context.Context) error {
	needPods := slices.ContainsFunc(scenarios, func(s scenario) bool { return s.pods && b.wanted(s.name) })
	for _, s := range scenarios {
		if !b.wanted(s.name) && (s.name != "burst" || !needPods) {
			continue
		}
		if s.name != "floor" && b.leader == nil {
			if err := b.prepare(ctx); err != nil {
				return fmt.Errorf("start: %w", err)
			}
		}
		if err := s.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (b *bench) wanted(scenario string) bool { return slices.Contains(b.options.scenarios, scenario) }
