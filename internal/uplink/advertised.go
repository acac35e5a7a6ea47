// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
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

// advertised reports whether an entry of a State comes from router advertisements or DHCPv6, and can end.
func (a Address) advertised() bool { return a.Valid != 0 && a.Prefix.Addr().Is6() }

// advertisedName names the address for users. Those that hosts make from router advertisements have 64 bits.
func (a Address) advertisedName() string {
	if a.Prefix.Bits() != 64 {
		return "the address " + a.Prefix.String() + " of a DHCP server"
	}
	return "the address " + a.Prefix.String()
}

// advertised is the same for routes. NetworkManager removes those that it made at their end, which the kernel does not know.
func (r Route) advertised() bool { return r.Expires != 0 || r.Protocol == unix.RTPROT_RA }

// Limited returns the addresses and routes of a state that can end.
func (s State) Limited() (names []string) {
	for _, a := range s.Addresses {
		if a.Valid != 0 {
			names = append(names, a.Prefix.String())
		}
	}
	for _, r := range s.Routes {
		if r.advertised() {
			names = append(names, r.String())
		}
	}
	return names
}

// limited reports whether the state has entries that router advertisements or DHCPv6 renew.
func (s State) limited() bool {
	return slices.ContainsFunc(s.Addresses, Address.advertised) || slices.ContainsFunc(s.Routes, Route.advertised)
}

// usable reports whether hosts do not ignore a prefix (RFC 4862, section 5.5.3, c).
func usable(p *ndp.PrefixInformation) bool { return p.PreferredLifetime <= p.ValidLifetime }

// lifetimes returns for how long the routers advertise the prefix of an address; 0 if they do not.
func (a Address) lifetimes(seen []advertisement) (valid, preferred time.Duration) {
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
func (r Route) lifetime(seen []advertisement) (longest time.Duration) {
	if r.Hops != "" {
		return 0
	}
	for _, s := range seen {
		if s.router == r.Gateway && !r.Destination.IsValid() {
			longest = max(longest, s.message.RouterLifetime)
		}
		for _, o := range s.message.Options {
			switch o := o.(type) {
			case *ndp.RouteInformation: // RFC 4191
				if s.router == r.Gateway && r.Destination.IsValid() && netip.PrefixFrom(o.Prefix, int(o.PrefixLength)) == r.Destination {
					longest = max(longest, o.RouteLifetime)
				}
			case *ndp.PrefixInformation:
				if o.OnLink && !r.Gateway.IsValid() && netip.PrefixFrom(o.Prefix, int(o.PrefixLength)) == r.Destination {
					longest = max(longest, o.ValidLifetime)
				}
			}
		}
	}
	return longest
}

// unanswered is an entry that no router advertises. It is the last one if no other one of its kind is advertised either.
type unanswered struct {
	kind kind
	name string
	last bool
}

// advertised returns the shortest time for which routers advertise entries of the state that can end, and the entries that they do not advertise.
func (s State) advertised(seen []advertisement) (shortest time.Duration, missing []unanswered) {
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
		if a.advertised() {
			valid, preferred := a.lifetimes(seen)
			count(a.kind(), a.advertisedName(), valid, preferred)
		}
	}
	for _, r := range s.Routes {
		if r.advertised() {
			count(r.kind(), "the route "+r.String(), r.lifetime(seen))
		}
	}
	for i := range missing {
		missing[i].last = !answered[missing[i].kind]
	}
	return shortest, missing
}

// askRouters solicits advertisements of all entries of a state that can end. Without an answer for all addresses, or for one entry of each kind, it returns an error.
func askRouters(ctx context.Context, link netlink.Link, s State, allAddresses bool) (Lease, error) {
	seen, err := solicit(ctx, link, func(seen []advertisement) bool { _, missing := s.advertised(seen); return len(missing) == 0 })
	if err != nil {
		return Lease{}, err
	}
	shortest, missing := s.advertised(seen)
	l := Lease{Duration: min(shortest, longestLease), seen: seen, At: sinceBoot()}
	for _, m := range missing {
		if m.last && m.kind != kindSingle || allAddresses && (m.kind == kindAddress || m.kind == kindSingle) {
			return Lease{}, fmt.Errorf("no router advertises %s", m.name)
		}
		l.Silent = append(l.Silent, m.name)
	}
	return l, nil
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

// bridgeSettings returns the settings of the bridge.
func (j *Journal) bridgeSettings() map[string]string {
	return j.Before.bridgeSettings(slices.ContainsFunc(j.Leases, func(l Lease) bool { return !l.Address.IsValid() }))
}

// bridgeSettings returns the settings of a bridge. The kernel does not follow router advertisements there if Kiln does.
func (s State) bridgeSettings(follows bool) map[string]string {
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
	if r.advertised() && err == nil && r.Priority >= kernel && s.Settings[acceptRA] != "" && s.Settings[acceptRA] != "0" {
		r.Priority++
	}
	return r
}
