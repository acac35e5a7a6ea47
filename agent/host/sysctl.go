// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// keepNeighbours makes the join interface keep known neighbours while ovs-vswitchd restarts, where the kernel can.
func keepNeighbours() error {
	for _, key := range sandbox.NeighbourProbeKeys(JoinInterface) {
		if value(key) == "" { // the kernel has no such parameter, or no IPv6
			continue
		}
		if err := sysctl(key, sandbox.NeighbourProbes); err != nil {
			return err
		}
	}
	return nil
}

// setForwarding enables forwarding between the overlay and the node's other interfaces, for the families of its join addresses.
func setForwarding(addresses []netip.Prefix) error {
	has := func(f ipfamily.Family) bool {
		return slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return ipfamily.Of(p.Addr()) == f })
	}
	if has(ipfamily.IPv4) {
		// With rp_filter 2 a source must be reachable, but not through this interface. The kernel uses the larger value of the
		// interface's and of "all", so that 2 also overrides a strict "all" (ip-sysctl).
		err := errors.Join(
			sysctl("net/ipv4/ip_forward", "1"),
			sysctl("net/ipv4/conf/"+JoinInterface+"/rp_filter", "2"),
		)
		if err != nil {
			return err
		}
	}
	if has(ipfamily.IPv6) {
		return errors.Join(
			keepRouterAdvertisements(),
			sysctl("net/ipv6/conf/all/forwarding", "1"),
			sysctl("net/ipv6/conf/"+JoinInterface+"/accept_ra", "0"),
		)
	}
	return nil
}

// looseReversePath makes an interface accept packets to its addresses whose source is routed through another interface: with rp_filter 2
// a source only has to be reachable (ip-sysctl).
func looseReversePath(name string) error {
	key := "net/ipv4/conf/" + name + "/rp_filter"
	if value(key) == "2" || value(key) != "1" && value("net/ipv4/conf/all/rp_filter") != "1" {
		return nil
	}
	return sysctl(key, "2")
}

// keepRouterAdvertisements preserves default routes learned from router advertisements: on a node that forwards, the kernel ignores
// advertisements unless accept_ra is 2 (ip-sysctl). It changes every interface, including the interfaces of pods, but only if the node does not
// forward yet.
func keepRouterAdvertisements() error {
	const directory = "/proc/sys/net/ipv6/conf"
	if value("net/ipv6/conf/all/forwarding") == "1" {
		return nil
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return fmt.Errorf("list interfaces with IPv6: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if name == "all" || name == "default" || name == "lo" {
			continue
		}
		key := filepath.Join("net/ipv6/conf", name)
		if value(key+"/forwarding") == "0" && value(key+"/accept_ra") == "1" {
			if err := sysctl(key+"/accept_ra", "2"); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// value returns a kernel parameter; "" if it does not exist, as after the deletion of its interface.
func value(key string) string {
	content, err := os.ReadFile("/proc/sys/" + key)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// sysctl sets a kernel parameter unless it has the value already, because writing a parameter may reset others.
func sysctl(key, want string) error {
	if value(key) == want {
		return nil
	}
	if err := os.WriteFile(filepath.Join(sandbox.Sysctls, key), []byte(want), 0o644); err != nil { //nolint:gosec // a kernel parameter, which exists
		return fmt.Errorf("set kernel parameter %s to %s: %w", strings.ReplaceAll(key, "/", "."), want, err)
	}
	return nil
}
