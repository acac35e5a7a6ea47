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
	// Duration is the time for which the server gives the address, or the shortest one that routers advertise.
	Duration time.Duration `json:"duration"`
	// Left is the rest of the lease. It is not in the journal.
	Left time.Duration `json:"-"`
	// of are the entries that routers renew, and seen what they have answered.
	of   State
	seen []advertisement
}

// String names the lease for users.
func (l Lease) String() string {
	if l.Address.IsValid() {
		return "the address " + l.Address.String()
	}
	return "addresses and routes of router advertisements"
}

// Ask asks for a renewal by an interface, and returns the renewed lease.
func (l Lease) Ask(ctx context.Context, link netlink.Link) (Lease, error) {
	if l.Address.IsValid() {
		return l.askServers(ctx, link)
	}
	return askRouters(ctx, link, l.of)
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
	answer, err := client.SendAndRead(ctx, nclient4.DefaultServers, request, func(m *dhcpv4.DHCPv4) bool {
		return m.MessageType() == dhcpv4.MessageTypeAck && AddrOf(m.YourIPAddr) == l.Address && m.IPAddressLeaseTime(0) > 0
	})
	if err != nil {
		return l, fmt.Errorf("no DHCP server renews the address %s: %w", l.Address, err)
	}
	l.Duration = answer.IPAddressLeaseTime(0)
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
		lease, err := askRouters(ctx, link, s)
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

// Leases returns the leases of entries that a bridge has, and that still end.
func (d Directory) Leases(bridge string) ([]Lease, error) {
	j, err := d.Read(bridge)
	if err != nil || j == nil {
		return nil, err
	}
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", bridge, err)
	}
	has, err := configuration(link)
	if err != nil {
		return nil, err
	}
	var leases []Lease
	for _, l := range j.Leases {
		if !l.Address.IsValid() {
			var limited bool
			if l.Left, limited = j.Before.left(sinceBoot()); limited {
				l.of = j.Before
				leases = append(leases, l)
			}
			continue
		}
		if at := slices.IndexFunc(has.Addresses, func(a Address) bool { return a.Prefix.Addr() == l.Address && a.Valid != 0 }); at >= 0 {
			l.Left = has.Addresses[at].Valid - sinceBoot()
			leases = append(leases, l)
		}
	}
	return leases, nil
}

// Extend gives the entries of a renewed lease their new ends, on the bridge and in the journal. It never makes a lifetime shorter.
func (d Directory) Extend(ctx context.Context, bridge string, renewed Lease) error {
	return d.update(ctx, bridge, func(j *Journal, step Step) error {
		link, err := netlink.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("look for interface %s: %w", bridge, err)
		}
		if !renewed.Address.IsValid() {
			if err := j.extendAdvertised(link, renewed.seen, step); err != nil {
				return err
			}
			return d.record(j, renewed)
		}
		now := sinceBoot()
		at := slices.IndexFunc(j.Before.Addresses, func(a Address) bool { return a.Prefix.Addr() == renewed.Address && a.Valid != 0 })
		if at < 0 || j.Before.Addresses[at].Valid-now >= renewed.Duration {
			return nil
		}
		a := &j.Before.Addresses[at]
		if a.Valid = now + renewed.Duration; renewed.Duration >= forever*time.Second {
			a.Valid = 0
		}
		a.Preferred = a.Valid
		if err := step.Before("extend " + a.Prefix.String() + " of " + bridge); err != nil {
			return err
		}
		if err := netlink.AddrReplace(link, a.ofBridge().on(now)); err != nil {
			return fmt.Errorf("extend the lifetime of %s on %s: %w", a.Prefix, bridge, err)
		}
		return d.record(j, renewed)
	})
}

// record writes a journal with a renewed lease.
func (d Directory) record(j *Journal, renewed Lease) error {
	for i, l := range j.Leases {
		if l.Address == renewed.Address {
			j.Leases[i] = renewed
		}
	}
	return d.write(j)
}

// Shares of a lease, in parts of its duration: with less than renewAt left it is renewed, with less than returnAt the interface gets the address back, so
// that the node's own client can renew it there. A guard does this later, with less than guardAt.
const (
	renewAt  = 2
	returnAt = 8
	guardAt  = 16
)

// RenewAfter returns the time until the lease should be renewed.
func (l Lease) RenewAfter() time.Duration { return l.Left - l.Duration/renewAt }

// LostAfter returns the time until the lease ends so soon that the interface should get its addresses back.
func (l Lease) LostAfter() time.Duration { return l.Left - l.Duration/returnAt }

// ends returns the time until a guard restores the interface because nothing renews a lease, and its name; false if there is none.
func (j *Journal) ends() (left time.Duration, name string, leased bool) {
	for _, l := range j.Leases {
		if rest, limited := j.Before.left(sinceBoot()); !l.Address.IsValid() && limited {
			if until := rest - l.Duration/guardAt; !leased || until < left {
				left, name, leased = until, l.String(), true
			}
		}
		for _, a := range j.Before.Addresses {
			if a.Prefix.Addr() != l.Address || a.Valid == 0 {
				continue
			}
			if until := a.Valid - sinceBoot() - l.Duration/guardAt; !leased || until < left {
				left, name, leased = until, l.String(), true
			}
		}
	}
	return left, name, leased
}
