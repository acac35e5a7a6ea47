// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/kiln-net/kiln/hack/lab/progress"
)

const printed = `------------------------------
• [0.230 seconds]
[sig-network] DNS should provide DNS for services [Conformance] [sig-network, Conformance]
k8s.io/kubernetes/test/e2e/network/dns.go:48

  Timeline >>
  • no outcome
  << Timeline
------------------------------
SSS• [FAILED] [3.101 seconds]
[sig-network] Proxy version v1 should proxy through a service and a pod [Conformance] [It] [sig-network, Conformance]
`

func TestEveryEndedTestIsReportedHoweverItsLinesArrive(t *testing.T) {
	const want = "  ok  [sig-network] DNS should provide DNS for services [Conformance]\n" +
		"FAILED  [sig-network] Proxy version v1 should proxy through a service and a pod [Conformance] [It]\n"
	for _, size := range []int{1, 7, len(printed)} {
		var out bytes.Buffer
		lines := &progressWriter{report: progress.New(&out)}
		for rest := []byte(printed); len(rest) > 0; {
			n, err := lines.Write(rest[:min(size, len(rest))])
			if err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if out.String() != want {
			t.Errorf("in pieces of %d: got %q, want %q", size, out.String(), want)
		}
	}
}
