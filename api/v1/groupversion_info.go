// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1 holds the network resources (Vpc, Subnet, IP and others) and typed forms of the annotations of pods and nodes. JSON names,
// enums, defaults and columns match the API kubeovn.io/v1 of Kube-OVN, so that its manifests apply unchanged.
// +kubebuilder:object:generate=true
// +groupName=kubeovn.io
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "kubeovn.io", Version: "v1"}

// AddToScheme adds the types of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Vpc{}, &VpcList{}, &Subnet{}, &SubnetList{}, &IP{}, &IPList{}, &IPPool{}, &IPPoolList{}, &Vip{}, &VipList{},
		&SecurityGroup{}, &SecurityGroupList{})
	s.AddKnownTypes(GroupVersion, &SwitchLBRule{}, &SwitchLBRuleList{}, &RouterLBRule{}, &RouterLBRuleList{}, &OvnEip{}, &OvnEipList{})
	s.AddKnownTypes(GroupVersion, &ProviderNetwork{}, &ProviderNetworkList{}, &Vlan{}, &VlanList{}, &QoSPolicy{}, &QoSPolicyList{}, &VpcDns{}, &VpcDnsList{},
		&DNSNameResolver{}, &DNSNameResolverList{}, &BgpConf{}, &BgpConfList{}, &EvpnConf{}, &EvpnConfList{})
	s.AddKnownTypes(GroupVersion, &VpcNatGateway{}, &VpcNatGatewayList{}, &VpcEgressGateway{}, &VpcEgressGatewayList{}, &IptablesEIP{}, &IptablesEIPList{},
		&IptablesFIPRule{}, &IptablesFIPRuleList{}, &IptablesDnatRule{}, &IptablesDnatRuleList{}, &IptablesSnatRule{}, &IptablesSnatRuleList{})
	s.AddKnownTypes(GroupVersion, &OvnFip{}, &OvnFipList{}, &OvnSnatRule{}, &OvnSnatRuleList{}, &OvnDnatRule{}, &OvnDnatRuleList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
