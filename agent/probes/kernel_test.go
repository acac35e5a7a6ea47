// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/kiln-net/kiln/agent/agenttest"
)

func TestProbesOutliveTheAgent(t *testing.T) {
	n := agenttest.Serving(t)
	tenant := n.Tenant("tenant", 300)
	exchanges := func(text string) {
		t.Helper()
		for _, podIP := range agenttest.AddressesOf(300) {
			agenttest.ExchangeAt(t, nil, tenant.NS, netip.AddrPortFrom(podIP, agenttest.ProbePort), text)
		}
	}
	routes, rules := routesTo(agenttest.AddressesOf(300), agenttest.ProbePort, agenttest.DeadPort), rulesOf(agenttest.ProbePort, agenttest.DeadPort)
	n.Agent.Kill()
	exchanges("while the agent is away")
	shell(t, "for f in -4 -6; do while ip $f rule del priority 75; do :; done; ip $f rule add priority 75 iif lo ipproto tcp dport 1 lookup 1802502145; done")
	n.StartAgent()
	hasProbes(t, n, routes, rules)
	exchanges("once it is back")
	n.WaitReady()
	tenant.Vanish()
	hasProbes(t, n, nil, nil)
	if links := probeLinks(t); len(links) != 0 {
		t.Errorf("there are still %v", links)
	}
}

// An earlier version had one rule for all ports, and did not record the ports of pods.
func TestProbesOfAnEarlierVersionGetTheirPorts(t *testing.T) {
	n := agenttest.Serving(t)
	tenant := n.Tenant("tenant", 300)
	routes, rules := routesTo(agenttest.AddressesOf(300), agenttest.ProbePort, agenttest.DeadPort), rulesOf(agenttest.ProbePort, agenttest.DeadPort)
	hasProbes(t, n, routes, rules)
	n.Agent.Kill()
	port, _ := tenant.Port()
	n.VSCtl("remove", "Interface", port, "external_ids", "probe_ports")
	shell(t, "for f in -4 -6; do ip $f rule flush protocol 76; done")
	shell(t, "for f in -4 -6; do ip $f route flush table all protocol 76; ip $f rule add priority 75 iif lo lookup 1802071152 protocol 76; done")
	link := probeLinks(t)[0]
	for i, podIP := range agenttest.AddressesOf(300) {
		shell(t, fmt.Sprintf("ip route add %s dev %s table 1802071152 protocol 76 scope link src %s", podIP, link, []string{"169.254.254.3", "fe80::a9fe:fe03"}[i]))
		agenttest.ExchangeAt(t, nil, tenant.NS, netip.AddrPortFrom(podIP, agenttest.ProbePort), "before the upgrade")
	}
	n.StartAgent()
	hasProbes(t, n, routes, rules)
	for _, podIP := range agenttest.AddressesOf(300) {
		agenttest.ExchangeAt(t, nil, tenant.NS, netip.AddrPortFrom(podIP, agenttest.ProbePort), "after the upgrade")
	}
	if _, ids := tenant.Port(); ids["probe_ports"] != "8080,8081" {
		t.Errorf("Open vSwitch has %v", ids)
	}
	n.WaitReady()
}

// shell sets up interfaces and routes with the program ip, as an administrator or an earlier version would, and not with the tested code.
func shell(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}
