// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Priorities of the policies on a VPC's router; the higher one wins. They are those of Kube-OVN, so that policies which users
// add in between keep their meaning.
const (
	priorityLocal   = 31000 // what goes to a subnet of the VPC is routed to it
	priorityNode    = 30000 // what goes to a node goes through that node's port
	priorityNorth   = 29250 // what leaves the VPC from a pod with a next hop of its own goes there
	priorityCentral = 29010 // what leaves the VPC from a subnet with gateway nodes leaves through them
	priorityEgress  = 29000 // what leaves the VPC leaves by the pod's own node
)

// SubnetInputs are what the logical switch of an overlay subnet follows from.
type SubnetInputs struct {
	Name string
	// Vpc whose router the switch is joined to; empty while there is none.
	Vpc string
	// CIDRs has one prefix per family.
	CIDRs []netip.Prefix
	// Gateways are the router's addresses on the switch: one per CIDR, in the same order.
	Gateways []netip.Addr
	// Services makes the VPC's load balancers serve the ports of the switch.
	Services bool
	// MTU of the ports in bytes, 0 when the subnet says nothing of it.
	MTU int
	// RouteTable of the VPC's router in which the subnet's traffic is looked up.
	RouteTable string

	// Private keeps the subnet apart from all but itself, AllowSubnets and NodeCIDRs, which nodes send from.
	Private      bool
	AllowSubnets []netip.Prefix
	NodeCIDRs    []netip.Prefix
	// ACLs are the user's, whose matches have been read. AllowEWTraffic lets the subnet's ports talk whatever they say, unless their
	// priority is greater.
	ACLs           []kubeovnv1.ACL
	AllowEWTraffic bool

	// VirtualPorts stand for addresses that several ports share.
	VirtualPorts []VirtualPort
	// Proxied are addresses of the subnet that load balancers serve: the router answers who has them.
	Proxied []netip.Addr
	// MulticastSnooping sends multicast only to ports that asked for it. Querier asks them; without one nobody does.
	MulticastSnooping bool
	Querier           *Querier

	// DHCP answers the requests of ports; DHCPOptions are the user's, by family.
	DHCP        bool
	DHCPOptions map[string]map[string]string
	// IPv6RA has the router advertise itself, with the user's IPv6RAConfigs.
	IPv6RA        bool
	IPv6RAConfigs map[string]string
	// NameTaken: something else has one of the names of the ports between the switch and the router.
	NameTaken bool
}

// Subnet returns the logical switch of a subnet, the pair of ports that joins it to its VPC's router, the policies that route to it
// what any port of the VPC sends to its addresses, its ACLs and its DHCP answers.
func Subnet(in SubnetInputs) []desired.Row {
	rows := []desired.Row{switchRow(in)}
	if in.Vpc != "" {
		rows = append(rows, routerPair(in)...)
		rows = append(rows, localPolicies(in)...)
	}
	rows = append(rows, subnetACLs(in)...)
	rows = append(rows, virtualPorts(in)...)
	return append(rows, dhcpRows(in)...)
}

// localPolicies have the router keep to itself what goes to the subnet.
func localPolicies(in SubnetInputs) []desired.Row {
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	rows := make([]desired.Row, 0, len(in.CIDRs))
	for _, cidr := range in.CIDRs {
		rows = append(rows, desired.Row{
			Key: "local-policy/" + familyKey(cidr.Addr()),
			Model: &nb.LogicalRouterPolicy{
				Priority: priorityLocal,
				Match:    matchIP("dst", cidr.Addr(), cidr.String()),
				Action:   nb.LogicalRouterPolicyActionAllow,
			},
			Parent: &policies,
		})
	}
	return rows
}

// switchRow is the switch itself. Nothing stands on it that changes while the subnet lives, unless its user changes the spec: any change
// of a switch's own row makes ovn-northd compute everything anew.
func switchRow(in SubnetInputs) desired.Row {
	row := desired.Row{Key: keySwitch, Model: &nb.LogicalSwitch{Name: in.Name, OtherConfig: multicast(in)}}
	if in.Services && in.Vpc != "" {
		row.References = []desired.Reference{{
			Column: "load_balancer_group",
			To:     []desired.Ref{ServicesRef(in.Vpc)},
		}}
	}
	return row
}

// routerPair is the router's port on the switch and the switch's port to the router.
func routerPair(in SubnetInputs) []desired.Row {
	networks := make([]string, 0, len(in.CIDRs))
	for i, cidr := range in.CIDRs {
		networks = append(networks, netip.PrefixFrom(in.Gateways[i], cidr.Bits()).String())
	}
	routerPort, switchPort := PortNames(in.Vpc, in.Name, in.NameTaken)
	routerPorts := desired.RouterPorts(RouterRef(in.Vpc))
	switchPorts := desired.SwitchPorts(SwitchRef(in.Name))
	port := &nb.LogicalRouterPort{
		Name: routerPort, MAC: gatewayMAC(in.Gateways[0]).String(), Networks: networks, Ipv6RaConfigs: routerAdvertisements(in),
	}
	if in.RouteTable != "" {
		port.Options = map[string]string{"route_table": in.RouteTable}
	}
	options := map[string]string{"router-port": routerPort}
	if len(in.Proxied) > 0 {
		options["arp_proxy"] = strings.ReplaceAll(ipfamily.Join(in.Proxied), ",", " ")
	}
	return []desired.Row{
		{Key: keyRouterPort, Model: port, Parent: &routerPorts},
		{
			Key: "switch-port",
			Model: &nb.LogicalSwitchPort{
				Name:      switchPort,
				Type:      "router",
				Addresses: []string{"router"},
				Options:   options,
			},
			Parent: &switchPorts,
		},
	}
}

// VpcOfRouterPort is the VPC of the router that a subnet's RouterPortRef is of.
func VpcOfRouterPort(port *nb.LogicalRouterPort, subnet string) string {
	name, _, _ := strings.Cut(port.Name, "_") // and a hash, when something else had the name
	return strings.TrimSuffix(name, "-"+subnet)
}
