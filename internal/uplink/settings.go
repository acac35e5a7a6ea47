// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// sysctls is where sysctls are read. They are written in Directory.Sysctls, because /proc/sys is read-only in containers.
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

// writeSettings gives an interface the settings that another one had.
func (d Directory) writeSettings(values map[string]string, link string, step Step) error {
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
		root := d.Sysctls
		if root == "" {
			root = sysctls
		}
		if err := os.WriteFile(settingPath(root, s, link), []byte(want), 0o600); err != nil {
			return fmt.Errorf("set %s of %s: %w", s, link, err)
		}
	}
	return nil
}

// Prepare sets the interface of a bridge up, with the settings of an interface that may move to it.
func (d Directory) Prepare(bridge string, before State) error {
	link, err := Link(bridge)
	if err != nil {
		return err
	}
	if link == nil {
		return fmt.Errorf("interface %s does not exist", bridge)
	}
	if err := d.writeSettings(before.bridgeSettings(before.limited()), bridge, d.Step); err != nil {
		return err
	}
	return setUp(link, d.Step)
}
