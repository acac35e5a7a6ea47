// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kiln-net/kiln/internal/testing/gate"
)

// elsewhere deselects specs that have suites of their own.
const elsewhere = "!faults && !crashes && !upgrade-from && !changes && !migrate && !packaging && !monitoring && !alerts && !physical && " +
	"!single-nic && !kubelet-nic && !underlay-default && !bgp && !qos && !outside"

// Label filters of the suites that run most specs. Smoke specs are in the gate. Timed specs assert durations, gaps or losses. The
// failure of a spec with a known defect does not count. Fast specs need a machine that starts 100 containers at once, which a lab with one CPU is not.
const (
	smoke         = "smoke && !unstable"
	functional    = "!timed && !known-defect && " + elsewhere
	timed         = "timed && !known-defect && " + elsewhere
	defects       = "known-defect && " + elsewhere
	inKernelGroup = "!known-defect && !fast && " + elsewhere
)

// All is the table. `make generate` writes the make targets and the workflows from it. `make` and workflows have the same order.
var All = slices.Concat(inOneLab, inSeveralLabs, otherTargets)

// inOneLab are suites that bring one lab up.
var inOneLab = []Suite{
	{
		Name: "test-smoke", Often: Hand,
		Help:      "The e2e specs of the gate in a new lab, as a part of `make test` (needs `make prepare`)",
		Variables: []Variable{{"KILN_SEEDS", "", "seed of the order of specs"}},
		labs: oneLab(func(in In) Run {
			run := selected(smoke, 60*time.Minute).with(gate.Env + "=1")
			if seed := in.Values["KILN_SEEDS"]; seed != "" {
				run.Args = append(run.Args, "-ginkgo.seed="+seed)
			}
			return run
		}),
	},
	{
		Name: "stress-smoke", Often: Hand,
		Help:      "The e2e specs of the gate ten times next to four busy processes and one that writes to the disk, in a new lab: a spec of the gate passes each time (SPECS=… some)",
		Variables: []Variable{{"SPECS", "", "regular expression of the specs to run"}},
		labs: oneLab(func(in In) Run {
			run := selected(smoke, 120*time.Minute).with(gate.Env + "=1")
			if specs := in.Values["SPECS"]; specs != "" {
				run.Args = append(run.Args, "-ginkgo.focus="+specs)
			}
			run.Need, run.Busy = 10, 4
			return run.times("smoke", 10)
		}),
	},
	{
		Name: "test-e2e", Often: Night, Limit: 120 * time.Minute,
		Help: "The e2e suite without timed specs in a new lab (needs `make prepare`); the answers to mistakes of users go to _output/mistakes.md",
		labs: oneLab(func(in In) Run {
			return selected(functional, 45*time.Minute).with("MISTAKES_REPORT=" + in.output("mistakes.md"))
		}),
	},
	{
		Name: "test-timing", Often: Night, Limit: 240 * time.Minute, Idle: true,
		Help:      "The timed specs three times in a new lab on an idle machine, with verdicts by the median; values are added to _output/timing.csv",
		Variables: []Variable{{"LOAD", "0.5", "load of the last minute above which the machine is not idle"}},
		labs: func(In) ([]Lab, error) {
			// A suite with a failed spec does not judge its waits: known defects have a run of their own.
			return []Lab{{Archives: []string{imageArchive}, Runs: []Run{
				selected(timed, 60*time.Minute).times("timed", 3), selected(defects, 60*time.Minute).times("known-defect", 3),
			}}}, nil
		},
	},
	{
		Name: "underlay", Often: Night, Limit: 90 * time.Minute,
		Help: "Subnets on a physical network, in a new lab",
		labs: oneLab(always(selected("underlay", 30*time.Minute))),
	},
	{
		Name: "mirrors", Often: Night, Limit: 90 * time.Minute,
		Help: "Copies of packets at mirror0 and at remote collectors, in a new lab (DATAPATH=kernel)",
		labs: oneLab(always(selected("mirror", 30*time.Minute))),
	},
	{
		Name: "outside", Often: Night, Limit: 120 * time.Minute,
		Help:   "External addresses on the routers of VPCs, on VLANs of a new lab, with FRR as BFD peer (DATAPATH=kernel)",
		before: withRouter,
		labs:   oneLab(always(selected("outside", 60*time.Minute))),
	},
	{
		Name: "underlay-default", Often: Night, Limit: 90 * time.Minute,
		Help: "The subnet ovn-default on a VLAN, in a new lab",
		labs: oneLab(always(selected("underlay-default", 30*time.Minute).with("DEFAULT_ON_VLAN=1"))),
	},
	{
		Name: "test-changes", Often: Night, Limit: 90 * time.Minute,
		Help: "Change podCIDRs, dataDirectory, toolingDirectory and tunnelType of an installed cluster under traffic, in a new lab",
		labs: oneLab(always(selected("changes", 40*time.Minute))),
	},
	{
		Name: "test-upgrade", Often: Night, Limit: 90 * time.Minute,
		Help:      "Install the version of FROM, upgrade it under traffic, and go back to its image, in a new lab",
		Variables: []Variable{{"FROM", "7087442b", "commit of the version to upgrade from"}},
		before:    withEarlierVersion,
		labs: func(in In) ([]Lab, error) {
			run := selected("upgrade-from", 40*time.Minute).with("UPGRADE_FROM=" + in.output("from"))
			return []Lab{{Archives: []string{imageArchive, fromArchive}, Runs: []Run{run}}}, nil
		},
	},
	{
		Name: "migrate", Often: Night, Limit: 90 * time.Minute,
		Help: "Remove Kiln from a new lab, leave remains of Kube-OVN, and follow docs/operations/migrate.md",
		labs: oneLab(always(selected("migrate", 40*time.Minute))),
	},
	{
		Name: "faults", Often: Week, Limit: 150 * time.Minute,
		Help: "Every fault of docs/operations/reliability.md, one after another, in a new lab with three nodes of the control plane; the table goes to _output/faults.md",
		labs: func(in In) ([]Lab, error) {
			run := selected("faults && !known-defect", 60*time.Minute).with("FAULTS_REPORT=" + in.output("faults.md"))
			return []Lab{{ControlPlanes: "3", Archives: []string{imageArchive}, Runs: []Run{run}}}, nil
		},
	},
	{
		Name: "crashes", Often: Week, Limit: 180 * time.Minute,
		Help:      "Kill the daemons of a node's Open vSwitch in a new lab, and count lost packets (DATAPATH=kernel; CRASHES=… rounds); the table goes to _output/crashes.md",
		Variables: []Variable{{"CRASHES", "10", "rounds of each crash"}},
		labs: oneLab(func(in In) Run {
			return selected("crashes", 120*time.Minute).with("CRASHES="+in.Values["CRASHES"], "CRASHES_REPORT="+in.output("crashes.md"))
		}),
	},
	{
		Name: "qos", Often: Week, Limit: 120 * time.Minute,
		Help:   "Rates and delays of pods, measured in a new lab (DATAPATH=kernel); the table goes to _output/qos.md",
		before: withProbe,
		labs: oneLab(func(in In) Run {
			run := selected("qos", 90*time.Minute).with("NETPROBE="+in.output("netprobe"), "QOS_REPORT="+in.output("qos.md"))
			run.Args = append(run.Args, "-ginkgo.timeout=90m")
			return run
		}),
	},
	{
		Name: "attacks", Often: Week, Limit: 90 * time.Minute,
		Help: "A hostile tenant with the role edit and 5,000 pods, in a new lab",
		labs: oneLab(always(Run{
			Program: endToEnd, Env: []string{"ATTACKS=all"}, Args: []string{"-test.timeout", "30m", "-ginkgo.focus=a hostile tenant|a stolen node"},
		})),
	},
	{
		Name: "monitoring", Often: Week, Limit: 90 * time.Minute,
		Help: "Debian's Prometheus scrapes every component of a new lab: metrics, alerts and dashboards; the tables and pages go to _output",
		labs: oneLab(func(in In) Run {
			return selected("monitoring", 30*time.Minute).with("MONITORING_REPORT=" + in.output("monitoring.md"))
		}),
	},
	{
		Name: "alerts", Often: Week, Limit: 150 * time.Minute,
		Help: "Each alert that a fault of the lab can cause fires and resolves, with shorter durations, in a new lab; the table goes to _output/alerts.md (ALERT=… for some)",
		Variables: []Variable{
			{"ALERT", "", "regular expression of the alerts to try"},
			{"ALERTS_FASTER", "20", "factor by which durations of alerts are shortened"},
		},
		labs: oneLab(func(in In) Run {
			run := selected("alerts", 60*time.Minute).with("ALERTS_REPORT="+in.output("alerts.md"), "ALERTS_FASTER="+in.Values["ALERTS_FASTER"])
			if alert := in.Values["ALERT"]; alert != "" {
				run.Args = append(run.Args, "-ginkgo.focus="+alert)
			}
			return run
		}),
	},
	{
		Name: "bgp-lab", Often: Week, Limit: 240 * time.Minute,
		Help:      "kube-ovn-speaker with FRR and BIRD in a new lab: routes, traffic from outside, times of withdrawals; the table goes to _output/bgp.md (BGP_RUNS=…)",
		Variables: []Variable{{"BGP_RUNS", "20", "runs of each event that is measured"}},
		before:    withRouter,
		labs: oneLab(func(in In) Run {
			run := selected("bgp", 120*time.Minute).with("BGP_RUNS="+in.Values["BGP_RUNS"], "BGP_REPORT="+in.output("bgp.md"))
			run.Args = append(run.Args, "-ginkgo.timeout=120m")
			return run
		}),
	},
	{
		Name: "conformance", Often: Week, Limit: 180 * time.Minute, Needs: []string{"prepare"}, Ends: true,
		Help: "Kubernetes' own [sig-network] conformance tests in a new lab (docs/development/conformance.md; ALL=1 all of [sig-network], FOCUS=… SKIP=… others)",
		Variables: []Variable{
			{"ALL", "", "1 runs all tests of [sig-network]"},
			{"FOCUS", "", "regular expression of the tests to run"},
			{"SKIP", "", "regular expression of tests not to run"},
			{"FAMILIES", "dual", "families of pods"},
		},
		labs: oneLab(conformance),
	},
	{
		Name: "bench-datapath", Often: Hand,
		Help:      "Throughput, round trips, connections and packets of the data plane in a new lab, with references (DATAPATH=kernel); the table goes to _output/datapath.md",
		Variables: []Variable{{"BENCH_FLAGS", "", "more flags of test/bench/datapath"}},
		labs: oneLab(func(in In) Run {
			args := []string{"-netprobe", in.output("netprobe"), "-output", in.output("datapath.md")}
			return Run{Program: datapath, Args: append(args, strings.Fields(in.Values["BENCH_FLAGS"])...)}
		}),
	},
}

