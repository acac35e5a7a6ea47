// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/testutils"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestCreateReportsAnExistingDevice(t *testing.T) {
	i, _ := newInterface(t)
	for what, change := range map[string]func(*sandbox.Interface){
		"a device in the container": func(i *sandbox.Interface) { i.HostName = sandbox.HostName(agenttest.NewID(), "eth0", 0) },
		"a device on the host":      func(i *sandbox.Interface) { i.Name = "eth1" },
	} {
		other := i
		change(&other)
		if err := other.Create(); !errors.Is(err, sandbox.ErrExists) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if intact, err := i.Intact(); !intact || err != nil {
		t.Errorf("the earlier interface is missing: %v", err)
	}
}

// BenchmarkSandbox measures the kernel's part: creating, configuring and deleting a container's interface.
func BenchmarkSandbox(b *testing.B) {
	interfaces := make([]sandbox.Interface, b.N)
	for i := range interfaces {
		namespace, err := testutils.NewNS()
		must.Succeed(b, err)
		b.Cleanup(func() { _ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace)) })
		interfaces[i] = sandbox.Interface{
			NetNS: namespace.Path(), Name: "eth0", HostName: sandbox.HostName(agenttest.NewID(), "eth0", 0), ComputeChecksums: true,
			MAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}, MTU: agenttest.PodMTU,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.16.0.9/16"), netip.MustParsePrefix("fd00:10:16::9/112")},
			Routes:    []sandbox.Route{{To: netip.MustParsePrefix("0.0.0.0/0"), Via: agenttest.PodGWs[0]}, {To: netip.MustParsePrefix("::/0"), Via: agenttest.PodGWs[1]}},
		}
	}
	b.ResetTimer()
	for _, step := range []struct {
		name string
		do   func(sandbox.Interface) error
	}{
		{"create", sandbox.Interface.Create},
		{"configure", sandbox.Interface.Configure},
		{"remove", func(i sandbox.Interface) error { return sandbox.Remove(i.HostName) }},
	} {
		took := make([]time.Duration, b.N)
		for i := range interfaces {
			began := time.Now()
			must.Succeed(b, step.do(interfaces[i]))
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[(len(took)-1)/2].Microseconds())/1000, step.name+"-p50-ms")
	}
	b.ReportMetric(0, "ns/op")
}
