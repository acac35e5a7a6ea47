// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Options and external_ids of ports (ovn-nb(5), Logical_Switch_Port). ovn-controller compares the pod's UID here with that of the
// interface, so that a pod re-created under one name never gets its predecessor's interface.
const (
	optionChassis = "requested-chassis"
	optionPodUID  = "iface-id-ver"
	// optionActivation keeps a port blocked at its further chassis until what runs there announces itself.
	optionActivation = "activation-strategy"
	idPod            = "pod"
	idSwitch         = "ls"
	idVips           = "vips"
)

// keyPodPort is the key of the port on the pod's first network.
const keyPodPort = "ovn"

// PodInputs is what the port of a pod follows from.
type PodInputs struct {
	Namespace string
	Name      string
	// UID of the pod, which only its interface is bound to the port by; empty where pods follow one another.
	UID string
	// Node is the pod's node, which is its chassis, too.
	Node string
	// Others are nodes that a virtual machine moves to. Its port is there as well, from when the machine announces itself there by RARP.
	Others []string
	// Subnet is the logical switch, Vpc its router.
	Subnet string
	Vpc    string
	// Addresses are the pod's, at most one of each family.
	Addresses []netip.Addr
	MAC       net.HardwareAddr
	// DHCP are those CIDRs of the subnet in which it answers DHCP requests.
	DHCP []netip.Prefix
	// OwnDHCP are DHCP answers to the pod that differ from the subnet's, at most one of each family that the pod has an address of.
	OwnDHCP []PodDHCP
	// Vips are addresses that the pod shares with others of the subnet.
	Vips []netip.Addr
	// Shared are addresses of Vip objects that the pod shares.
	Shared []netip.Addr
	// PortSecurity drops what the pod sends from other addresses than its own, Vips and Shared.
	PortSecurity bool
	// NorthGateway are next hops of what leaves the VPC from the pod, at most one of each family.
	NorthGateway []netip.Addr
	// Unknown sends the pod what is for MAC addresses that no port has (ovn-nb(5), Logical_Switch_Port.addresses).
	Unknown bool
	// Policy is what the port is in for the sake of policies.
	Policy PodPolicy
}

// PodPort is the name of a pod's port on its first network, and of its IP object.
func PodPort(namespace, name string) string { return name + "." + namespace }

// PodOfPort is the inverse of PodPort. Names of namespaces hold no dot, those of pods may.
func PodOfPort(port string) (namespace, name string, ok bool) {
	i := strings.LastIndexByte(port, '.')
	if i < 1 || i == len(port)-1 {
		return "", "", false
	}
	return port[i+1:], port[:i], true
}

// Pod returns the logical switch port of a pod with its addresses in the sets of its node.
func Pod(in PodInputs) []desired.Row {
	port := &nb.LogicalSwitchPort{
		Name:        PodPort(in.Namespace, in.Name),
		Addresses:   []string{portAddress(in.MAC, in.Addresses)},
		Options:     map[string]string{optionChassis: in.Node},
		ExternalIDs: map[string]string{idPod: in.Namespace + "/" + in.Name, idSwitch: in.Subnet},
	}
	if in.UID != "" {
		port.Options[optionPodUID] = in.UID
	}
	if len(in.Others) > 0 {
		port.Options[optionChassis] = strings.Join(append([]string{in.Node}, in.Others...), ",")
		port.Options[optionActivation] = "rarp"
	}
	if len(in.Vips) > 0 {
		port.ExternalIDs[idVips] = ipfamily.Join(in.Vips)
	}
	if in.PortSecurity {
		port.PortSecurity = []string{portAddress(in.MAC, slices.Concat(in.Addresses, in.Vips, in.Shared))}
	}
	if in.Unknown {
		port.Addresses = append(port.Addresses, "unknown")
	}
	parent := desired.SwitchPorts(SwitchRef(in.Subnet))
	row := desired.Row{Key: keyPodPort, Model: port, Parent: &parent, References: dhcpReferences(in), Elements: egress(in)}
	in.Policy.join(&row, in.Addresses)
	if len(in.NorthGateway) == 0 && len(in.OwnDHCP) == 0 {
		return []desired.Row{row}
	}
	return slices.Concat([]desired.Row{row}, ownDHCP(in), north(in))
}

// north are the policies that send what leaves the VPC from a pod to next hops of its own.
func north(in PodInputs) []desired.Row {
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	var rows []desired.Row
	for _, hop := range in.NorthGateway {
		for _, address := range in.Addresses {
			if ipfamily.Of(address) != ipfamily.Of(hop) {
				continue
			}
			rows = append(rows, desired.Row{Key: "north/" + familyKey(hop), Parent: &policies, Model: &nb.LogicalRouterPolicy{
				Priority: priorityNorth, Match: matchIP("src", address, address.String()),
				Action: nb.LogicalRouterPolicyActionReroute, Nexthops: []string{hop.String()},
			}})
		}
	}
	return rows
}

// egress are a pod's addresses in the sets of those that leave the VPC by the pod's own node, unless the policy of a centralized gateway
// comes first. Nodes are connected to the default VPC alone.
func egress(in PodInputs) []desired.Element {
	if in.Vpc != kubeovnv1.DefaultVpc {
		return nil
	}
	elements := make([]desired.Element, 0, len(in.Addresses))
	for _, a := range in.Addresses {
		set := desired.SetAddresses(NodeEgressRef(in.Vpc, in.Node, ipfamily.Of(a)))
		elements = append(elements, desired.Element{Of: set, Value: a.String()})
	}
	return elements
}

// portAddress is one element of Logical_Switch_Port.addresses: a MAC address and the IP addresses behind it.
func portAddress(mac net.HardwareAddr, addresses []netip.Addr) string {
	parts := make([]string, 0, 1+len(addresses))
	parts = append(parts, mac.String())
	for _, a := range addresses {
		parts = append(parts, a.String())
	}
	return strings.Join(parts, " ")
}

// PortLease is what a port in the northbound database says about the pod, or node, that it was made for.
type PortLease struct {
	Port   string
	Subnet string
	// UID is the pod's; empty for a node.
	UID       string
	Addresses []netip.Addr
	MAC       net.HardwareAddr
}

// ReadPortLease reads a port that Pod or Node made. It is false when someone else has written it so that no address can be read.
func ReadPortLease(port *nb.LogicalSwitchPort) (PortLease, bool) {
	lease := PortLease{Port: port.Name, Subnet: port.ExternalIDs[idSwitch], UID: port.Options[optionPodUID]}
	if len(port.Addresses) == 0 {
		return lease, false
	}
	fields := strings.Fields(port.Addresses[0])
	if len(fields) < 2 {
		return lease, false
	}
	mac, err := net.ParseMAC(fields[0])
	if err != nil {
		return lease, false
	}
	lease.MAC = mac
	for _, f := range fields[1:] {
		a, err := netip.ParseAddr(f)
		if err != nil {
			return lease, false
		}
		lease.Addresses = append(lease.Addresses, a)
	}
	return lease, true
}
