// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// settings are the sysctls of an interface that a bridge takes over, in the order in which they are written. addr_gen_mode is before disable_ipv6, which
// makes the kernel add a link-local address.
var settings = []string{
	"ipv6/conf/IF/addr_gen_mode", "ipv6/conf/IF/accept_ra", "ipv6/conf/IF/accept_ra_defrtr", "ipv6/conf/IF/accept_ra_pinfo",
	metricRA, "ipv6/conf/IF/accept_ra_rt_info_max_plen", "ipv6/conf/IF/accept_ra_mtu", "ipv6/conf/IF/autoconf", "ipv6/conf/IF/forwarding",
	"ipv6/conf/IF/accept_redirects", "ipv6/conf/IF/disable_ipv6",
	"ipv4/conf/IF/rp_filter", "ipv4/conf/IF/forwarding", "ipv4/conf/IF/arp_ignore", "ipv4/conf/IF/arp_announce", "ipv4/conf/IF/accept_local",
	"ipv4/conf/IF/src_valid_mark", "ipv4/conf/IF/accept_redirects", "ipv4/conf/IF/send_redirects", "ipv4/conf/IF/proxy_arp",
}

// addrGenMode is the sysctl that says how the kernel makes IPv6 addresses. With noAddresses it makes none, also no link-local address: then a
// program has added the link-local addresses, and they move. stablePrivacy needs a secret, which cannot be read.
const (
	addrGenMode   = "ipv6/conf/IF/addr_gen_mode"
	noAddresses   = "1"
	stablePrivacy = "2"
)

// sysctls is where sysctls are read. In containers /proc/sys is read-only, so they are written elsewhere.
const sysctls = "/proc/sys/net"

func settingPath(root, setting, link string) string {
	return filepath.Join(root, strings.Replace(setting, "IF", link, 1))
}

// readSetting returns the value of a sysctl; empty if the kernel does not have it.
func readSetting(setting, link string) (string, error) {
	text, err := os.ReadFile(settingPath(sysctls, setting, link))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read a setting of %s: %w", link, err)
	}
	return strings.TrimSpace(string(text)), nil
}

// readSettings returns the settings of an interface.
func readSettings(link string) (map[string]string, error) {
	values := map[string]string{}
	for _, s := range settings {
		value, err := readSetting(s, link)
		if err != nil {
			return nil, err
		}
		if value != "" {
			values[s] = value
		}
	}
	return values, nil
}

// WriteSettings gives an interface the settings that another one had. root is a writable /proc/sys/net; empty for that directory itself.
func WriteSettings(root string, values map[string]string, link string, step Step) error {
	if root == "" {
		root = sysctls
	}
	for _, s := range settings {
		want := values[s]
		have, err := readSetting(s, link)
		if err != nil {
			return err
		}
		if want == "" || have == want || s == addrGenMode && want == stablePrivacy {
			continue
		}
		if err := step.Before("set " + s + " of " + link); err != nil {
			return err
		}
		if err := os.WriteFile(settingPath(root, s, link), []byte(want), 0o600); err != nil {
			return fmt.Errorf("set %s of %s: %w", s, link, err)
		}
	}
	return nil
}

// Prepare sets the interface of a bridge up, with the settings of an interface that may move to it. root is the same as for WriteSettings.
func Prepare(root, bridge string, before State, step Step) error {
	link, err := Link(bridge)
	if err != nil {
		return err
	}
	if link == nil {
		return fmt.Errorf("interface %s does not exist", bridge)
	}
	if err := WriteSettings(root, before.BridgeSettings(before.Advertised()), bridge, step); err != nil {
		return err
	}
	return setUp(link, step)
}

// Settings of an interface for router advertisements: whether the kernel follows them, and the metric of default routes (since Linux 5.12).
const (
	acceptRA = "ipv6/conf/IF/accept_ra"
	metricRA = "ipv6/conf/IF/ra_defrtr_metric"
)

// kernelMetric returns the metric of a route that the kernel makes from router advertisements (IP6_RT_PRIO_USER, if no setting says otherwise).
func (s State) kernelMetric(r Route) string {
	if metric := s.Settings[metricRA]; metric != "" && !r.Destination.IsValid() {
		return metric
	}
	return "1024"
}

// BridgeSettings returns the settings of a bridge. The kernel does not follow router advertisements there if Kiln does.
func (s State) BridgeSettings(follows bool) map[string]string {
	if !follows {
		return s.Settings
	}
	settings := maps.Clone(s.Settings)
	if settings == nil {
		settings = map[string]string{}
	}
	settings[acceptRA] = "0"
	return settings
}

// ofUplink returns a route as the interface gets it back. If the kernel follows router advertisements there, it deletes a route like its own with the next
// one, and adds its own with the one after that: it takes the end of a route that it has not made itself for the present (fib6_add_rt2node). So the
// metric differs. Routes by other routers have the next metrics (see distinct).
func (s State) ofUplink(r Route) Route {
	kernel, err := strconv.Atoi(s.kernelMetric(r))
	if r.Advertised() && err == nil && r.Priority >= kernel && s.Settings[acceptRA] != "" && s.Settings[acceptRA] != "0" {
		r.Priority++
	}
	return r
}
