// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Rules returns the routing rules of every family that the kernel supports. A kernel started with ipv6.disable=1 does not list IPv6
// rules.
func Rules() ([]netlink.Rule, error) {
	var list []netlink.Rule
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		of, err := netlinksafe.RuleList(family)
		switch {
		case errors.Is(err, unix.EAFNOSUPPORT):
			continue
		case err != nil:
			return nil, fmt.Errorf("list rules: %w", err)
		}
		for i := range of {
			of[i].Family = family
		}
		list = append(list, of...)
	}
	return list, nil
}
