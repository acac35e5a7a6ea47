// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// Kind is a kind of kubeovn.io/v1.
// +kubebuilder:object:generate=false
type Kind struct {
	Kind, Resource string
	// Object and List are empty values of its types, to be copied.
	Object, List runtime.Object
	Namespaced   bool
	// Implemented is true if the kind has a controller. Objects of other kinds get the condition Ready=False with the reason NotImplemented.
	Implemented bool
	// ControllerWrites are verbs of kube-ovn-controller in addition to reading. With patch, it changes finalizers: its own and Kube-OVN's.
	ControllerWrites []string
	// WritesSpecs is true if kube-ovn-controller writes specs. An admission policy limits its changes of other kinds to finalizers and the status.
	WritesSpecs bool
	// WritesLabels is true if kube-ovn-controller writes labels and annotations, by which users of Kube-OVN select objects.
	WritesLabels bool
	// StatusReady is true if the status has a field ready.
	StatusReady bool
	// NAT is true if objects translate between an address of an OvnEip and addresses of a VPC.
	NAT bool
	// Own is true if Kube-OVN has no such kind.
	Own bool
}

var patch = []string{"patch"}

// Kinds are all kinds of kubeovn.io/v1. Lists of kinds are derived from this table: in Go when a process starts, in YAML files and pages by
// `go test ./api/v1 -update`. The table's order is the order of the kinds in roles and policies.
var Kinds = []*Kind{
	{Kind: "Vpc", Resource: "vpcs", Object: &Vpc{}, List: &VpcList{}, Implemented: true, ControllerWrites: []string{"create", "patch"}},
	{Kind: "Subnet", Resource: "subnets", Object: &Subnet{}, List: &SubnetList{}, Implemented: true, ControllerWrites: []string{"create", "patch"}, WritesSpecs: true},
	{Kind: "IP", Resource: "ips", Object: &IP{}, List: &IPList{}, Implemented: true, ControllerWrites: []string{"create", "patch", "delete"}, WritesSpecs: true},
	{Kind: "Vip", Resource: "vips", Object: &Vip{}, List: &VipList{}, Implemented: true, ControllerWrites: []string{"create", "patch", "delete"}, WritesSpecs: true},
	{Kind: "IPPool", Resource: "ippools", Object: &IPPool{}, List: &IPPoolList{}, Implemented: true, ControllerWrites: patch},
	{Kind: "OvnEip", Resource: "ovn-eips", Object: &OvnEip{}, List: &OvnEipList{}, Implemented: true, ControllerWrites: []string{"create", "patch", "delete"}, WritesLabels: true, StatusReady: true},
	{Kind: "SecurityGroup", Resource: "security-groups", Object: &SecurityGroup{}, List: &SecurityGroupList{}, Implemented: true},
	{Kind: "SwitchLBRule", Resource: "switch-lb-rules", Object: &SwitchLBRule{}, List: &SwitchLBRuleList{}, Implemented: true},
	{Kind: "RouterLBRule", Resource: "router-lb-rules", Object: &RouterLBRule{}, List: &RouterLBRuleList{}, Implemented: true},
	{Kind: "TrafficMirror", Resource: "traffic-mirrors", Object: &TrafficMirror{}, List: &TrafficMirrorList{}, Implemented: true, Own: true},
	{Kind: "EgressAddress", Resource: "egress-addresses", Object: &EgressAddress{}, List: &EgressAddressList{}, Implemented: true, Own: true},
	{Kind: "ProviderNetwork", Resource: "provider-networks", Object: &ProviderNetwork{}, List: &ProviderNetworkList{}, Implemented: true, ControllerWrites: patch, StatusReady: true},
	{Kind: "Vlan", Resource: "vlans", Object: &Vlan{}, List: &VlanList{}, Implemented: true, ControllerWrites: patch},
	{Kind: "BgpConf", Resource: "bgp-confs", Object: &BgpConf{}, List: &BgpConfList{}, ControllerWrites: patch},
	{Kind: "DNSNameResolver", Resource: "dnsnameresolvers", Object: &DNSNameResolver{}, List: &DNSNameResolverList{}, ControllerWrites: patch},
	{Kind: "EvpnConf", Resource: "evpn-confs", Object: &EvpnConf{}, List: &EvpnConfList{}, ControllerWrites: patch},
	{Kind: "IptablesDnatRule", Resource: "iptables-dnat-rules", Object: &IptablesDnatRule{}, List: &IptablesDnatRuleList{}, ControllerWrites: patch, StatusReady: true},
	{Kind: "IptablesEIP", Resource: "iptables-eips", Object: &IptablesEIP{}, List: &IptablesEIPList{}, ControllerWrites: patch, StatusReady: true},
	{Kind: "IptablesFIPRule", Resource: "iptables-fip-rules", Object: &IptablesFIPRule{}, List: &IptablesFIPRuleList{}, ControllerWrites: patch, StatusReady: true},
	{Kind: "IptablesSnatRule", Resource: "iptables-snat-rules", Object: &IptablesSnatRule{}, List: &IptablesSnatRuleList{}, ControllerWrites: patch, StatusReady: true},
	{Kind: "OvnDnatRule", Resource: "ovn-dnat-rules", Object: &OvnDnatRule{}, List: &OvnDnatRuleList{}, Implemented: true, ControllerWrites: patch, WritesLabels: true, StatusReady: true, NAT: true},
	{Kind: "OvnFip", Resource: "ovn-fips", Object: &OvnFip{}, List: &OvnFipList{}, Implemented: true, ControllerWrites: []string{"create", "patch", "delete"}, WritesLabels: true, StatusReady: true, NAT: true},
	{Kind: "OvnSnatRule", Resource: "ovn-snat-rules", Object: &OvnSnatRule{}, List: &OvnSnatRuleList{}, Implemented: true, ControllerWrites: []string{"create", "patch", "delete"}, WritesLabels: true, StatusReady: true, NAT: true},
	{Kind: "QoSPolicy", Resource: "qos-policies", Object: &QoSPolicy{}, List: &QoSPolicyList{}, ControllerWrites: patch},
	{Kind: "VpcDns", Resource: "vpc-dnses", Object: &VpcDns{}, List: &VpcDnsList{}, ControllerWrites: patch},
	{Kind: "VpcEgressGateway", Resource: "vpc-egress-gateways", Object: &VpcEgressGateway{}, List: &VpcEgressGatewayList{}, Namespaced: true, ControllerWrites: patch, StatusReady: true},
	{Kind: "VpcNatGateway", Resource: "vpc-nat-gateways", Object: &VpcNatGateway{}, List: &VpcNatGatewayList{}, ControllerWrites: patch, StatusReady: true},
}

// ImplementedKinds are the kinds with a controller, UnimplementedKinds the others. NATKinds are the kinds of rules that translate addresses.
var (
	ImplementedKinds   = slices.DeleteFunc(slices.Clone(Kinds), func(k *Kind) bool { return !k.Implemented })
	UnimplementedKinds = slices.DeleteFunc(slices.Clone(Kinds), func(k *Kind) bool { return k.Implemented })
	NATKinds           = slices.DeleteFunc(slices.Clone(Kinds), func(k *Kind) bool { return !k.NAT })
)

// Resources returns the resources of the kinds for which a function returns true, each with a suffix.
func Resources(suffix string, of func(*Kind) bool) (resources []string) {
	for _, k := range Kinds {
		if of(k) {
			resources = append(resources, k.Resource+suffix)
		}
	}
	return resources
}
