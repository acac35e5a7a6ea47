// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

// probePriority of the rule that leads to pods of custom VPCs: after the local table, before all that users have.
const probePriority = 75

// setProbeRules has what the node itself sends look up the table of probe links first, and nothing that it forwards. It is idempotent.
func setProbeRules() error {
	for family, number := range map[ipfamily.Family]int{ipfamily.IPv4: netlink.FAMILY_V4, ipfamily.IPv6: netlink.FAMILY_V6} {
		list, err := netlinksafe.RuleList(number)
		if err != nil {
			return fmt.Errorf("list %s rules: %w", family, err)
		}
		there := false
		for _, r := range list {
			there = there || r.Table == sandbox.ProbeTable && r.Priority == probePriority && r.IifName == "lo"
		}
		if there {
			continue
		}
		r := netlink.NewRule()
		r.IifName, r.Table, r.Priority, r.Family, r.Protocol = "lo", sandbox.ProbeTable, probePriority, number, uint8(sandbox.ProbeProtocol)
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add the %s rule of probes: %w", family, err)
		}
	}
	return nil
}
