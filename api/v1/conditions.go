// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// Condition types of the network resources.
const (
	// ConditionReady: the object is in force in OVN.
	ConditionReady = "Ready"
	// ConditionValidated: the spec holds nothing wrong. When it is False the message says what to change.
	ConditionValidated = "Validated"
	// ConditionFieldsSupported is False while the spec uses fields that this version takes and does not act on; the message names them.
	ConditionFieldsSupported = "FieldsSupported"
	// ConditionNamespacesBound, of subnets of custom VPCs, is False while the subnet names namespaces that its VPC does not list.
	ConditionNamespacesBound = "NamespacesBound"
	// ConditionGatewayReady: a gateway node carries the subnet's traffic. Subnets whose traffic leaves by the pods' own nodes lack it,
	// unless something is wrong with how it leaves.
	ConditionGatewayReady = "GatewayReady"
	// ConditionTransitReady, of custom VPCs: a node carries what the VPC's pods send to Services and the outside. VPCs that are kept apart
	// from the cluster lack it.
	ConditionTransitReady = "TransitReady"
	// ConditionEndpointsChecked, of SwitchLBRules and RouterLBRules: OVN checks every endpoint and leaves out those that do not answer. Rules whose checks are
	// turned off lack it.
	ConditionEndpointsChecked = "EndpointsChecked"
)

// Reasons of conditions, beside those of the checks of a spec.
const (
	// ReasonApplied: the rows are committed to the northbound database.
	ReasonApplied = "Applied"
	// ReasonWaiting: something that the object refers to is not there yet; the message names it.
	ReasonWaiting = "Waiting"
	// ReasonFailed: an operation failed and is tried again; the message holds the error.
	ReasonFailed = "Failed"
	// ReasonInvalid: the spec is wrong; nothing is tried again until it changes.
	ReasonInvalid = "Invalid"
	// ReasonValid: the spec holds nothing wrong.
	ReasonValid = "Valid"
	// ReasonFieldsIgnored: fields are set that have no effect in this version.
	ReasonFieldsIgnored = "FieldsIgnored"
	// ReasonAllInForce: every field that is set has its effect.
	ReasonAllInForce = "AllInForce"
)
