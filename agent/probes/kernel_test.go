// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes_test

import (
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

// shell sets up interfaces and routes with the program ip, as an administrator would, and not with the tested code.
func shell(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}
