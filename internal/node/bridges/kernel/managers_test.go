// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestManagersAreRecognised(t *testing.T) {
	link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "eth1", Index: 7, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}}
	static := Address{Prefix: netip.MustParsePrefix("192.0.2.1/24")}
	leased, advertised, private, six, bare := static, static, static, static, static
	leased.Valid, advertised.Valid, private.Valid, six.Valid = time.Hour, time.Hour, time.Hour, time.Hour
	private.Prefix = netip.MustParsePrefix("2001:db8::1234:5678:9abc:def0/64")
	advertised.Prefix, six.Prefix = netip.MustParsePrefix("2001:db8::ff:fe00:1/64"), netip.MustParsePrefix("2001:db8::1/128")
	bare.Flags = unix.IFA_F_NOPREFIXROUTE
	for _, c := range []struct {
		name, networkd, manager string
		address                 Address
		want                    string
	}{
		{name: "a static address", address: static},
		{name: "a lease", address: leased, want: "a DHCP client"},
		{name: "a lease of DHCPv6", address: six, want: "a DHCP client"},
		{name: "a router advertisement", address: advertised, want: "router advertisements"},
		{name: "a router advertisement, with another identifier than the MAC address", address: private, want: "router advertisements"},
		{name: "an address without the kernel's route", address: bare, want: "a network manager"},
		{name: "systemd-networkd", networkd: "# comment\nADMIN_STATE=configured\n", address: static, want: "systemd-networkd"},
		{name: "systemd-networkd leaves it alone", networkd: "ADMIN_STATE=unmanaged\n", address: static},
		{name: "NetworkManager", manager: "[device]\nmanaged=true\nconnection-uuid=5e0c\n", address: static, want: "NetworkManager"},
		{name: "NetworkManager leaves it alone", manager: "[device]\nmanaged=false\n", address: static},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := Managers{Networkd: t.TempDir(), NetworkManager: t.TempDir()}
			for directory, text := range map[string]string{m.Networkd: c.networkd, m.NetworkManager: c.manager} {
				if text != "" {
					must.Succeed(t, os.WriteFile(filepath.Join(directory, "7"), []byte(text), 0o600))
				}
			}
			got, err := m.Of(link, State{Addresses: []Address{c.address}})
			if err != nil || !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestClientIdentifiers(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	common := [][]byte{nil, {1, 2, 0, 0, 0, 0, 7}}
	for text, want := range map[string][][]byte{
		"":                      common,
		"ADDRESS=192.0.2.50\n":  common,
		"CLIENTID=ff00a1\n":     {{0xff, 0, 0xa1}, nil, {1, 2, 0, 0, 0, 0, 7}},
		"CLIENTID=not a number": common,
	} {
		dir := t.TempDir()
		if text != "" {
			must.Succeed(t, os.WriteFile(filepath.Join(dir, "3"), []byte(text), 0o600))
		}
		got, err := Managers{Leases: dir}.ClientIDs(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 3, HardwareAddr: mac}})
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v, %s", text, err, diff)
		}
	}
}
