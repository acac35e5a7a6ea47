// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/providerbridge"
	"github.com/kiln-net/kiln/internal/uplink"
)

// attemptOf identifies an attempt: a request, and the interface that it names. Addresses and routes of the interface do not belong to it, because programs
// change them at any time.
func attemptOf(q providerbridge.Request, link netlink.Link) string {
	return strings.Join([]string{q.Attempt, q.Interface, string(q.NodeInterface), strconv.Itoa(link.Attrs().Index)}, " ")
}

// conflict returns a failure if something else has the bridge's name or the interface.
func (p *providers) conflict(ctx context.Context, db *client.Client, provider string, q providerbridge.Request, user string) providerbridge.Result {
	bridge := providerbridge.Bridge(provider)
	have, err := readBridge(ctx, db, bridge)
	switch {
	case err != nil:
		return failure(err)
	case provider == bridgeName: // the two ends of its connection with that bridge would have one name
		return failed(providerbridge.ReasonConflict, "%s is the name of a bridge: choose another name for the provider network", provider)
	case bridge == bridgeName || bridge == integrationBridge || have.row != nil && have.row.ExternalIDs[providerKey] != provider:
		return failed(providerbridge.ReasonConflict, "another program uses the bridge %s: choose another name for the provider network", bridge)
	case user != "":
		return failed(providerbridge.ReasonConflict, "the provider network %s uses interface %s: choose another interface", user, q.Interface)
	}
	return mappingConflict(ctx, db, provider)
}

// suitable returns the interface, or the reason why it cannot become a port of the bridge.
func (p *providers) suitable(q providerbridge.Request) (netlink.Link, providerbridge.Result) {
	links, err := uplink.Whole(netlink.LinkList)
	if err != nil {
		return nil, failure(fmt.Errorf("list interfaces: %w", err))
	}
	at := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == q.Interface })
	if at < 0 {
		return nil, failed(providerbridge.ReasonNoInterface, "the node has no interface %s; its interfaces are %s", q.Interface, namesOf(links))
	}
	link, attributes := links[at], links[at].Attrs()
	if attributes.MasterIndex != 0 && p.kernel() { // perhaps still a port of the kernel's datapath, which a removal leaves soon
		if master, err := netlink.LinkByIndex(attributes.MasterIndex); err == nil && master.Attrs().Name == datapathLink {
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

// strands refuses an interface with addresses that would stay on it, where the network would not reach them after the move.
func strands(link netlink.Link, bridge string) providerbridge.Result {
	name := link.Attrs().Name
	stay, err := uplink.Stranded(link)
	switch {
	case err != nil:
		return failure(err)
	case len(stay) > 0:
		return failed(providerbridge.ReasonUnsuitable, "interface %s has the IPv6 address %s next to a wider one. The network would not reach it after the move to %s: if it is "+
			"the node's own, give it the prefix length of its network, so that it moves; if a program such as keepalived adds it, let that program use another interface", name, stay[0], bridge)
	}
	return providerbridge.Result{}
}

// stranded says which address the interface has got since its move that the network does not reach there; empty for none.
func (p *providers) stranded(bridge, name string) (message string, err error) {
	stay, err := p.directory.Stranded(bridge)
	if err != nil || len(stay) == 0 {
		return "", err
	}
	return fmt.Sprintf("the network does not reach the IPv6 address %s on interface %s: give it the prefix length of its network, so that it moves to %s, or let the "+
		"program that adds it use %s", stay[0], name, bridge, bridge), nil
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

// namesOf names the first interfaces of a node. Those of pods, which come and go, are after them: a message that changes with each pod would
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

// unwanted returns why an interface that has moved has to return; empty if it has not.
func unwanted(j *uplink.Journal, q providerbridge.Request) string {
	switch {
	case j == nil:
		return ""
	case j.Phase == uplink.PhaseMoved && len(j.Leases) > 0 && q.NodeInterface != providerbridge.NodeInterfaceAll:
		return "nodeInterface of the provider network is not " + string(providerbridge.NodeInterfaceAll)
	case j.Uplink != q.Interface:
		return "the provider network has another interface"
	case j.Phase == uplink.PhaseMoved && j.Before.Needed() != "" && !q.NodeInterface.MovesAddresses():
		return "nodeInterface of the provider network is " + string(providerbridge.NodeInterfaceRefuse)
	}
	return ""
}

// namedByRules refuses an interface with addresses that routing rules or a firewall name: they would not apply to the bridge.
func namedByRules(ctx context.Context, q providerbridge.Request, j uplink.Journal) providerbridge.Result {
	if j.Before.Carries() == "" {
		return providerbridge.Result{}
	}
	places, err := uplink.Naming(ctx, q.Interface, j.Bridge)
	switch {
	case err != nil:
		return failure(err)
	case len(places) > 0:
		return failed(providerbridge.ReasonNamed, "rules name interface %s and not %s, which takes over its addresses: %s. Add the same rules for %s first, "+
			"so that they still apply after the move", q.Interface, j.Bridge, strings.Join(places, ", "), j.Bridge)
	}
	return providerbridge.Result{}
}
