// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
)

// Lease is how a DHCP server renews an IPv4 address (RFC 2131), or how routers renew IPv6 addresses and routes. The node's own client has its sockets on the
// interface: in the kernel's datapath, it gets no answers after a move.
type Lease struct {
	// Address is invalid for the lease of all entries that routers advertise.
	Address netip.Addr `json:"address,omitzero"`
	// ClientID is the client identifier (option 61) to which the server has given the address; empty if it knows the client by its MAC address.
	ClientID []byte `json:"clientID,omitempty"`
	// Duration is the time for which the last answer gives the address, or the shortest one that routers advertise. It came At, since the boot of the node. Longest is
	// the longest Duration so far.
	Duration time.Duration `json:"duration"`
	At       time.Duration `json:"at,omitempty"`
	Longest  time.Duration `json:"longest,omitempty"`
	// Left is the rest of the longest answer. It is not in the journal.
	Left time.Duration `json:"-"`
	// Silent names entries that no router has renewed, while others of their kind were renewed.
	Silent []string `json:"-"`
	// of are the entries that routers renew, and seen are their answers.
	of   State
	seen []advertisement
}

// longestLease is the longest time for which an answer counts: any host of the network can send one, and the address can be given to another host then.
const longestLease = 24 * time.Hour

// String names the lease for users.
func (l Lease) String() string {
	if l.Address.IsValid() {
		return "the address " + l.Address.String()
	}
	return "addresses and routes of router advertisements"
}

// Ask asks for a renewal by an interface, and returns the renewed lease.
func (l Lease) Ask(ctx context.Context, link netlink.Link) (renewed Lease, err error) {
	if l.Address.IsValid() {
		renewed, err = l.askServers(ctx, link)
	} else {
		renewed, err = askRouters(ctx, link, l.of, false)
	}
	renewed.Longest = max(l.Longest, l.Duration, renewed.Duration)
	return renewed, err
}

// answerTime is for a DHCP server to answer a request, which is repeated once and then has twice the time.
const answerTime = 500 * time.Millisecond

// source is a raw socket that receives for all addresses, and sends from one.
type source struct {
	net.PacketConn
	from *net.UDPAddr
}

// WriteTo sends a DHCP message in a broadcast frame.
func (s source) WriteTo(message []byte, to net.Addr) (int, error) {
	raw, ok := s.PacketConn.(*nclient4.BroadcastRawUDPConn)
	if !ok {
		return 0, fmt.Errorf("a socket of type %T", s.PacketConn)
	}
	return nclient4.NewBroadcastUDPConn(raw.PacketConn, s.from).WriteTo(message, to)
}