func conformance(in In) Run {
	var args []string
	if in.Values["ALL"] != "" {
		args = append(args, "-all")
	}
	for _, flag := range []string{"focus", "skip"} {
		if value := in.Values[strings.ToUpper(flag)]; value != "" {
			args = append(args, "-"+flag, value)
		}
	}
	return Run{Program: kubernetesTests, Args: append(args, "-families", in.Values["FAMILIES"])}
}

// inSeveralLabs are suites with labs of several kinds, or with several runs in one.
var inSeveralLabs = []Suite{
	{
		Name: "underlay-single-nic", Often: Night, Limit: 120 * time.Minute,
		Help: "A provider network on the only interface of nodes, and on the interface of the kubelet, in two new labs",
		labs: func(In) ([]Lab, error) {
			return []Lab{
				{Name: "single-nic", Up: []string{"--single-nic"}, Archives: []string{imageArchive}, Runs: []Run{selected("single-nic", 30*time.Minute)}},
				{Name: "kubelet-nic", Archives: []string{imageArchive}, Runs: []Run{selected("kubelet-nic", 30*time.Minute)}},
			}, nil
		},
	},
	{
		Name: "test-modes", Often: Night, Limit: 90 * time.Minute,
		Help: "The checks of the demo in other labs: IPv4 only, IPv6 only, and both with kube-proxy",
		labs: func(In) ([]Lab, error) {
			return []Lab{mode("ipv4"), mode("ipv6", "--ipv6-first"), mode("dual", "--kube-proxy")}, nil
		},
	},
	{
		Name: "test-install", Often: Night, Limit: 180 * time.Minute, Continues: true,
		Help: "Install, check, upgrade under traffic and uninstall by install.yaml, two overlays, the bundle, and the documentation's commands, each in a new lab (WAYS=bundle for some)",
		Variables: []Variable{
			{"WAYS", strings.Join(waysToInstall, " "), "ways to install (test/e2e/packaging_test.go)"},
		},
		labs: installations,
	},
	{
		Name: "test-kernel", Often: Week, Limit: 330 * time.Minute, Needs: []string{"prepare"}, Reuses: true,
		Help: "The e2e suite on the kernel's Open vSwitch datapath, in groups (GROUP=services for some; KEEP=1 uses and leaves the lab that is up)",
		Variables: []Variable{
			{"GROUP", strings.Join(groupNames(), " "), "groups of specs"},
		},
		labs: kernelLab,
	},
	{
		Name: "test-cluster", Often: Night,
		Help: "The suites that change the cluster as a whole, one after another: physical networks, modes, changes, upgrade, migration, installations",
		Of:   []string{"underlay", "underlay-single-nic", "underlay-default", "test-modes", "test-changes", "test-upgrade", "migrate", "test-install"},
	},
	{
		Name: "test-hard", Often: Week,
		Help: "The suites that take hours, one after another: faults, crashes, attacks, monitoring, alerts, BGP (BGP_RUNS=3 is shorter)",
		Of:   []string{"faults", "crashes", "attacks", "monitoring", "alerts", "bgp-lab"},
	},
}

