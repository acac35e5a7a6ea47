// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/agent/sandbox"
)

// probePriority of the rule that leads to pods of custom VPCs: after the local table, before all that users have.
const probePriority = 75

// setProbeRules has what the node itself sends look up the table of probe links first, and nothing that it forwards. It is idempotent.
func setProbeRules() error {
	list, families, err := allRules()
	if err != nil {
		return err
	}
	for _, family := range families {
		there := slices.ContainsFunc(list, func(r netlink.Rule) bool {
			return r.Family == family && r.Table == sandbox.ProbeTable && r.Priority == probePriority && r.IifName == "lo"
		})
		if there {
			continue
		}
		r := netlink.NewRule()
		r.IifName, r.Table, r.Priority, r.Family, r.Protocol = "lo", sandbox.ProbeTable, probePriority, family, uint8(sandbox.ProbeProtocol)
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add the rule of probes: %w", err)
		}
	}
	return nil
}

// allRules are the rules of every family that the kernel has. One that was started with ipv6.disable=1 refuses to list those of IPv6.
func allRules() (list []netlink.Rule, families []int, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		of, err := netlinksafe.RuleList(family)
		switch {
		case errors.Is(err, unix.EAFNOSUPPORT):
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("list rules: %w", err)
		}
		for i := range of {
			of[i].Family = family
		}
		list, families = append(list, of...), append(families, family)
	}
	return list, families, nil
}
