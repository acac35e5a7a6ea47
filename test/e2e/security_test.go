// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
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
				command := fmt.Sprintf("timeout 5 bash -c '</dev/tcp/%s/%d' 2>&1 && echo open || true", port.address, port.number)
				out, err := suite.Node.Exec(ctx, worker, "sh", "-c", command)
				Expect(err).NotTo(HaveOccurred())
				want := "Connection refused"
				if port.open {
					want = "open"
				}
				Expect(out).To(ContainSubstring(want), "port %d from %s", port.number, worker)
			}
		}
	}, SpecTimeout(2*time.Minute))
})
