// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// SubnetInputs are the inputs of Subnet.
type SubnetInputs struct {
	Name string
	// Vpc is the VPC whose router the switch is joined to; empty while there is none.
	Vpc string
	// CIDRs has one prefix per family.
	CIDRs []netip.Prefix
	// Gateways are the router's addresses on the switch: one per CIDR, in the same order.
	Gateways []netip.Addr
	// Localnet connects the switch to a physical network. It is nil for an overlay subnet.
	Localnet *Localnet
	// Services makes the VPC's load balancers serve the ports of the switch.
	Services bool
	// MTU of the ports in bytes; 0 if the subnet does not set it.
	MTU int
	// RouteTable of the VPC's router in which the subnet's traffic is looked up.
	RouteTable string

	// Private isolates the subnet. Only the subnet itself, AllowSubnets and NodeCIDRs, the nodes' source prefixes, can send to
	// it.
	Private      bool
	AllowSubnets []netip.Prefix
	NodeCIDRs    []netip.Prefix
	// ACLs are the user's, with parsed matches. AllowEWTraffic allows traffic between ports of the subnet, unless an ACL with a
	// higher priority matches.
	ACLs []kubeovnv1.ACL
	// LogDrops: packets that ACLs drop are logged.
	LogDrops       bool
	AllowEWTraffic bool

	// VirtualPorts represent addresses that several ports share.
	VirtualPorts []VirtualPort
	// Proxied are addresses of the subnet that load balancers serve: the switch answers ARP and neighbour solicitations for
	// them with the router port's MAC address.
	Proxied []netip.Addr
	// MulticastSnooping sends multicast only to ports that joined the group. Querier sends the membership queries; without it
	// there are none.
	MulticastSnooping bool
	Querier           *Querier

	// DHCP enables answers to the DHCP requests of ports; DHCPOptions are the user's, by family.
	DHCP        bool
	DHCPOptions map[string]map[string]string
	// IPv6RA enables router advertisements, with the user's IPv6RAConfigs.
	IPv6RA        bool
	IPv6RAConfigs map[string]string
	// NameTaken is set if another object has one of the names of the ports between the switch and the router.
	NameTaken bool
}

// Subnet returns the logical switch of a subnet, the pair of ports that joins it to its VPC's router, the policies that route
// traffic of the VPC to its addresses, its ACLs and its DHCP options. An underlay subnet has a localnet port, and the pair and the policies only
// if it has a gateway port.
func Subnet(in SubnetInputs) []desired.Row {
	rows := []desired.Row{switchRow(in)}
	if in.Localnet != nil {
		rows = append(rows, localnetPort(in))
	}
	switch {
	case in.Localnet != nil && in.Localnet.Router != nil && in.Vpc != "":
		rows = append(rows, gatewayPort(in)...)
	case in.Localnet == nil && in.Vpc != "":
		rows = append(rows, routerPair(in, in.Gateways)...)
		rows = append(rows, localPolicies(in)...)
	}
	rows = append(rows, subnetACLs(in)...)
	rows = append(rows, virtualPorts(in)...)
	return append(rows, dhcpRows(in)...)
}

// OwnPorts returns the largest number of ports that Subnet adds to a switch: to the router, to the physical network, and the virtual ports.
func OwnPorts(underlay bool, virtual int) int {
	if underlay {
		return 2 + virtual
	}
	return 1 + virtual
}

// localPolicies allow traffic to the subnet, so that no policy of a lower priority reroutes it.
func localPolicies(in SubnetInputs) []desired.Row {
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	rows := make([]desired.Row, 0, len(in.CIDRs))
	for _, cidr := range in.CIDRs {
		rows = append(rows, desired.Row{
			Key: "local-policy/" + ipfamily.Of(cidr.Addr()).String(),
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

// switchRow is the switch itself. Its columns change only when the user changes the spec, because any change of a switch's row
// causes a full recompute of ovn-northd.
func switchRow(in SubnetInputs) desired.Row {
	row := desired.Row{Key: keySwitch, Model: &nb.LogicalSwitch{Name: in.Name, OtherConfig: multicast(in)}}
	if in.Vpc == "" {
		return row
	}
	row.References = []desired.Reference{protectedBy(in.Vpc)}
	if in.Services {
		row.References = append(row.References, desired.Reference{
			Column: "load_balancer_group",
			To:     []desired.Ref{ServicesRef(in.Vpc)},
		})
	}
	return row
}

// routerPair is the router's port on the switch, with one address per CIDR, and the switch's port to the router.
func routerPair(in SubnetInputs, addresses []netip.Addr) []desired.Row {
	networks := make([]string, 0, len(in.CIDRs))
	for i, cidr := range in.CIDRs {
		networks = append(networks, netip.PrefixFrom(addresses[i], cidr.Bits()).String())
	}
	routerPort, switchPort := PortNames(in.Vpc, in.Name, in.NameTaken)
	routerPorts := desired.RouterPorts(RouterRef(in.Vpc))
	switchPorts := desired.SwitchPorts(SwitchRef(in.Name))
	port := &nb.LogicalRouterPort{
		Name: routerPort, MAC: gatewayMAC(addresses[0]).String(), Networks: networks, Ipv6RaConfigs: routerAdvertisements(in),
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

// VpcOfRouterPort returns the VPC of the router that has a subnet's router port, RouterPortRef.
func VpcOfRouterPort(port *nb.LogicalRouterPort, subnet string) string {
	name, _, _ := strings.Cut(port.Name, "_") // a hash follows if the name was taken
	return strings.TrimSuffix(name, "-"+subnet)
}
