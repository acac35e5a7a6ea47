// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// dhcpServer is the source address of OVN's DHCP answers. Nothing else uses it.
const dhcpServer = "169.254.0.254"

// DHCPRef is the row of a subnet's DHCP options of a family.
func DHCPRef(subnet string, family ipfamily.Family) desired.Ref {
	return desired.Ref{Owner: SubnetOwner(subnet), Key: keyDHCP + family.String()}
}

// dhcpRows are the DHCP options of a subnet, one row per family. The user's options override the defaults.
func dhcpRows(in SubnetInputs) []desired.Row {
	if !in.DHCP {
		return nil
	}
	var rows []desired.Row
	for i, cidr := range in.CIDRs {
		family := ipfamily.Of(cidr.Addr())
		options := dhcpDefaults(in.Gateways[0], in.Gateways[i], in.MTU)
		maps.Copy(options, in.DHCPOptions[family.String()])
		rows = append(rows, desired.Row{
			Key: DHCPRef(in.Name, family).Key,
			Model: &nb.DHCPOptions{
				Cidr: cidr.String(), Options: options, ExternalIDs: map[string]string{idSwitch: in.Name, "protocol": family.String()},
			},
		})
	}
	return rows
}

// dhcpDefaults are the options of a subnet whose user sets none (ovn-nb(5), DHCP_Options). The server's MAC address is the
// router port's, which derives from the subnet's first gateway.
func dhcpDefaults(first, gateway netip.Addr, mtu int) map[string]string {
	server := gatewayMAC(first).String()
	if gateway.Is6() {
		return map[string]string{"server_id": server}
	}
	options := map[string]string{"server_id": dhcpServer, "server_mac": server, "lease_time": "3600", "router": gateway.String()}
	if mtu > 0 {
		options["mtu"] = strconv.Itoa(mtu)
	}
	return options
}

// PodDHCP are the DHCP options of one pod, of one family.
type PodDHCP struct {
	// CIDR of the subnet in this family, and its gateway there.
	CIDR    netip.Prefix
	Gateway netip.Addr
	// First is the first of the subnet's gateways.
	First netip.Addr
	// MTU of the subnet; 0 sends no MTU.
	MTU int
	// Options are the user's, in OVN's form.
	Options map[string]string
}

// ownDHCP are the DHCP options of a pod that differ from its subnet's.
func ownDHCP(in PodInputs) []desired.Row {
	var rows []desired.Row
	for _, d := range in.OwnDHCP {
		family := ipfamily.Of(d.Gateway)
		options := dhcpDefaults(d.First, d.Gateway, d.MTU)
		maps.Copy(options, d.Options)
		rows = append(rows, desired.Row{
			Key: keyDHCP + family.String(),
			Model: &nb.DHCPOptions{Cidr: d.CIDR.String(), Options: options, ExternalIDs: map[string]string{
				idSwitch: in.Subnet, "protocol": family.String(), "port": in.port().Name,
			}},
		})
	}
	return rows
}

// answersOwn reports whether a pod has its own DHCP options of a family.
func (in *PodInputs) answersOwn(family ipfamily.Family) bool {
	return slices.ContainsFunc(in.OwnDHCP, func(d PodDHCP) bool { return ipfamily.Of(d.Gateway) == family })
}

// dhcpReferences enable DHCP on a port, with the pod's own options if it has any, or else its subnet's. There is one reference
// per family in which the port has an address.
func dhcpReferences(in PodInputs) []desired.Reference {
	var references []desired.Reference
	for _, d := range in.OwnDHCP {
		family := ipfamily.Of(d.Gateway)
		references = append(references, desired.Reference{
			Column: dhcpColumn[family],
			To:     []desired.Ref{{Owner: PodOwner(in.port()), Key: keyDHCP + family.String()}},
		})
	}
	for _, cidr := range in.DHCP {
		for _, address := range in.Addresses {
			if address.Is4() != cidr.Addr().Is4() || in.answersOwn(ipfamily.Of(address)) {
				continue
			}
			references = append(references, desired.Reference{
				Column: dhcpColumn[ipfamily.Of(address)],
				To:     []desired.Ref{DHCPRef(in.Subnet, ipfamily.Of(address))},
			})
		}
	}
	return references
}

var dhcpColumn = map[ipfamily.Family]string{ipfamily.IPv4: "dhcpv4_options", ipfamily.IPv6: "dhcpv6_options"}

// routerAdvertisements are the ipv6_ra_configs of a router port that advertises itself (ovn-nb(5), Logical_Router_Port).
func routerAdvertisements(in SubnetInputs) map[string]string {
	ipv6 := false
	for _, cidr := range in.CIDRs {
		ipv6 = ipv6 || cidr.Addr().Is6()
	}
	if !in.IPv6RA || !ipv6 {
		return nil
	}
	configs := map[string]string{"address_mode": "dhcpv6_stateful", "send_periodic": "true"}
	_, most := in.IPv6RAConfigs["max_interval"]
	_, least := in.IPv6RAConfigs["min_interval"]
	if !most && !least { // OVN derives one from the other
		configs["max_interval"], configs["min_interval"] = "30", "5"
	}
	if in.MTU > 0 {
		configs["mtu"] = strconv.Itoa(in.MTU)
	}
	maps.Copy(configs, in.IPv6RAConfigs)
	return configs
}
