// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"strings"
	"testing"
)

func TestPodMTU(t *testing.T) {
	for name, c := range map[string]struct {
		tunnel  int
		kind    string
		address string
		want    int
		err     string
	}{
		"geneve over IPv4":   {1500, "geneve", "192.0.2.1", 1400, ""},
		"geneve over IPv6":   {1500, "geneve", "2001:db8::1", 1380, ""},
		"vxlan over IPv4":    {1500, "vxlan", "192.0.2.1", 1450, ""},
		"vxlan over IPv6":    {1500, "vxlan", "2001:db8::1", 1430, ""},
		"both over IPv4":     {1500, "vxlan,geneve", "192.0.2.1", 1400, ""},
		"the other order":    {1500, "geneve,vxlan", "192.0.2.1", 1400, ""},
		"jumbo frames":       {9000, "geneve", "192.0.2.1", 8900, ""},
		"too small a tunnel": {600, "geneve", "192.0.2.1", 0, "pods would have 500, less than 576"},
		"an unknown type":    {1500, "stt", "192.0.2.1", 0, `unknown tunnel type "stt"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := PodMTU(c.tunnel, strings.Split(c.kind, ","), netip.MustParseAddr(c.address))
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}