// askServers asks all DHCP servers that an interface reaches to renew the address, in the state REBINDING (RFC 2131, section 4.4.5). It returns the lease that one
// of them gives. A server that refuses is an error like one that does not answer: any host of the network can send a refusal.
func (l Lease) askServers(ctx context.Context, link netlink.Link) (Lease, error) {
	socket, err := nclient4.NewRawUDPConn(link.Attrs().Name, nclient4.ClientPort)
	if err != nil {
		return l, fmt.Errorf("open a socket for DHCP on %s: %w", link.Attrs().Name, err)
	}
	from := &net.UDPAddr{IP: l.Address.AsSlice(), Port: nclient4.ClientPort}
	client, err := nclient4.NewWithConn(source{socket, from}, link.Attrs().HardwareAddr, nclient4.WithTimeout(answerTime), nclient4.WithRetry(2))
	if err != nil {
		return l, errors.Join(fmt.Errorf("ask for a lease: %w", err), socket.Close())
	}
	defer client.Close()
	modifiers := []dhcpv4.Modifier{
		dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithHwAddr(link.Attrs().HardwareAddr), dhcpv4.WithClientIP(l.Address.AsSlice()),
	}
	if len(l.ClientID) > 0 {
		modifiers = append(modifiers, dhcpv4.WithOption(dhcpv4.OptClientIdentifier(l.ClientID)))
	}
	request, err := dhcpv4.New(modifiers...)
	if err != nil {
		return l, fmt.Errorf("make a request for a lease: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 4*answerTime) // the client waits again after each message that is no answer
	defer cancel()
	answer, err := client.SendAndRead(ctx, nclient4.DefaultServers, request, func(m *dhcpv4.DHCPv4) bool {
		return m.MessageType() == dhcpv4.MessageTypeAck && AddrOf(m.YourIPAddr) == l.Address && m.IPAddressLeaseTime(0) > 0
	})
	if err != nil {
		return l, fmt.Errorf("no DHCP server renews the address %s: %w", l.Address, err)
	}
	l.Duration, l.At = min(answer.IPAddressLeaseTime(0), longestLease), sinceBoot()
	return l, nil
}

// Prove asks for a renewal of each address and route of a state that has a limited lifetime. For IPv4 it tries the client identifiers that the interface's client
// can have. The answers show that they can be renewed after a move.
func Prove(ctx context.Context, link netlink.Link, s State, clientIDs [][]byte) ([]Lease, error) {
	var leases []Lease
	for _, a := range s.Addresses {
		if a.Valid == 0 || !a.Prefix.Addr().Is4() {
			continue
		}
		var errs []error
		for _, id := range clientIDs {
			lease, err := Lease{Address: a.Prefix.Addr(), ClientID: id}.Ask(ctx, link)
			if err == nil {
				leases, errs = append(leases, lease), nil
				break
			}
			errs = append(errs, err)
		}
		if len(errs) > 0 {
			return nil, errs[0]
		}
	}
	if s.limited() {
		lease, err := askRouters(ctx, link, s, true)
		if err != nil {
			return nil, err
		}
		leases = append(leases, lease)
	}
	return leases, nil
}

// ClientIDs returns the client identifiers that the DHCP client of an interface can have: that of systemd-networkd, none, and the MAC address with its type, as
// in RFC 2132, section 9.14.
func (m Managers) ClientIDs(link netlink.Link) ([][]byte, error) {
	ids := [][]byte{nil, append([]byte{1}, link.Attrs().HardwareAddr...)}
	lease, err := stateFile(filepath.Join(m.Leases, strconv.Itoa(link.Attrs().Index)))
	if err != nil {
		return nil, err
	}
	if own, err := hex.DecodeString(lease["CLIENTID"]); err == nil && len(own) > 0 && len(own) < 256 {
		ids = append([][]byte{own}, ids...)
	}
	return ids, nil
}

// renews reports whether the lease is for an address.
func (l Lease) renews(a Address) bool {
	if a.Valid == 0 {
		return false
	}
	if l.Address.IsValid() {
		return a.Prefix.Addr() == l.Address
	}
	return a.advertised() && a.kind() == kindAddress
}

// answers returns for how long a renewed lease gives an address; 0 if it does not.
func (l Lease) answers(a Address) (valid, preferred time.Duration) {
	switch {
	case !l.renews(a):
		return 0, 0
	case l.Address.IsValid():
		return l.Duration, l.Duration
	}
	valid, preferred = a.lifetimes(l.seen)
	return min(valid, longestLease), min(preferred, longestLease)
}

// Renewed returns the state with the ends that an answer gives its entries. It makes no lifetime shorter: any host of the network can send an answer.
func (s State) Renewed(l Lease) State {
	s.Addresses, s.Routes = slices.Clone(s.Addresses), slices.Clone(s.Routes)
	for i := range s.Addresses {
		a := &s.Addresses[i]
		valid, preferred := l.answers(*a)
		if valid == 0 {
			continue
		}
		a.Valid = max(a.Valid, l.At+valid)
		if a.Preferred != 0 {
			a.Preferred = max(a.Preferred, l.At+preferred)
		}
	}
	for i := range s.Routes {
		r := &s.Routes[i]
		if lifetime := min(r.lifetime(l.seen), longestLease); r.advertised() && lifetime > 0 {
			r.Expires = max(r.Expires, l.At+lifetime)
		}
	}
	return s
}

// kind is a kind of entries that routers renew. A bridge that keeps one of each kind has all that a node needs: routers and prefixes can be withdrawn.
type kind int

const (
	kindAddress kind = iota
	kindSingle       // an IPv6 address of a single host, which a DHCP server can have given after a move: it is not renewed, and ends alone
	kindDefault
	kindNetwork
)

func (a Address) kind() kind {
	if a.Prefix.Addr().Is6() && a.Prefix.IsSingleIP() {
		return kindSingle
	}
	return kindAddress
}

func (r Route) kind() kind {
	if r.Destination.IsValid() {
		return kindNetwork
	}
	return kindDefault
}

// left returns the time until the last entry of a kind that a lease renews ends, or is no longer preferred; false if none ends.
func (s State) left(l Lease, now time.Duration) (left time.Duration, limited bool) {
	ends := map[kind]time.Duration{}
	for _, a := range s.Addresses {
		if !l.renews(a) {
			continue
		}
		end := a.Valid
		if a.Preferred > now { // otherwise the router has ended it
			end = min(end, a.Preferred)
		}
		ends[kindAddress] = max(ends[kindAddress], end)
	}
	if !l.Address.IsValid() {
		for _, r := range s.Routes {
			if r.Expires != 0 {
				ends[r.kind()] = max(ends[r.kind()], r.Expires)
			}
		}
	}
	for _, at := range ends {
		if !limited || at-now < left {
			left, limited = at-now, true
		}
	}
	return left, limited
}

// leases returns the leases of entries that still end, with the rest of each.
func (j *Journal) leases() (list []Lease) {
	now := sinceBoot()
	for _, l := range j.Leases {
		if left, limited := j.Before.left(l, now); limited {
			l.Left, l.of = left, j.Before
			list = append(list, l)
		}
	}
	return list
}

// Leases returns the leases of a bridge that has taken over entries that end.
func (d Directory) Leases(bridge string) ([]Lease, error) {
	j, err := d.Read(bridge)
	if err != nil || j == nil {
		return nil, err
	}
	return j.leases(), nil
}

// Extend gives the entries of a renewed lease their new ends, on the bridge and in the journal.
func (d Directory) Extend(ctx context.Context, bridge string, renewed Lease) error {
	return d.update(ctx, bridge, func(j *Journal, step Step) error {
		link, err := netlink.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("look for interface %s: %w", bridge, err)
		}
		before := j.Before
		j.Before = before.Renewed(renewed)
		for i, a := range j.Before.Addresses {
			if a == before.Addresses[i] {
				continue
			}
			if err := addAddress(link, a.ofBridge(), step); err != nil {
				return err
			}
		}
		for i, r := range j.Before.Routes {
			if r == before.Routes[i] {
				continue
			}
			if err := addRoute(link, nil, r, step); err != nil {
				return err
			}
		}
		for i, l := range j.Leases {
			if l.Address == renewed.Address {
				j.Leases[i] = renewed
			}
		}
		return d.write(j)
	})
}

// Shares of a lease, in parts of its duration: with less than renewAt left of the last answer it is renewed, with less than returnAt of the longest one the interface gets
// the address back, so that the node's own client can renew it there. A guard does this later, with half of that.
const (
	renewAt  = 2
	returnAt = 8
)

// leastReturn is the longest time for which a short answer, which any host of the network can send, does not shorten the time for a return.
const leastReturn = 10 * time.Second

// RenewAfter returns the time until the lease should be renewed.
func (l Lease) RenewAfter() time.Duration {
	return min(l.Left, l.At+l.Duration-sinceBoot()) - l.Duration/renewAt
}

// LostAfter returns the time until the lease ends so soon that the interface should get its addresses back.
func (l Lease) LostAfter() time.Duration { return l.Left - l.forReturn() }

// forReturn is the time that a return needs before the end of the lease.
func (l Lease) forReturn() time.Duration {
	return max(l.Duration/returnAt, min(l.Longest/returnAt, leastReturn))
}

// ends returns the time until a guard restores the interface because nothing renews a lease, and its name; false if there is none.
func (j *Journal) ends() (left time.Duration, name string, leased bool) {
	for _, l := range j.leases() {
		if until := l.Left - l.forReturn()/2; !leased || until < left {
			left, name, leased = until, l.String(), true
		}
	}
	return left, name, leased
}
