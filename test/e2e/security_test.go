// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kiln-net/kiln/test/oracle"
)

var _ = Describe("the databases' ports", func() {
	It("answer nodes at port 6642, and pods nowhere", Label(smoke), func(ctx SpecContext) {
		nb := databaseStatus(ctx, Default, trialDatabases[0]).Members[0]
		sb := databaseStatus(ctx, Default, trialDatabases[1]).Members[0]
		pod := serve(ctx, "e2e-ports", "asks", 0)
		DeferCleanup(deleteNamespace, "e2e-ports")
		for _, port := range []struct {
			number        uint16
			node, address string
			open          bool
		}{
			{6641, nb.Node, nb.Address, false},
			{6642, sb.Node, sb.Address, true},
			{6643, nb.Node, nb.Address, false},
			{6644, sb.Node, sb.Address, false},
			{6649, sb.Node, sb.Address, false},
		} {
			at := netip.AddrPortFrom(netip.MustParseAddr(port.address), port.number)
			for name, from := range map[string]origin{
				suite.Workers[0]: fromNode(suite.Workers[0]), suite.Workers[1]: fromNode(suite.Workers[1]),
				"a pod": fromPod(pod), "outside": fromOutside,
			} {
				opens(ctx, fromNode(port.node), at)() // control: the port is open on its own node
				if port.open && name != "a pod" {
					Expect(knock(ctx, from, at)).To(HaveEach(oracle.Connected), "%s from %s", at, name)
				} else {
					Expect(knock(ctx, from, at)).NotTo(ContainElement(oracle.Connected), "%s from %s", at, name)
				}
			}
		}
	}, SpecTimeout(3*time.Minute))

	It("close again when another program has changed their rules", func(ctx SpecContext) {
		member := databaseStatus(ctx, Default, trialDatabases[1]).Members[0]
		raft := netip.AddrPortFrom(netip.MustParseAddr(member.Address), 6644)
		opens(ctx, fromNode(member.Node), raft)() // control: the port is open on its own node
		for _, change := range []string{"flush table", "flush chain", "delete table"} {
			object := " inet kiln-databases"
			if change == "flush chain" {
				object += " input"
			}
			exec(ctx, member.Node, "nft", change+object)
			Eventually(knock).WithContext(ctx).WithArguments(fromNode(suite.Workers[0]), raft).ShouldNot(ContainElement(oracle.Connected), change)
		}
	}, SpecTimeout(3*time.Minute))
})
