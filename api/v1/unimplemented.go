// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// UnimplementedKind is a kind of kubeovn.io/v1 that has a CRD, but no controller in this version.
type UnimplementedKind struct {
	Kind, Resource string
	// StatusReady is true if the status has a field ready.
	StatusReady bool
}

// UnimplementedKinds are all kinds without a controller. Remove a kind from this list when it gets its controller, and the sentence in the
// comment of its type.
var UnimplementedKinds = []UnimplementedKind{
	{"BgpConf", "bgp-confs", false},
	{"DNSNameResolver", "dnsnameresolvers", false},
	{"EvpnConf", "evpn-confs", false},
	{"IptablesDnatRule", "iptables-dnat-rules", true},
	{"IptablesEIP", "iptables-eips", true},
	{"IptablesFIPRule", "iptables-fip-rules", true},
	{"IptablesSnatRule", "iptables-snat-rules", true},
	{"OvnDnatRule", "ovn-dnat-rules", true},
	{"OvnFip", "ovn-fips", true},
	{"OvnSnatRule", "ovn-snat-rules", true},
	{"ProviderNetwork", "provider-networks", true},
	{"QoSPolicy", "qos-policies", false},
	{"Vlan", "vlans", false},
	{"VpcDns", "vpc-dnses", false},
	{"VpcEgressGateway", "vpc-egress-gateways", true},
	{"VpcNatGateway", "vpc-nat-gateways", true},
}
