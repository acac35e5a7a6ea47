// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Route is a route of an interface that moves to a bridge. It is stored as JSON in databases.
type Route struct {
	// Destination is invalid for a default route.
	Destination netip.Prefix `json:"destination,omitzero"`
	// Gateway of an IPv4 route can be an IPv6 address (RFC 5549).
	Gateway netip.Addr `json:"gateway,omitzero"`
	Source  netip.Addr `json:"source,omitzero"`
	// Family is 4 or 6; needed for a default route without a gateway.
	Family   int   `json:"family"`
	Priority int   `json:"priority,omitempty"`
	Table    int   `json:"table,omitempty"`
	Scope    uint8 `json:"scope,omitempty"`
	Protocol int   `json:"protocol,omitempty"`
	Flags    int   `json:"flags,omitempty"`
	MTU      int   `json:"mtu,omitempty"`
	AdvMSS   int   `json:"advmss,omitempty"`
	Tos      int   `json:"tos,omitempty"`
	// Hops are the next hops of a multipath route. Hops without an interface move.
	Hops hops `json:"hops,omitempty"`
	// Expires ends a route from a router advertisement, since the boot of the node; 0 for never. Preference is its router's (RFC 4191, section 2.1).
	Expires    time.Duration `json:"expires,omitempty"`
	Preference uint8         `json:"preference,omitempty"`
}

// key identifies the route: the same route of a later router advertisement has another end and preference, and distinct can give it another metric.
func (r Route) key() Route {
	if r.Expires, r.Preference = 0, 0; r.Protocol == unix.RTPROT_RA {
		r.Priority = 0
	}
	return r
}

// hop is a next hop of a multipath route.
type hop struct {
	Gateway netip.Addr `json:"gateway,omitzero"`
	// Index is another interface's; 0 for the one that moves.
	Index  int `json:"index,omitempty"`
	Weight int `json:"weight,omitempty"`
	Flags  int `json:"flags,omitempty"`
}

// hops is a list of hops as JSON, so that routes are comparable.
type hops string

// MarshalJSON returns the list.
func (h hops) MarshalJSON() ([]byte, error) { return []byte(h), nil }

// UnmarshalJSON stores the list in the form that parsed hops have.
func (h *hops) UnmarshalJSON(text []byte) error {
	var list []hop
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("decode the hops of a route: %w", err)
	}
	*h = formatHops(list)
	return nil
}

func formatHops(list []hop) hops {
	text, err := json.Marshal(list)
	if err != nil {
		panic(fmt.Sprintf("encode hops: %v", err)) // all of its fields can be encoded
	}
	return hops(text)
}

func (h hops) parse() (list []hop) {
	if h != "" {
		_ = json.Unmarshal([]byte(h), &list) // formatHops made it
	}
	return list
}

// routes returns the wanted unicast routes through an interface, of all tables except the table of local addresses.
func routes(link netlink.Link, wanted func(netlink.Route) bool) ([]Route, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	list, err := Whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", link.Attrs().Name, err)
	}
	ends, err := expiries(link.Attrs().Index)
	if err != nil {
		return nil, err
	}
	var made []Route
	for _, r := range list {
		if r.Type != unix.RTN_UNICAST || r.Table == unix.RT_TABLE_LOCAL || !wanted(r) || r.Flags&unix.RTM_F_CLONED != 0 || !through(r, link.Attrs().Index) {
			continue
		}
		route := routeOf(r, link.Attrs().Index)
		if route.Protocol == unix.RTPROT_RA {
			end := ends[route.expiryKey()]
			route.Expires, route.Preference = end.at, end.preference
		}
		made = append(made, route)
	}
	return made, nil
}

// through reports whether a route, or a hop of it, leaves by an interface.
func through(r netlink.Route, index int) bool {
	for _, h := range r.MultiPath {
		if h.LinkIndex == index {
			return true
		}
	}
	return r.LinkIndex == index && len(r.MultiPath) == 0
}

