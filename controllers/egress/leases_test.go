// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"testing"

	eventsv1 "k8s.io/api/events/v1"

	"github.com/kiln-net/kiln/controllers/egress"
)

// Without a Lease, only the node condition reports the failure, 40 s after it.
func TestAGatewayDiesBeforeItsFirstRenewal(t *testing.T) {
	n := start(t, "n1", "n2")
	n.DiffersFromFresh("a fresh process waits for the first renewal of n1 again")
	n.renew("n2")
	n.centralized("s", "10.17.0.0/24", "n1,n2", nil)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1")
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.2")
	n.status("s", "n2", egress.ReasonReady)
}

func TestALeaseThatRunsOutMovesTheGateway(t *testing.T) {
	n := start(t, "n1", "n2")
	stop := n.renew("n1")
	n.renew("n2")
	s := n.centralized("s", "10.17.0.0/24", "n1,n2", nil)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1")
	n.Measures(1, "centralized_subnet_info", "subnet_name", "s", "active_gateway", "n1", "nexthops", "100.64.0.1,fd00:100:64::1", "match", "10.17.0.0/24")
	failovers, counted := n.Metric("kiln_gateway_failovers_total", "subnet_name", "s")
	if !counted {
		t.Error("the subnet has no counter before its first failover")
	}
	stop() // the data path of the node fails; its kubelet still works
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.2")
	n.status("s", "n2", egress.ReasonReady)
	n.Measures(1, "centralized_subnet_info", "subnet_name", "s", "gateway_node", "n1,n2", "active_gateway", "n2")
	n.Measures(failovers+1, "kiln_gateway_failovers_total", "subnet_name", "s")
	n.Eventually(func() string { // stopped controllers of other tests left series of a subnet s with other gatewayNodes
		if _, there := n.Metric("centralized_subnet_info", "subnet_name", "s", "gateway_node", "n1,n2", "active_gateway", "n1"); there {
			return "the series of the former gateway is still there"
		}
		return ""
	})
	n.Event(s, eventsv1.Event{Reason: egress.ReasonMoved})

	n.run() // a controller that has not received any Lease yet does not move it back
	n.centralized("later", "10.18.0.0/24", "n2", nil)
	n.status("later", "n2", egress.ReasonReady)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.2", "ip4.src == 10.18.0.0/24 reroute 100.64.0.2")
}
