// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// field is a field of a spec. used is true if the spec sets it.
type field struct {
	name string
	used bool
}

func used(fields []field) []string {
	var names []string
	for _, f := range fields {
		if f.used {
			names = append(names, f.name)
		}
	}
	return names
}

// Unbuilt returns a problem if the spec of a subnet requests a kind of network that this version cannot build. An overlay network instead would be
// wrong, so nothing is built from such a spec, and it takes no addresses from other subnets.
func Unbuilt(spec *kubeovnv1.SubnetSpec) *Problem {
	fields := UnbuiltSubnetFields(spec)
	if len(fields) == 0 {
		return nil
	}
	return Problemf(kubeovnv1.ReasonFieldsIgnored, "this version builds no subnet with %s", strings.Join(fields, ", "))
}

// UnbuiltSubnetFields returns the set fields that request a kind of network that this version cannot build.
func UnbuiltSubnetFields(spec *kubeovnv1.SubnetSpec) []string {
	return used([]field{
		{"provider", spec.Provider != "" && spec.Provider != kubeovnv1.ProviderOVN},
		{"vlan without cidrBlock (protocol Mac)", spec.Vlan != "" && spec.CIDRBlock == ""},
	})
}

// IgnoredSubnetFields returns the set fields of a subnet that this version accepts and ignores.
func IgnoredSubnetFields(name string, spec *kubeovnv1.SubnetSpec) []string {
	custom := spec.Vpc != "" && spec.Vpc != kubeovnv1.DefaultVpc
	return append(used([]field{
		{"gatewayType centralized in VPC " + spec.Vpc, custom && spec.GatewayType == kubeovnv1.GatewayCentralized},
		{"externalEgressGateway in VPC " + spec.Vpc, custom && spec.ExternalEgressGateway != ""},
		{"gatewayNodeSelectors beside gatewayNode", spec.GatewayNode != "" && len(spec.GatewayNodeSelectors) > 0},
		{"natOutgoingPolicyRules without natOutgoing", !spec.NATOutgoing && len(spec.NATOutgoingPolicyRules) > 0},
		{"natOutgoing with vlan", spec.PhysicalGateway() && spec.NATOutgoing},
		{"gatewayType centralized with vlan", spec.PhysicalGateway() && !custom && spec.GatewayType == kubeovnv1.GatewayCentralized},
		{"externalEgressGateway with vlan", spec.PhysicalGateway() && !custom && spec.ExternalEgressGateway != ""},
		{"routeTable with vlan", spec.Vlan != "" && spec.RouteTable != ""},
		{"enableIPv6RA with vlan", spec.Vlan != "" && spec.EnableIPv6RA},
		{"logicalGateway without vlan", spec.LogicalGateway && spec.Vlan == ""},
		{"u2oInterconnection without vlan", spec.U2OInterconnection && spec.Vlan == ""},
		{"u2oInterconnectionIP without u2oInterconnection", spec.U2OInterconnectionIP != "" && !spec.U2OInterconnection},
		{"u2oFeatures without u2oInterconnection", spec.U2OFeatures != nil && spec.U2OFeatures.OverlayOnlyRouting && !spec.U2OInterconnection},
		{"enableExternalLBAddress", spec.EnableExternalLBAddress},
		{"disableInterConnection", spec.DisableInterConnection && name != kubeovnv1.JoinSubnet}, // Kube-OVN sets it on every `join`
		{"nodeNetwork", spec.NodeNetwork != ""},
	}), ineffectiveNATRules(spec)...)
}

// IgnoredVpcFields returns the set fields that this version accepts and ignores.
func IgnoredVpcFields(spec *kubeovnv1.VpcSpec) []string {
	return used([]field{
		{"staticRoutes.ecmpMode", slices.ContainsFunc(spec.StaticRoutes, func(r *kubeovnv1.StaticRoute) bool { return r.ECMPMode != "" })},
		{"enableBfd without an external subnet", spec.EnableBfd && len(spec.ExternalSubnets()) == 0},
		{"bfdPort (OVN runs BFD on external ports of the router only: use enableBfd)", spec.BFDPort != nil && spec.BFDPort.Enabled},
	})
}

// UnmonitoredRoutes names the bfdId of static routes whose next hops are in no external subnet of the VPC, which has no effect; "" for no routes.
func UnmonitoredRoutes(routes []StaticRoute) string {
	if len(routes) == 0 {
		return ""
	}
	more := ""
	if len(routes) > 1 {
		more = fmt.Sprintf(" and of %d more", len(routes)-1)
	}
	return fmt.Sprintf("bfdId of staticRoutes[%d]%s (next hop %s is in no external subnet of the VPC, and OVN runs BFD there only)", routes[0].Index, more, routes[0].NextHop)
}

// IgnoredProviderNetworkFields returns the set fields that this version accepts and ignores.
func IgnoredProviderNetworkFields(spec *kubeovnv1.ProviderNetworkSpec) []string {
	return used([]field{{"exchangeLinkName", spec.ExchangeLinkName}})
}
