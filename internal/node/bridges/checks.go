// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/bridges/targets"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
)

// suitable returns the interface, or the reason why it cannot become a port of the bridge.
func (m *Mover) suitable(q providerbridge.Request) (netlink.Link, providerbridge.Result) {
	links, err := kernel.Whole(netlink.LinkList)
	if err != nil {
		return nil, failure(fmt.Errorf("list interfaces: %w", err))
	}
	at := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == q.Interface })
	if at < 0 {
		return nil, failed(providerbridge.ReasonNoInterface, "the node has no interface %s; its interfaces are %s", q.Interface, namesOf(links))
	}
	link, attributes := links[at], links[at].Attrs()
	if attributes.MasterIndex != 0 && m.options.kernel() { // perhaps still a port of the kernel's datapath, which a removal leaves soon
		if master, err := netlink.LinkByIndex(attributes.MasterIndex); err == nil && master.Attrs().Name == kernel.DatapathLink {
			return nil, failure(fmt.Errorf("interface %s is still a port of a bridge of Open vSwitch", q.Interface))
		}
	}
	switch {
	case attributes.Flags&net.FlagLoopback != 0 || len(attributes.HardwareAddr) != 6:
		return nil, failed(providerbridge.ReasonUnsuitable, "interface %s is not an Ethernet interface", q.Interface)
	case attributes.MasterIndex != 0:
		return nil, failed(providerbridge.ReasonUnsuitable, "interface %s is a port of %s: choose that one", q.Interface, nameOf(links, attributes.MasterIndex))
	case link.Type() == "openvswitch" || link.Type() == "bridge" || link.Type() == "tuntap":
		return nil, failed(providerbridge.ReasonUnsuitable, "interface %s is a bridge or an interface of a program (%s)", q.Interface, link.Type())
	}
	for _, l := range links {
		if l.Attrs().ParentIndex == attributes.Index && slices.Contains(takers, l.Type()) {
			return nil, failed(providerbridge.ReasonUnsuitable, "interface %s has the interface %s (%s), which needs its packets", q.Interface, l.Attrs().Name, l.Type())
		}
	}
	if attributes.Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, failure(fmt.Errorf("set %s up: %w", q.Interface, err))
		}
		return nil, failed(providerbridge.ReasonNoCarrier, "interface %s was down, and has no carrier yet", q.Interface)
	}
	if attributes.OperState == netlink.OperDown || attributes.OperState == netlink.OperLowerLayerDown {
		return nil, failed(providerbridge.ReasonNoCarrier, "interface %s has no carrier: check its cable, and the port of the switch", q.Interface)
	}
	return link, providerbridge.Result{}
}

func nameOf(links []netlink.Link, index int) string {
	at := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == index })
	if at < 0 {
		return "another interface"
	}
	return links[at].Attrs().Name
}

// takers are the types of interfaces that take the packets of the interface below them, as a bridge does.
var takers = []string{"macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"}

// maxNamed bounds a message about interfaces.
const maxNamed = 10

// namesOf names the first interfaces of a node. Interfaces of pods, which come and go, are after them: a message that changes with each pod would
// cause writes.
func namesOf(links []netlink.Link) string {
	var names []string
	for _, l := range links[:min(len(links), maxNamed)] {
		names = append(names, l.Attrs().Name)
	}
	if len(links) > maxNamed {
		names = append(names, "…")
	}
	return strings.Join(names, ", ")
}

// A check of a candidate returns why it must not move; an empty result if it may.

// valid refuses a request with a value that this version does not know. An interface that has moved stays where it is (outdated).
func valid(_ context.Context, c *candidate) providerbridge.Result {
	if c.request.NodeInterface.Known() {
		return providerbridge.Result{}
	}
	return failed(providerbridge.ReasonInvalid, "nodeInterface of the ProviderNetwork is %q: set it to %s, %s or %s",
		c.request.NodeInterface, providerbridge.NodeInterfaceRefuse, providerbridge.NodeInterfaceStatic, providerbridge.NodeInterfaceAll)
}

// managed refuses an interface that another program configures, without consent.
func (m *Mover) managed(_ context.Context, c *candidate) providerbridge.Result {
	manager, err := m.managers.Of(c.link, c.journal.Before)
	switch {
	case err != nil:
		return failure(err)
	case manager != "" && c.request.NodeInterface != providerbridge.NodeInterfaceAll:
		return failed(providerbridge.ReasonManaged, "interface %s is configured by %s. With nodeInterface All of the ProviderNetwork, its bridge takes over its addresses, and Kiln renews them there",
			c.request.Interface, manager)
	}
	return providerbridge.Result{}
}

// consented refuses an interface that the node needs, without consent.
func consented(_ context.Context, c *candidate) providerbridge.Result {
	if c.needed() == "" || c.request.NodeInterface.MovesAddresses() {
		return providerbridge.Result{}
	}
	return failed(providerbridge.ReasonUnsuitable, "interface %s has %s: set nodeInterface of the ProviderNetwork to Static to let its bridge take over "+
		"addresses and routes, or use an interface without them", c.request.Interface, c.needed())
}

