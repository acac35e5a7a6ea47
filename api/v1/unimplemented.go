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
	{"QoSPolicy", "qos-policies", false},
	{"VpcDns", "vpc-dnses", false},
	{"VpcEgressGateway", "vpc-egress-gateways", true},
	{"VpcNatGateway", "vpc-nat-gateways", true},
}

// UnimplementedField is a field of a spec that has no effect in this version, whatever the other fields are. internal/validation lists fields
// that have no effect together with others.
// +kubebuilder:object:generate=false
type UnimplementedField struct {
	Kind, Field string
	// None is the value that requests nothing, as a literal of CEL.
	None string
	// Except is the name of an object in which Kube-OVN itself sets the field. Nothing is missing there. Empty for most fields.
	Except string
}

// UnimplementedFields are all such fields of kinds with a controller.
var UnimplementedFields = []UnimplementedField{
	{"Subnet", "nodeNetwork", "''", ""},
	{"Subnet", "enableExternalLBAddress", "false", ""},
	{"Subnet", "disableInterConnection", "false", JoinSubnet},
	{"ProviderNetwork", "exchangeLinkName", "false", ""},
	{"Vpc", "enableExternal", "false", ""},
	{"Vpc", "extraExternalSubnets", "[]", ""},
	{"Vpc", "enableBfd", "false", ""},
	{"Vip", "attachSubnets", "[]", ""},
	{"IP", "attachSubnets", "[]", ""},
	{"IP", "attachIps", "[]", ""},
	{"IP", "attachMacs", "[]", ""},
	{"IP", "containerID", "''", ""},
}
