// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/hack/lab/progress"
)

// elsewhere lists tests that no network could pass in the lab, as regular expressions, each with the reason.
var elsewhere = []struct{ tests, why string }{
	{`\[Feature:LoadBalancer\]`, "there is no cloud that makes load balancers"},
	{`\[Feature:Networking-(DNS|IPv4|IPv6)\]|\[Provider:`, "there is no Internet and no provider"},
	{`\[Feature:(PerformanceDNS|Networking-Performance)\]`, "they measure"},
	{`kube-proxy|KubeProxy|\[Feature:LocalhostNodePorts\]`, "they are about kube-proxy itself, or its iptables mode"},
	{`\[Disruptive\]`, "they restart programs on nodes by SSH"},
}

// sctp matches the tests that need SCTP in the kernel.
const sctp = `\[Feature:SCTP|SCTP HostPort|: sctp`

// skipElsewhere returns one regular expression that matches all tests to skip, and reports each skipped group with its reason.
func skipElsewhere(report *progress.Reporter) string {
	left := elsewhere
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); err == nil {
		_ = unix.Close(fd)
	} else {
		left = append(left[:len(left):len(left)], struct{ tests, why string }{sctp, "this kernel has no SCTP"})
	}
	var skip []string
	for _, l := range left {
		report.Say("      left out: %s: %s", l.tests, l.why)
		skip = append(skip, l.tests)
	}
	return strings.Join(skip, "|")
}