// connected refuses an interface with addresses that would stay on it, where the network would not reach them after the move.
func connected(_ context.Context, c *candidate) providerbridge.Result {
	stay, err := kernel.Stranded(c.link)
	switch {
	case err != nil:
		return failure(err)
	case len(stay) > 0:
		return failed(providerbridge.ReasonUnsuitable, "interface %s has the IPv6 address %s next to a wider one. The network would not reach it after the move to %s: if it is "+
			"the node's own, give it the prefix length of its network, so that it moves; if a program such as keepalived adds it, let that program use another interface",
			c.request.Interface, stay[0], c.bridge)
	}
	return providerbridge.Result{}
}

// unnamed refuses an interface with addresses that routing rules or a firewall name: they would not apply to the bridge.
func (m *Mover) unnamed(ctx context.Context, c *candidate) providerbridge.Result {
	old := m.refused[c.provider]
	if !c.request.Turn && old.attempt == c.journal.Attempt && old.result.Reason == providerbridge.ReasonAwaitingTurn { // rules of a whole node can be many: not again before its turn
		return providerbridge.Result{}
	}
	if c.journal.Before.Carries() == "" {
		return providerbridge.Result{}
	}
	places, err := kernel.Naming(ctx, c.request.Interface, c.bridge)
	switch {
	case err != nil:
		return failure(err)
	case len(places) > 0:
		return failed(providerbridge.ReasonNamed, "rules name interface %s and not %s, which takes over its addresses: %s. Add the same rules for %s first, "+
			"so that they still apply after the move", c.request.Interface, c.bridge, strings.Join(places, ", "), c.bridge)
	}
	return providerbridge.Result{}
}

// bridged makes the bridge without the interface, and waits until ovs-vswitchd and the kernel have it.
func (m *Mover) bridged(ctx context.Context, c *candidate) providerbridge.Result {
	err := m.directory.Step.Before("write bridge")
	if err == nil {
		err = errors.Join(m.write(ctx, c.network, c.link, false), database.Await(ctx, c.db, c.bridge, attachTime), awaitLink(ctx, c.bridge))
	}
	if err == nil {
		err = m.directory.Prepare(c.bridge, c.journal.Before)
	}
	if err != nil {
		return failure(err)
	}
	return providerbridge.Result{}
}

// reachable refuses an interface on which no gateway and no other node answers: nothing would show whether the move works. The journal gets the hosts that answer.
func (m *Mover) reachable(ctx context.Context, c *candidate) providerbridge.Result {
	candidates := targets.Candidates(c.journal.Before, c.request.Peers, m.options.APIServer)
	onTop, err := targets.OnTop(c.journal.Before, c.request.Peers)
	if err != nil {
		return failure(err)
	}
	candidates = append(candidates, onTop...)
	limited, cancel := context.WithTimeout(ctx, answerTime)
	c.journal.Targets = targets.Answering(limited, c.link, candidates)
	cancel()
	near := func(t targets.Target) bool { return t.Port == 0 }
	switch {
	case !slices.ContainsFunc(candidates, near):
		return failed(providerbridge.ReasonUnreachable, "interface %s has no gateway, and no other host of its networks is known: nothing would show whether the move works", c.request.Interface)
	case !slices.ContainsFunc(c.journal.Targets, near):
		return failed(providerbridge.ReasonUnreachable, "before the move, none of these answers on interface %s: %s",
			c.request.Interface, targets.Names(slices.DeleteFunc(candidates, func(t targets.Target) bool { return !near(t) })))
	}
	return providerbridge.Result{}
}

// renewable refuses an interface with addresses or routes that end and that nothing renews. The journal gets their renewals.
func (m *Mover) renewable(ctx context.Context, c *candidate) (result providerbridge.Result) {
	var err error
	if c.journal.Renewals, err = m.prove(ctx, c); err != nil {
		return failed(providerbridge.ReasonUnreachable, "before the move, %v: after it, nothing would renew what interface %s has for a limited time. "+
			"Use static addresses and routes, or let its DHCP client identify itself by the MAC address", err, c.request.Interface)
	}
	for _, r := range c.journal.Renewals {
		c.journal.Before = r.Extend(c.journal.Before)
	}
	return providerbridge.Result{}
}

// itsTurn refuses an interface that the node needs until it is the node's turn.
func itsTurn(_ context.Context, c *candidate) providerbridge.Result {
	if c.request.Turn {
		return providerbridge.Result{}
	}
	return failed(providerbridge.ReasonAwaitingTurn, "interface %s has %s, and waits until it may move: interfaces with addresses or routes move node by node. "+
		"status.turn of a ProviderNetwork names the node that moves", c.request.Interface, c.needed())
}
