// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Options and external_ids of ports (ovn-nb(5), Logical_Switch_Port). ovn-controller binds an interface to the port only if
// both have the same iface-id-ver, the pod's UID. So a pod re-created under the same name never gets its predecessor's
// interface.
const (
	optionChassis = "requested-chassis"
	optionPodUID  = "iface-id-ver"
	// optionActivation keeps a port blocked at its additional chassis until the virtual machine there announces itself.
	optionActivation = "activation-strategy"
	idPod            = "pod"
	idSwitch         = "ls"
	idVips           = "vips"
	idAddresses      = "addresses"
)

// PodInputs are the inputs of Pod.
type PodInputs struct {
	// Namespace, Name and Provider are of the port (kubeovnv1.Port). Name is its owner's: of the pod, or of the machine that the pod runs.
	Namespace string
	Name      string
	Provider  string
	// UID of the pod: only an interface with this UID is bound to the port. It is empty for a port that several pods use in
	// succession.
	UID string
	// Node is the pod's node and its chassis.
	Node string
	// Others are the target nodes of a virtual machine that migrates. Its port becomes active on such a node when the machine
	// sends RARP there.
	Others []string
	// Subnet is the logical switch, Vpc its router.
	Subnet string
	Vpc    string
	// Addresses are the pod's, at most one of each family.
	Addresses []netip.Addr
	MAC       net.HardwareAddr
	// Quiet hides Addresses from OVN, which would answer ARP and neighbour discovery for them: a host of the physical network may have them. The
	// port works without: the pod answers.
	Quiet bool
	// DHCP are the CIDRs of the subnet in whose families the port gets DHCP answers.
	DHCP []netip.Prefix
	// OwnDHCP are the pod's own DHCP options, at most one per family of its addresses.
	OwnDHCP []PodDHCP
	// Vips are addresses that the pod shares with other pods of the subnet.
	Vips []netip.Addr
	// Shared are addresses of Vip objects that the pod shares.
	Shared []netip.Addr
	// PortSecurity drops packets of the pod with a source other than Addresses, Vips and Shared.
	PortSecurity bool
	// NorthGateway are the next hops of the pod's egress traffic, at most one per family.
	NorthGateway []netip.Addr
	// Unknown sends the pod frames for MAC addresses of no port (ovn-nb(5), Logical_Switch_Port.addresses).
	Unknown bool
	// Ingress and Egress limit the traffic to and from the pod by a meter each.
	Ingress, Egress Meter
	// Policy lists the pod sets and groups of policies that the port joins.
	Policy PodPolicy
}

// Meter is a rate in kbit/s with a burst in kbit. The zero value is no meter.
type Meter struct{ Rate, Burst int }

func (in *PodInputs) port() kubeovnv1.Port {
	return kubeovnv1.NewPort(in.Namespace, in.Name, in.Provider)
}

// Pod returns the logical switch port of a pod, with its elements in the address sets of its node and of policies.
func Pod(in PodInputs) []desired.Row {
	id := in.port()
	port := &nb.LogicalSwitchPort{
		Name:        id.Name,
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
	if in.Quiet {
		port.Addresses, port.ExternalIDs[idAddresses] = []string{in.MAC.String()}, ipfamily.Join(in.Addresses)
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
	row := desired.Row{Key: id.Provider, Model: port, Parent: &parent, References: dhcpReferences(in), Elements: egress(in)}
	for _, a := range in.Addresses {
		row.Values = append(row.Values, a.String())
	}
	in.Policy.join(&row, in.Addresses)
	if len(in.NorthGateway) == 0 && len(in.OwnDHCP) == 0 && in.Ingress == (Meter{}) && in.Egress == (Meter{}) {
		return []desired.Row{row}
	}
	return slices.Concat([]desired.Row{row}, ownDHCP(in), north(in), meters(in))
}

// meters are the rules that limit a pod's traffic, one for each limited direction. Their matches name the port: OVN gives equal rules of several switches
// one meter.
func meters(in PodInputs) []desired.Row {
	id, rules := in.port(), desired.SwitchQoS(SwitchRef(in.Subnet))
	var rows []desired.Row
	for _, d := range []struct {
		key, direction, field string
		meter                 Meter
	}{{"ingress/", nb.QoSDirectionToLport, "outport", in.Ingress}, {"egress/", nb.QoSDirectionFromLport, "inport", in.Egress}} {
		if d.meter == (Meter{}) {
			continue
		}
		rows = append(rows, desired.Row{Key: d.key + id.Provider, Parent: &rules, Model: &nb.QoS{
			Priority: priorityLimit, Direction: d.direction, Match: d.field + ` == "` + id.Name + `"`,
			Bandwidth: map[string]int{nb.QoSBandwidthRate: d.meter.Rate, nb.QoSBandwidthBurst: d.meter.Burst},
		}})
	}
	return rows
}

// north are the policies that send a pod's egress traffic to its own next hops.
func north(in PodInputs) []desired.Row {
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	var rows []desired.Row
	for _, hop := range in.NorthGateway {
		for _, address := range in.Addresses {
			if ipfamily.Of(address) != ipfamily.Of(hop) {
				continue
			}
			rows = append(rows, desired.Row{Key: "north/" + ipfamily.Of(hop).String(), Parent: &policies, Model: &nb.LogicalRouterPolicy{
				Priority: priorityNorth, Match: matchIP("src", address, address.String()),
				Action: nb.LogicalRouterPolicyActionReroute, Nexthops: []string{hop.String()},
			}})
		}
	}
	return rows
}

// egress returns the pod's elements in the address sets of its node, whose members leave the VPC through that node. The policy
// of a centralized gateway has a higher priority. Only the default VPC has connected nodes.
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

// portAddress is one value of Logical_Switch_Port.addresses: a MAC address followed by its IP addresses.
func portAddress(mac net.HardwareAddr, addresses []netip.Addr) string {
	parts := make([]string, 0, 1+len(addresses))
	parts = append(parts, mac.String())
	for _, a := range addresses {
		parts = append(parts, a.String())
	}
	return strings.Join(parts, " ")
}

// PortAllocation is the allocation that a northbound port records for its pod or node.
type PortAllocation struct {
	Port   string
	Subnet string
	// UID is the pod's; empty for a node.
	UID       string
	Addresses []netip.Addr
	MAC       net.HardwareAddr
}

// ReadPortAllocation reads the allocation of a port that Pod or Node returned. It returns false if another client changed the port and
// its addresses cannot be parsed.
func ReadPortAllocation(port *nb.LogicalSwitchPort) (PortAllocation, bool) {
	allocation := PortAllocation{Port: port.Name, Subnet: port.ExternalIDs[idSwitch], UID: port.Options[optionPodUID]}
	if len(port.Addresses) == 0 {
		return allocation, false
	}
	fields := strings.Fields(port.Addresses[0])
	if hidden := port.ExternalIDs[idAddresses]; hidden != "" && len(fields) == 1 {
		fields = append(fields, strings.Split(hidden, ",")...)
	}
	if len(fields) < 2 {
		return allocation, false
	}
	mac, err := net.ParseMAC(fields[0])
	if err != nil {
		return allocation, false
	}
	allocation.MAC = mac
	for _, f := range fields[1:] {
		a, err := netip.ParseAddr(f)
		if err != nil {
			return allocation, false
		}
		allocation.Addresses = append(allocation.Addresses, a)
	}
	return allocation, true
}