// Configured reports whether an administrator or a program made the route. The kernel adds the other ones itself: for addresses, and
// because of router advertisements, which a bridge receives, too.
func Configured(r netlink.Route) bool {
	return r.Type == unix.RTN_UNICAST && r.Table != unix.RT_TABLE_LOCAL && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != unix.RTPROT_RA
}

// Routes returns the configured routes through an interface, without multipath routes.
func Routes(link netlink.Link) ([]Route, error) {
	return routes(link, func(r netlink.Route) bool { return Configured(r) && len(r.MultiPath) == 0 })
}

func routeOf(r netlink.Route, index int) Route {
	family := 4
	if r.Family == netlink.FAMILY_V6 {
		family = 6
	}
	made := Route{
		Family: family, Priority: r.Priority, Table: r.Table, Scope: uint8(r.Scope), Protocol: int(r.Protocol),
		Flags: r.Flags & int(netlink.FLAG_ONLINK), MTU: r.MTU, AdvMSS: r.AdvMSS, Tos: r.Tos,
		Destination: ipfamily.PrefixOf(r.Dst), Gateway: gateway(AddrOf(r.Gw), r.Via), Source: AddrOf(r.Src),
	}
	if made.Destination.IsValid() && made.Destination.Bits() == 0 {
		made.Destination = netip.Prefix{}
	}
	var list []hop
	for _, h := range r.MultiPath {
		one := hop{Gateway: gateway(AddrOf(h.Gw), h.Via), Weight: h.Hops, Flags: h.Flags & int(netlink.FLAG_ONLINK)}
		if h.LinkIndex != index {
			one.Index = h.LinkIndex
		}
		list = append(list, one)
	}
	if len(list) > 0 {
		made.Hops = formatHops(list)
	}
	return made
}

func gateway(gw netip.Addr, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok && !gw.IsValid() {
		return AddrOf(v.Addr)
	}
	return gw
}

