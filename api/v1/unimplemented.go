// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

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
	{"Vip", "attachSubnets", "[]", ""},
	{"IP", "attachSubnets", "[]", ""},
	{"IP", "attachIps", "[]", ""},
	{"IP", "attachMacs", "[]", ""},
	{"IP", "containerID", "''", ""},
}
