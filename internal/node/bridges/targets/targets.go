// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package targets finds out whether the hosts that a node needs answer it on an interface.
package targets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/neighbour"
)

// Target is a host that shows whether the node is reached. With a port, it is reached by TCP; otherwise it is a neighbour on the
// interface, which answers ARP or neighbour discovery: hosts answer these whatever they filter.
type Target struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port,omitempty"`
	Gateway bool       `json:"gateway,omitempty"`
	// Interface is the VLAN interface that it is a neighbour on; empty for the interface itself, or its bridge after the move.
	Interface string `json:"interface,omitempty"`
}

// String names the target for users.
func (t Target) String() string {
	switch {
	case t.Port != 0:
		return "the API server at " + netip.AddrPortFrom(t.Address, t.Port).String()
	case t.Gateway:
		return "the gateway " + t.Address.String()
	}
	return "the node " + t.Address.String()
}

// Names lists targets for users.
func Names(list []Target) string {
	names := make([]string, 0, len(list))
	for _, t := range list {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// maxNeighbourTargets bounds the neighbours that are targets if no gateway and no node is known.
const maxNeighbourTargets = 3

// Candidates returns the hosts that should answer on an interface with this state: gateways of its routes, nodes of its networks, and the API
// server, which is reached by any interface. Known neighbours stand in for missing gateways and nodes.
func Candidates(s kernel.State, nodes []netip.Addr, apiServer netip.AddrPort) []Target {
	var list []Target
	add := func(t Target) {
		if !slices.ContainsFunc(list, func(o Target) bool { return o.Address == t.Address && o.Port == t.Port }) {
			list = append(list, t)
		}
	}
	for _, r := range s.Routes {
		for _, g := range r.Gateways() {
			add(Target{Address: g.WithZone(""), Gateway: true})
		}
	}
	for _, n := range nodes {
		if s.OnLink(n) {
			add(Target{Address: n})
		}
	}
	for _, n := range s.Neighbours {
		if len(list) < maxNeighbourTargets && s.OnLink(n.Address) && !n.Permanent {
			add(Target{Address: n.Address})
		}
	}
	if apiServer.IsValid() {
		add(Target{Address: apiServer.Addr(), Port: apiServer.Port()})
	}
	return list
}

// OnTop returns the hosts that should answer on the VLAN interfaces of a state.
func OnTop(s kernel.State, nodes []netip.Addr) ([]Target, error) {
	var list []Target
	for _, name := range s.OnTop {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("look for interface %s: %w", name, err)
		}
		state, err := kernel.Read(link)
		if err != nil {
			return nil, err
		}
		for _, t := range Candidates(state, nodes, netip.AddrPort{}) {
			t.Interface = name
			list = append(list, t)
		}
	}
	return list, nil
}

// probeInterval is the pause between two requests to a target.
const probeInterval = 200 * time.Millisecond

// Answering returns the targets that answer on an interface until ctx ends. It returns earlier if all do.
func Answering(ctx context.Context, link netlink.Link, targets []Target) []Target {
	answers := make([]bool, len(targets))
	var all sync.WaitGroup
	for i, t := range targets {
		all.Go(func() { answers[i] = t.answers(ctx, link) })
	}
	all.Wait()
	var list []Target
	for i, t := range targets {
		if answers[i] {
			list = append(list, t)
		}
	}
	return list
}

func (t Target) answers(ctx context.Context, link netlink.Link) bool {
	if t.Interface != "" {
		own, err := netlink.LinkByName(t.Interface)
		if err != nil {
			return false
		}
		link = own
	}
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		ask := t.neighbour
		if t.Port != 0 {
			ask = t.connect
		}
		if ask(ctx, link) == nil {
			return true
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return false
}

// connect opens a connection. A refusal also shows that the host is reached.
func (t Target) connect(ctx context.Context, _ netlink.Link) error {
	ctx, cancel := context.WithTimeout(ctx, 5*probeInterval)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(t.Address, t.Port).String())
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return err
	}
	return conn.Close()
}

// neighbour sends one request, and waits one interval for its answer.
func (t Target) neighbour(_ context.Context, link netlink.Link) error {
	source, err := t.source(link)
	if err != nil {
		return err
	}
	frame, err := neighbour.Request(neighbour.Host{MAC: link.Attrs().HardwareAddr, Address: source}, 0, t.Address)
	if err != nil {
		return err
	}
	conn, err := neighbour.Listen(link.Attrs().Index, neighbour.Protocol(t.Address))
	if err != nil {
		return fmt.Errorf("on %s: %w", link.Attrs().Name, err)
	}
	defer conn.Close()
	if err := errors.Join(conn.SetReadDeadline(time.Now().Add(probeInterval)), neighbour.Send(conn, frame)); err != nil {
		return err
	}
	for buffer := make([]byte, 2048); ; {
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if answer, ok := neighbour.Parse(buffer[:n], 0); ok && answer.Address == t.Address && !answer.Asks {
			return nil
		}
	}
}

// source returns an address of the interface, of a network with the target if there is one.
func (t Target) source(link netlink.Link) (netip.Addr, error) {
	list, err := kernel.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	var source netip.Addr
	for _, a := range list {
		prefix := ipfamily.PrefixOf(a.IPNet)
		if prefix.Addr().Is4() != t.Address.Is4() {
			continue
		}
		if !source.IsValid() || prefix.Contains(t.Address) {
			source = prefix.Addr()
		}
	}
	if !source.IsValid() {
		return source, fmt.Errorf("interface %s has no address of the family of %s", link.Attrs().Name, t.Address)
	}
	return source, nil
}
