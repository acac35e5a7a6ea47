// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// group is a part of the e2e suite, by files of test/e2e without _test.go.
type group struct {
	name  string
	files []string
}

// kernelGroups are the groups of test-kernel. Each takes about ten minutes in a lab with one CPU. removal must be the first: it compares nodes with
// their state before Kiln was installed.
var kernelGroups = []group{
	{"removal", []string{"removal"}},
	{"main", []string{"main", "churn", "kubectlko", "badinput", "sctp", "metrics", "samples", "mistakes", "pinger"}},
	{"services", []string{"service", "loadbalancer", "vip", "switches"}},
	{"rules", []string{"lbrule", "routerlbrule"}},
	{"policies", []string{"policy", "trace", "symptoms"}},
	{"policykinds", []string{"policy_cluster", "securitygroup", "security"}},
	{"vpcs", []string{"vpc", "address"}},
	{"transit", []string{"transit"}},
	{"subnets", []string{"subnet", "machine", "mirror"}},
	{"gateways", []string{"gateway", "egress", "egress_flows", "underlay", "underlay_vlans", "underlay_u2o"}},
	{"tenants", []string{"attacks", "attacks_flood", "attacks_link", "attacks_node"}},
	{"restarts", []string{"restart", "upgrade"}},
	{"members", []string{"members"}},
}

func groupNames() []string {
	var names []string
	for _, g := range kernelGroups {
		names = append(names, g.name)
	}
	return names
}

// specFile is the name of a file of test/e2e.
func specFile(name string) string { return name + "_test.go" }

// kernelLab returns the lab of test-kernel, in which one group runs after another.
func kernelLab(in In) ([]Lab, error) {
	lab := Lab{KernelDatapath: true, Archives: []string{imageArchive}}
	for _, name := range strings.Fields(in.Values["GROUP"]) {
		i := slices.IndexFunc(kernelGroups, func(g group) bool { return g.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no group is called %q: GROUP has %s", name, strings.Join(groupNames(), ", "))
		}
		run := selected(inKernelGroup, 60*time.Minute)
		run.Name = name
		for _, file := range kernelGroups[i].files {
			run.Args = append(run.Args, "-ginkgo.focus-file=/"+specFile(file))
		}
		lab.Runs = append(lab.Runs, run)
	}
	return []Lab{lab}, nil
}
