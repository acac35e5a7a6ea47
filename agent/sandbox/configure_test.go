// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// A restart of ovs-vswitchd, which answers for OVN, must not end established flows.
func TestPodsKeepKnownNeighboursThatDoNotAnswer(t *testing.T) {
	i, namespace := newInterface(t)
	must.Succeed(t, i.Configure())
	must.Succeed(t, namespace.Do(func(ns.NetNS) error { return agenttest.KeepsNeighbours("eth0") }))
}
