// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// VirtualPort is an address that several ports share: the last port to announce it gets it (ovn-nb(5), Logical_Switch_Port,
// type virtual).
type VirtualPort struct {
	Address netip.Addr
	// Parents are the names of the ports that may get the address, in order.
	Parents []string
}

// virtualPorts are the ports for a subnet's shared addresses.
func virtualPorts(in SubnetInputs) []desired.Row {
	vpc := in.Vpc
	if in.Localnet != nil && (in.Localnet.Router == nil || in.Localnet.Router.Interconnects) {
		vpc = "" // the gateway is a router of the physical network
	}
	rows := make([]desired.Row, 0, len(in.VirtualPorts))
	for _, v := range in.VirtualPorts {
		rows = append(rows, virtualPort("vip/"+v.Address.String(), in.Name+"-vip-"+v.Address.String(), in.Name, vpc, v))
	}
	return rows
}

// virtualPort returns the port of a shared address. In the default VPC, whose traffic leaves through nodes, the address is also in the set of their
// policies while pods share it.
func virtualPort(key, name, subnet, vpc string, v VirtualPort) desired.Row {
	port := &nb.LogicalSwitchPort{Name: name, Type: "virtual", Options: map[string]string{"virtual-ip": v.Address.String()}}
	ports := desired.SwitchPorts(SwitchRef(subnet))
	row := desired.Row{Key: key, Model: port, Parent: &ports}
	if len(v.Parents) == 0 {
		return row
	}
	port.Options["virtual-parents"] = strings.Join(v.Parents, ",")
	if vpc == kubeovnv1.DefaultVpc {
		row.Elements = []desired.Element{{Of: desired.SetAddresses(SharedRef(vpc, ipfamily.Of(v.Address))), Value: v.Address.String()}}
	}
	return row
}

// Querier is the source of the multicast membership queries of a subnet.
type Querier struct {
	Address netip.Addr
	MAC     net.HardwareAddr
}

// QuerierRecord is the name of the IP object of a subnet's querier.
func QuerierRecord(subnet string) string { return "mcast-querier." + subnet }

// QuerierHolder is the allocator's holder name of a subnet's querier. No port has this name.
func QuerierHolder(subnet string) string { return "mcast-querier/" + subnet }

// multicast is the part of a switch's other_config about multicast (ovn-nb(5), Logical_Switch). Queries for IPv6 groups have a
// link-local source (RFC 2710, section 3).
func multicast(in SubnetInputs) map[string]string {
	if !in.MulticastSnooping {
		return nil
	}
	config := map[string]string{"mcast_snoop": "true", "mcast_querier": "false"}
	if q := in.Querier; q != nil {
		config["mcast_querier"] = "true"
		config["mcast_eth_src"] = q.MAC.String()
		if q.Address.Is4() {
			config["mcast_ip4_src"] = q.Address.String()
		}
		for _, cidr := range in.CIDRs {
			if cidr.Addr().Is6() {
				config["mcast_ip6_src"] = linkLocal(q.MAC).String()
			}
		}
	}
	return config
}

// linkLocal is the IPv6 link-local address derived from a MAC address (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}