// mode is a lab in which the demo's checks run with pods of some families.
func mode(families string, up ...string) Lab {
	return Lab{Name: families, Up: up, Archives: []string{imageArchive}, Runs: []Run{{Program: demo, Args: []string{"--families", families}}}}
}

// waysToInstall are the ways of test-install. The last two run the commands of README.md and docs/operations/packages.md, and pull the image from a
// registry on the host. The bundle and no-kube-proxy need a lab whose Services the network serves.
var waysToInstall = []string{"installer", "dual-stack", "no-kube-proxy", "bundle", "readme", "one-file"}

func installations(in In) ([]Lab, error) {
	var labs []Lab
	for _, way := range strings.Fields(in.Values["WAYS"]) {
		if !slices.Contains(waysToInstall, way) {
			return nil, fmt.Errorf("no way to install is called %q: WAYS has %s", way, strings.Join(waysToInstall, ", "))
		}
		lab := Lab{Name: way, Archives: []string{imageArchive}, Runs: []Run{selected("packaging", 40*time.Minute).with("INSTALL_BY=" + way)}}
		if way != "no-kube-proxy" && way != "bundle" {
			lab.Up = []string{"--kube-proxy"}
		}
		if way == "readme" || way == "one-file" {
			lab.Archives = nil
		}
		labs = append(labs, lab)
	}
	return labs, nil
}

