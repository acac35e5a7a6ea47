// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package renewal asks DHCP servers and routers to renew addresses and routes that have moved to a bridge. The node's own programs have their sockets on the interface: in
// the kernel's datapath, they get no answers after a move.
package renewal

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
)

// Renewal is how a DHCP server renews an IPv4 address (RFC 2131), or how routers renew IPv6 addresses and routes.
type Renewal struct {
	// Address is invalid for the renewal of all entries that routers advertise.
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
	of   kernel.State
	seen []advertisement
}

// longest is the longest time for which an answer counts: any host of the network can send one, and the address can be given to another host then.
const longest = 24 * time.Hour

// String names the entries for users.
func (r Renewal) String() string {
	if r.Address.IsValid() {
		return "the address " + r.Address.String()
	}
	return "addresses and routes of router advertisements"
}

// Ask asks for a renewal by an interface, and returns it with the answer.
func (r Renewal) Ask(ctx context.Context, link netlink.Link) (renewed Renewal, err error) {
	if r.Address.IsValid() {
		renewed, err = r.askServers(ctx, link)
	} else {
		renewed, err = askRouters(ctx, link, r.of, false)
	}
	renewed.Longest = max(r.Longest, r.Duration, renewed.Duration)
	return renewed, err
}

// Prove asks for a renewal of each address and route of a state that has a limited lifetime. For IPv4 it tries the client identifiers that the interface's client
// can have. The answers show that they can be renewed after a move.
func Prove(ctx context.Context, link netlink.Link, s kernel.State, clientIDs [][]byte) ([]Renewal, error) {
	var proven []Renewal
	for _, a := range s.Addresses {
		if a.Valid == 0 || !a.Prefix.Addr().Is4() {
			continue
		}
		var errs []error
		for _, id := range clientIDs {
			renewed, err := Renewal{Address: a.Prefix.Addr(), ClientID: id}.Ask(ctx, link)
			if err == nil {
				proven, errs = append(proven, renewed), nil
				break
			}
			errs = append(errs, err)
		}
		if len(errs) > 0 {
			return nil, errs[0]
		}
	}
	if s.Advertised() {
		renewed, err := askRouters(ctx, link, s, true)
		if err != nil {
			return nil, err
		}
		proven = append(proven, renewed)
	}
	return proven, nil
}

// renews reports whether the renewal is one of an address.
func (r Renewal) renews(a kernel.Address) bool {
	if a.Valid == 0 {
		return false
	}
	if r.Address.IsValid() {
		return a.Prefix.Addr() == r.Address
	}
	return a.Advertised() && kindOf(a) == kindAddress
}

// answers returns for how long the answer gives an address; 0 if it does not.
func (r Renewal) answers(a kernel.Address) (valid, preferred time.Duration) {
	switch {
	case !r.renews(a):
		return 0, 0
	case r.Address.IsValid():
		return r.Duration, r.Duration
	}
	valid, preferred = lifetimes(a, r.seen)
	return min(valid, longest), min(preferred, longest)
}

// Extend returns the state with the ends that the answer gives its entries. It makes no lifetime shorter: any host of the network can send an answer.
func (r Renewal) Extend(s kernel.State) kernel.State {
	s.Addresses, s.Routes = slices.Clone(s.Addresses), slices.Clone(s.Routes)
	for i := range s.Addresses {
		a := &s.Addresses[i]
		valid, preferred := r.answers(*a)
		if valid == 0 {
			continue
		}
		a.Valid = max(a.Valid, r.At+valid)
		if a.Preferred != 0 {
			a.Preferred = max(a.Preferred, r.At+preferred)
		}
	}
	for i := range s.Routes {
		route := &s.Routes[i]
		if left := min(lifetime(*route, r.seen), longest); route.Advertised() && left > 0 {
			route.Expires = max(route.Expires, r.At+left)
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

func kindOf(a kernel.Address) kind {
	if a.Prefix.Addr().Is6() && a.Prefix.IsSingleIP() {
		return kindSingle
	}
	return kindAddress
}

func kindOfRoute(r kernel.Route) kind {
	if r.Destination.IsValid() {
		return kindNetwork
	}
	return kindDefault
}

// Of returns the renewal for the entries of a state, with the rest of the longest answer; false if none of them ends.
func (r Renewal) Of(s kernel.State) (of Renewal, limited bool) {
	r.of = s
	r.Left, limited = r.left(s, kernel.SinceBoot())
	return r, limited
}

// left returns the time until the last entry of a kind ends, or is no longer preferred; false if none ends.
func (r Renewal) left(s kernel.State, now time.Duration) (left time.Duration, limited bool) {
	ends := map[kind]time.Duration{}
	for _, a := range s.Addresses {
		if !r.renews(a) {
			continue
		}
		end := a.Valid
		if a.Preferred > now { // otherwise the router has ended it
			end = min(end, a.Preferred)
		}
		ends[kindAddress] = max(ends[kindAddress], end)
	}
	if !r.Address.IsValid() {
		for _, route := range s.Routes {
			if route.Expires != 0 {
				ends[kindOfRoute(route)] = max(ends[kindOfRoute(route)], route.Expires)
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

// Shares of a lifetime: with less than renewAt left of the last answer it is renewed, with less than returnAt of the longest one the interface gets
// the address back, so that the node's own client can renew it there. A guard does this later, with half of that.
const (
	renewAt  = 2
	returnAt = 8
)

// leastReturn is the longest time for which a short answer, which any host of the network can send, does not shorten the time for a return.
const leastReturn = 10 * time.Second

// RenewAfter returns the time until the entries should be renewed.
func (r Renewal) RenewAfter() time.Duration {
	return min(r.Left, r.At+r.Duration-kernel.SinceBoot()) - r.Duration/renewAt
}

// LostAfter returns the time until the entries end so soon that the interface should get its addresses back.
func (r Renewal) LostAfter() time.Duration { return r.Left - r.forReturn() }

// GuardAfter is LostAfter for a guard, which acts if the process that renews the entries does not.
func (r Renewal) GuardAfter() time.Duration { return r.Left - r.forReturn()/2 }

// forReturn is the time that a return needs before the end of the entries.
func (r Renewal) forReturn() time.Duration {
	return max(r.Duration/returnAt, min(r.Longest/returnAt, leastReturn))
}
