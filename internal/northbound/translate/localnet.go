// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Localnet is the physical network of an underlay subnet.
type Localnet struct {
	// Network is the name of the ProviderNetwork, to which ovn-bridge-mappings gives a bridge on each chassis.
	Network string
	// Tag of the VLAN; 0 without one.
	Tag int
	// NameTaken is set if a pod's port has the name LocalnetPort.
	NameTaken bool
	// Router is the port of the VPC's router on the switch; nil if it has none.
	Router *GatewayPort
}

// NamesakeOfLocalnet returns the port of a pod that has the name of LocalnetPort. Namespaces have no dots.
func NamesakeOfLocalnet(subnet string) kubeovnv1.Port {
	name := LocalnetPort(subnet)
	dot := strings.LastIndexByte(name, '.')
	return kubeovnv1.NewPort(name[dot+1:], name[:dot], kubeovnv1.ProviderOVN)
}

// Keys of the localnet port. A port with a tag has another row than one without: ovn-northd never clears the column tag of a row whose
// tag_request was removed.
const (
	keyLocalnet       = "localnet"
	keyTaggedLocalnet = "localnet-tagged"
)

// optionNetwork is the option of a localnet port with its physical network (ovn-nb(5)).
const optionNetwork = "network_name"

// External IDs of a localnet port: the subnet's CIDRs. The names are Kube-OVN's.
var idNetwork = map[ipfamily.Family]string{ipfamily.IPv4: "ipv4_network", ipfamily.IPv6: "ipv6_network"}

// LocalnetRefs returns the rows of which a subnet's localnet port is one.
func LocalnetRefs(subnet string) []desired.Ref {
	return []desired.Ref{{Owner: SubnetOwner(subnet), Key: keyLocalnet}, {Owner: SubnetOwner(subnet), Key: keyTaggedLocalnet}}
}

// localnetPort is the port of a switch to its physical network (ovn-nb(5), Logical_Switch_Port, type localnet).
func localnetPort(in SubnetInputs) desired.Row {
	port := &nb.LogicalSwitchPort{
		Name: LocalnetPort(in.Name), Type: "localnet", Addresses: []string{"unknown"},
		Options: map[string]string{optionNetwork: in.Localnet.Network}, ExternalIDs: map[string]string{idSwitch: in.Name},
	}
	for _, cidr := range in.CIDRs {
		port.ExternalIDs[idNetwork[ipfamily.Of(cidr.Addr())]] = cidr.Masked().String()
	}
	if in.Localnet.NameTaken {
		port.Name += "_switch" // names of pods and namespaces have no underscore
	}
	ports, key := desired.SwitchPorts(SwitchRef(in.Name)), keyLocalnet
	if in.Localnet.Tag != 0 {
		port.TagRequest, key = &in.Localnet.Tag, keyTaggedLocalnet
	}
	return desired.Row{Key: key, Model: port, Parent: &ports}
}

// NetworkOf returns the physical network of a localnet port.
func NetworkOf(port *nb.LogicalSwitchPort) string { return port.Options[optionNetwork] }

// LocalnetHas reports whether a localnet port is of a subnet with exactly these CIDRs.
func LocalnetHas(port *nb.LogicalSwitchPort, cidrs []netip.Prefix) bool {
	var networks []string
	for key, network := range port.ExternalIDs {
		if strings.HasSuffix(key, "_network") {
			networks = append(networks, network)
		}
	}
	return len(networks) == len(cidrs) && !slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return !slices.Contains(networks, c.Masked().String()) })
}
