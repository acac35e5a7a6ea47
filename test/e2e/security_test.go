// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("the databases' ports", func() {
	It("answer a worker where nodes have business, and nowhere else", func(ctx SpecContext) {
		var nb = databaseStatus(ctx, Default, trialDatabases[0])
		var sb = databaseStatus(ctx, Default, trialDatabases[1])
		for _, worker := range suite.Workers {
			for _, port := range []struct {
				number  int
				address string
				open    bool
			}{
				{6641, nb.Members[0].Address, false},
				{6642, sb.Members[0].Address, true},
				{6643, nb.Members[0].Address, false},
				{6644, sb.Members[0].Address, false},
				{6645, sb.Members[0].Address, false},
			} {
				if netip.MustParseAddr(port.address).Is6() {
					port.address = "[" + port.address + "]"
				}
				command := fmt.Sprintf("curl -s --connect-timeout 5 telnet://%s:%d </dev/null && echo open || echo $?", port.address, port.number)
				out, err := suite.Node.Exec(ctx, worker, "sh", "-c", command)
				Expect(err).NotTo(HaveOccurred())
				want := "7" // curl(1): could not connect
				if port.open {
					want = "open"
				}
				Expect(strings.TrimSpace(out)).To(Equal(want), "port %d from %s", port.number, worker)
			}
		}
	}, SpecTimeout(2*time.Minute))
})
