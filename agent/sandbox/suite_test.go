// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

func TestMain(m *testing.M) {
	var code int
	var err error
	if nodetest.Inside() {
		if err = nodetest.Mount(); err == nil {
			code = m.Run()
		}
	} else {
		code, err = nodetest.Enter()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// describe returns the description of an interface, and its network namespace, which exists until the test ends.
func describe(t *testing.T) (sandbox.Interface, ns.NetNS) {
	t.Helper()
	namespace, err := testutils.NewNS()
	must.Succeed(t, err)
	t.Cleanup(func() { _ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace)) })
	return sandbox.Interface{
		NetNS: namespace.Path(), Name: "eth0", HostName: sandbox.HostName(agenttest.NewID(), "eth0", 0),
		MTU: agenttest.PodMTU, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
	}, namespace
}

// newInterface creates an interface in a new network namespace. Both exist until the test ends.
func newInterface(t *testing.T) (sandbox.Interface, ns.NetNS) {
	t.Helper()
	i, namespace := describe(t)
	must.Succeed(t, i.Create())
	t.Cleanup(func() { must.Succeed(t, sandbox.Remove(i.HostName)) })
	return i, namespace
}
