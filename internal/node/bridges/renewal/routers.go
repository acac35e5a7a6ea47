// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package renewal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv6"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
)

// advertisement is a router advertisement (RFC 4861), and the link-local address of its router.
type advertisement struct {
	router  netip.Addr
	message *ndp.RouterAdvertisement
}

// solicitTime is for routers to answer: they send at most one advertisement to all nodes in 3 s (MIN_DELAY_BETWEEN_RAS). solicitInterval is the pause between
// two solicitations.
const (
	solicitTime     = 3500 * time.Millisecond
	solicitInterval = time.Second
)

// maxSeen bounds the advertisements that are compared, the last ones: any host of the network can send them.
const maxSeen = 64

// solicit asks the routers of an interface for advertisements, until enough has all that is needed.
func solicit(ctx context.Context, link netlink.Link, enough func([]advertisement) bool) ([]advertisement, error) {
	device, err := net.InterfaceByIndex(link.Attrs().Index)
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", link.Attrs().Name, err)
	}
	socket, _, err := ndp.Listen(device, ndp.LinkLocal)
	if err != nil {
		return nil, fmt.Errorf("open a socket for router advertisements on %s: %w", device.Name, err)
	}
	defer socket.Close()
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeRouterAdvertisement)
	if err := errors.Join(socket.SetICMPFilter(&filter), socket.SetControlMessage(ipv6.FlagHopLimit, true), socket.JoinGroup(netip.IPv6LinkLocalAllNodes())); err != nil {
		return nil, fmt.Errorf("receive router advertisements on %s: %w", device.Name, err)
	}
	request := &ndp.RouterSolicitation{Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: device.HardwareAddr}}}
	var seen []advertisement
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, solicitTime)
	defer cancel()
	for ctx.Err() == nil && !enough(seen) {
		if err := socket.WriteTo(request, nil, netip.IPv6LinkLocalAllRouters()); err != nil {
			return nil, fmt.Errorf("solicit routers on %s: %w", device.Name, err)
		}
		until, _ := ctx.Deadline()
		if next := time.Now().Add(solicitInterval); next.Before(until) {
			until = next
		}
		if err := socket.SetReadDeadline(until); err != nil {
			return nil, fmt.Errorf("solicit routers on %s: %w", device.Name, err)
		}
		for !enough(seen) {
			message, control, from, err := socket.ReadFrom() // skips messages that are not valid
			if err != nil {
				break
			}
			if ra, ok := message.(*ndp.RouterAdvertisement); ok && control != nil && control.HopLimit == ndp.HopLimit && from.IsLinkLocalUnicast() {
				seen = append(seen[max(0, len(seen)+1-maxSeen):], advertisement{from.WithZone(""), ra})
			}
		}
	}
	return seen, outer.Err()
}

// nameOf names an advertised address for users. Those that hosts make from router advertisements have 64 bits.
func nameOf(a kernel.Address) string {
	if a.Prefix.Bits() != 64 {
		return "the address " + a.Prefix.String() + " of a DHCP server"
	}
	return "the address " + a.Prefix.String()
}

// usable reports whether hosts do not ignore a prefix (RFC 4862, section 5.5.3, c).
func usable(p *ndp.PrefixInformation) bool { return p.PreferredLifetime <= p.ValidLifetime }

// lifetimes returns for how long the routers advertise the prefix of an address; 0 if they do not.
func lifetimes(a kernel.Address, seen []advertisement) (valid, preferred time.Duration) {
	for _, s := range seen {
		for _, o := range s.message.Options {
			p, ok := o.(*ndp.PrefixInformation)
			if ok && usable(p) && p.AutonomousAddressConfiguration && netip.PrefixFrom(p.Prefix, int(p.PrefixLength)) == a.Prefix.Masked() && p.ValidLifetime > valid {
				valid, preferred = p.ValidLifetime, p.PreferredLifetime
			}
		}
	}
	return valid, preferred
}

// lifetime returns for how long a router advertises the route; 0 if none does. The end of a multipath route cannot be set.
func lifetime(r kernel.Route, seen []advertisement) (left time.Duration) {
	if r.Hops != "" {
		return 0
	}
	for _, s := range seen {
		if s.router == r.Gateway && !r.Destination.IsValid() {
			left = max(left, s.message.RouterLifetime)
		}
		for _, o := range s.message.Options {
			switch o := o.(type) {
			case *ndp.RouteInformation: // RFC 4191
				if s.router == r.Gateway && r.Destination.IsValid() && netip.PrefixFrom(o.Prefix, int(o.PrefixLength)) == r.Destination {
					left = max(left, o.RouteLifetime)
				}
			case *ndp.PrefixInformation:
				if o.OnLink && !r.Gateway.IsValid() && netip.PrefixFrom(o.Prefix, int(o.PrefixLength)) == r.Destination {
					left = max(left, o.ValidLifetime)
				}
			}
		}
	}
	return left
}

// unanswered is an entry that no router advertises. It is the last one if no other one of its kind is advertised either.
type unanswered struct {
	kind kind
	name string
	last bool
}

// advertised returns the shortest time for which routers advertise entries of a state that can end, and the entries that they do not advertise.
func advertised(s kernel.State, seen []advertisement) (shortest time.Duration, missing []unanswered) {
	answered := map[kind]bool{}
	count := func(k kind, name string, lifetimes ...time.Duration) {
		if lifetimes[0] == 0 {
			missing = append(missing, unanswered{kind: k, name: name})
			return
		}
		answered[k] = true
		for _, d := range lifetimes {
			if d > 0 && (shortest == 0 || d < shortest) {
				shortest = d
			}
		}
	}
	for _, a := range s.Addresses {
		if a.Advertised() {
			valid, preferred := lifetimes(a, seen)
			count(kindOf(a), nameOf(a), valid, preferred)
		}
	}
	for _, r := range s.Routes {
		if r.Advertised() {
			count(kindOfRoute(r), "the route "+r.String(), lifetime(r, seen))
		}
	}
	for i := range missing {
		missing[i].last = !answered[missing[i].kind]
	}
	return shortest, missing
}

// askRouters solicits advertisements of all entries of a state that can end. Without an answer for all addresses, or for one entry of each kind, it returns an error.
func askRouters(ctx context.Context, link netlink.Link, s kernel.State, allAddresses bool) (Renewal, error) {
	seen, err := solicit(ctx, link, func(seen []advertisement) bool { _, missing := advertised(s, seen); return len(missing) == 0 })
	if err != nil {
		return Renewal{}, err
	}
	shortest, missing := advertised(s, seen)
	renewed := Renewal{Duration: min(shortest, longest), seen: seen, At: kernel.SinceBoot()}
	for _, m := range missing {
		if m.last && m.kind != kindSingle || allAddresses && (m.kind == kindAddress || m.kind == kindSingle) {
			return Renewal{}, fmt.Errorf("no router advertises %s", m.name)
		}
		renewed.Silent = append(renewed.Silent, m.name)
	}
	return renewed, nil
}
