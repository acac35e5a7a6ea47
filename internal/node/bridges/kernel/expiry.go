// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// expiryKey identifies a route from a router advertisement on its interface.
type expiryKey struct {
	destination     netip.Prefix
	gateway         netip.Addr
	table, priority int
}

func (r Route) expiryKey() expiryKey {
	return expiryKey{r.Destination, r.Gateway, r.Table, r.Priority}
}

// userHz is the unit of times in netlink messages, per second.
const userHz = 100

// expiry is when a route ends, and the preference of its router.
type expiry struct {
	at         time.Duration
	preference uint8
}

// expiries returns when routes from router advertisements end. Package netlink does not read the attributes.
func expiries(index int) (map[expiryKey]expiry, error) {
	messages, err := Whole(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		dump := nl.NewRtMsg()
		dump.Family = unix.AF_INET6
		request.AddData(dump)
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of router advertisements: %w", err)
	}
	now, ends := SinceBoot(), map[expiryKey]expiry{}
	for _, m := range messages {
		message := nl.DeserializeRtMsg(m)
		if message.Protocol != unix.RTPROT_RA {
			continue
		}
		attributes, err := nl.ParseRouteAttr(m[message.Len():])
		if err != nil {
			return nil, fmt.Errorf("decode a route of a router advertisement: %w", err)
		}
		key, link, left, end := expiryKey{table: int(message.Table)}, 0, int32(0), expiry{}
		for _, a := range attributes {
			switch a.Attr.Type {
			case unix.RTA_DST:
				address, _ := netip.AddrFromSlice(a.Value)
				key.destination = netip.PrefixFrom(address, int(message.Dst_len))
			case unix.RTA_GATEWAY:
				key.gateway, _ = netip.AddrFromSlice(a.Value)
			case unix.RTA_TABLE:
				key.table = int(nl.NativeEndian().Uint32(a.Value))
			case unix.RTA_PRIORITY:
				key.priority = int(nl.NativeEndian().Uint32(a.Value))
			case unix.RTA_OIF:
				link = int(nl.NativeEndian().Uint32(a.Value))
			case unix.RTA_PREF:
				end.preference = a.Value[0]
			case unix.RTA_CACHEINFO: // struct rta_cacheinfo: the third field is rta_expires
				left = int32(nl.NativeEndian().Uint32(a.Value[8:])) //nolint:gosec // signed in the kernel
			}
		}
		if link != index {
			continue
		}
		if left != 0 { // negative for one that has ended, and that the kernel will delete
			end.at = max(1, now+time.Duration(left)*time.Second/userHz)
		}
		ends[key] = end
	}
	return ends, nil
}