// on is the inverse of routeOf: it returns the route through the given link.
func (r Route) on(link netlink.Link) *netlink.Route {
	family, everything := netlink.FAMILY_V4, netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if r.Family == 6 {
		family, everything = netlink.FAMILY_V6, netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	destination := r.Destination
	if !destination.IsValid() {
		destination = everything
	}
	made := &netlink.Route{
		Family: family, Priority: r.Priority, Table: r.Table,
		Scope: netlink.Scope(r.Scope), Protocol: netlink.RouteProtocol(r.Protocol), Flags: r.Flags, MTU: r.MTU, AdvMSS: r.AdvMSS, Tos: r.Tos,
		Dst: netipx.PrefixIPNet(destination),
	}
	if r.Source.IsValid() {
		made.Src = r.Source.AsSlice()
	}
	list := r.Hops.parse()
	if len(list) == 0 {
		made.LinkIndex = link.Attrs().Index
		made.Gw, made.Via = r.next(r.Gateway)
	}
	for _, h := range list {
		one := &netlink.NexthopInfo{LinkIndex: h.Index, Hops: h.Weight, Flags: h.Flags}
		if h.Index == 0 {
			one.LinkIndex = link.Attrs().Index
		}
		one.Gw, one.Via = r.next(h.Gateway)
		made.MultiPath = append(made.MultiPath, one)
	}
	return made
}

// next returns a gateway in the form that its family needs.
func (r Route) next(gateway netip.Addr) (gw []byte, via netlink.Destination) {
	switch {
	case !gateway.IsValid():
		return nil, nil
	case r.Family == 4 && gateway.Is6():
		return nil, &netlink.Via{AddrFamily: netlink.FAMILY_V6, Addr: gateway.AsSlice()}
	}
	return gateway.AsSlice(), nil
}

// ownHops returns the route without hops of other interfaces.
func (r Route) ownHops() Route {
	list := r.Hops.parse()
	own := slices.DeleteFunc(slices.Clone(list), func(h hop) bool { return h.Index != 0 })
	switch {
	case len(own) == 0 || len(own) == len(list):
	case len(own) == 1: // the kernel lists it like this
		r.Gateway, r.Flags, r.Hops = own[0].Gateway, own[0].Flags, ""
	default:
		r.Hops = formatHops(own)
	}
	return r
}

// Gateways returns the next hops of the route that are neighbours on the interface.
func (r Route) Gateways() (list []netip.Addr) {
	if r.Gateway.IsValid() {
		list = append(list, r.Gateway)
	}
	for _, h := range r.Hops.parse() {
		if h.Index == 0 && h.Gateway.IsValid() {
			list = append(list, h.Gateway)
		}
	}
	return list
}

// isKernel reports whether the route looks like one that the kernel adds with an address.
func (r Route) isKernel() bool { return r.Protocol == unix.RTPROT_KERNEL }

// String formats the route like ip-route(8).
func (r Route) String() string {
	words := []string{"default"}
	if r.Destination.IsValid() {
		words[0] = r.Destination.String()
	}
	for _, g := range r.Gateways() {
		words = append(words, "via", g.String())
	}
	return strings.Join(words, " ")
}

// replace makes the kernel have the route through an interface, in the place of the same one through another interface, from which it moves; nil for none. Routes of
// further interfaces stay.
func (r Route) replace(link, from netlink.Link) error {
	flags := unix.NLM_F_REPLACE
	if r.Family == 6 { // the kernel would replace any route of the place
		shared, err := r.shared(link, from)
		if err != nil {
			return err
		}
		if shared {
			flags = unix.NLM_F_APPEND
		}
	}
	err := r.add(link, flags)
	if flags == unix.NLM_F_REPLACE || !errors.Is(err, unix.EEXIST) {
		return err
	}
	if r.Expires != 0 {
		return nil // the kernel has set its end
	}
	if err := netlink.RouteDel(r.on(link)); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return r.add(link, flags)
}

// add sends the route with flags of netlink(7). Package netlink does not write the end of a route.
func (r Route) add(link netlink.Link, flags int) error {
	switch {
	case r.Expires != 0:
	case flags == unix.NLM_F_APPEND:
		return netlink.RouteAppend(r.on(link))
	default:
		return netlink.RouteReplace(r.on(link))
	}
	left := rest(r.Expires, SinceBoot())
	if left == 0 {
		return nil
	}
	request := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|flags|unix.NLM_F_ACK)
	message := nl.NewRtMsg()
	message.Family, message.Protocol, message.Type = unix.AF_INET6, uint8(r.Protocol), unix.RTN_UNICAST //nolint:gosec // a byte in the kernel
	message.Table, message.Scope, message.Flags = unix.RT_TABLE_UNSPEC, r.Scope, uint32(r.Flags)        //nolint:gosec // 32 bits in the kernel
	if r.Destination.IsValid() {
		message.Dst_len = uint8(r.Destination.Bits()) //nolint:gosec // at most 128
	}
	request.AddData(message)
	if r.Destination.IsValid() {
		request.AddData(nl.NewRtAttr(unix.RTA_DST, r.Destination.Addr().AsSlice()))
	}
	for attribute, address := range map[int]netip.Addr{unix.RTA_GATEWAY: r.Gateway, unix.RTA_PREFSRC: r.Source} {
		if address.IsValid() {
			request.AddData(nl.NewRtAttr(attribute, address.AsSlice()))
		}
	}
	number := func(value int) []byte { return nl.Uint32Attr(uint32(value)) } //nolint:gosec // 32 bits in the kernel
	for attribute, value := range map[int]int{unix.RTA_OIF: link.Attrs().Index, unix.RTA_TABLE: r.Table, unix.RTA_PRIORITY: r.Priority, unix.RTA_EXPIRES: left} {
		request.AddData(nl.NewRtAttr(attribute, number(value)))
	}
	request.AddData(nl.NewRtAttr(unix.RTA_PREF, []byte{r.Preference}))
	metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
	for metric, value := range map[int]int{unix.RTAX_MTU: r.MTU, unix.RTAX_ADVMSS: r.AdvMSS} {
		if value != 0 {
			metrics.AddRtAttr(metric, number(value))
		}
	}
	request.AddData(metrics)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