// otherTargets are suites without a lab. Their recipes are in the Makefile.
var otherTargets = []Suite{
	{Name: "test", Often: Change, Limit: 90 * time.Minute, Variables: general},
	{Name: "test-long", Often: Night, Limit: 120 * time.Minute},
	{Name: "test-operator-long", Often: Night, Limit: 60 * time.Minute},
	{Name: "test-tools", Often: Night, Limit: 60 * time.Minute},
	{Name: "mutants", Often: Night, Limit: 180 * time.Minute, Variables: []Variable{{"MUTANTS", "", "flags of hack/mutants"}}},
	{Name: "test-image", Often: Night, Limit: 60 * time.Minute},
	{Name: "underlay-kills", Often: Week, Limit: 60 * time.Minute},
	{Name: "bgp", Often: Week, Limit: 60 * time.Minute},
	{Name: "test-race", Often: Week, Limit: 180 * time.Minute, Variables: []Variable{{"RACE_PACKAGES", "", "packages to test"}}},
	{Name: "fuzz", Often: Week, Limit: 120 * time.Minute, Variables: []Variable{{"FUZZTIME", "1m", "duration of each target"}}},
	{Name: "test-watches", Often: Hand, Variables: []Variable{{"WATCHES", "", "packages"}, {"WATCHES_FLAGS", "", "flags of hack/watches"}}},
	{Name: "underlay-kernel", Often: Hand},
}
