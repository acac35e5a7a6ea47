// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Condition types of the network resources.
const (
	// ConditionReady: the current generation of the object is applied in OVN.
	ConditionReady = "Ready"
	// ConditionValidated: the spec is valid. When it is False, the message says what to change.
	ConditionValidated = "Validated"
	// ConditionFieldsSupported is False while the spec uses fields that this version accepts and ignores. The message lists them.
	ConditionFieldsSupported = "FieldsSupported"
	// ConditionNamespacesBound exists on subnets of custom VPCs. It is False while the subnet names namespaces that its VPC does not list.
	ConditionNamespacesBound = "NamespacesBound"
	// ConditionPodsPlaced exists on Subnets and custom VPCs with namespaces. It is False while running pods of these namespaces have addresses of the
	// default subnet, because they were created before.
	ConditionPodsPlaced = "PodsPlaced"
	// ConditionPortsAvailable exists on subnets with more addresses than their switch can have ports. It is False while the switch has all
	// its ports: new pods wait.
	ConditionPortsAvailable = "PortsAvailable"
	// ConditionGatewayReady: a gateway node forwards the traffic of a subnet with a centralized gateway. Other subnets have the condition
	// only while their policyRoutingTableID conflicts with another subnet.
	ConditionGatewayReady = "GatewayReady"
	// ConditionGatewayAnswers exists on underlay subnets whose gateway is checked. It is False while a node reports that the gateway has not
	// answered its pods, which then wait.
	ConditionGatewayAnswers = "GatewayAnswers"
	// ConditionTransitReady exists on custom VPCs with clusterAccess Services: a node forwards the traffic of their pods to Services and to
	// destinations outside.
	ConditionTransitReady = "TransitReady"
	// ConditionExternalReady exists on VPCs with enableExternal or extraExternalSubnets: the router has a port in each of these subnets.
	ConditionExternalReady = "ExternalReady"
	// ConditionBFDUp exists on VPCs with BFD sessions between their external ports and routers of the physical network: all of them are up.
	ConditionBFDUp = "BFDUp"
	// ConditionAnnounced exists on EgressAddresses with the annotation AnnotationBGP: the node that has the addresses announces them.
	ConditionAnnounced = "Announced"
	// ConditionEndpointsChecked exists on SwitchLBRules and RouterLBRules whose health checks are not turned off: OVN checks every endpoint
	// and skips unhealthy ones.
	ConditionEndpointsChecked = "EndpointsChecked"
	// ConditionAddressAssigned exists on Services of type LoadBalancer with a class of OVNCluster.spec.services.loadBalancerPools. It is False while a
	// Service has no address of its pool, or keeps one that the pool would not assign.
	ConditionAddressAssigned = "kubeovn.io/AddressAssigned"
)

// Reasons of conditions. The package validation has more, for problems of a spec.
const (
	// ReasonApplied: the rows are committed to the northbound database.
	ReasonApplied = "Applied"
	// ReasonWaiting: an object that this object refers to does not exist yet. The message names it.
	ReasonWaiting = "Waiting"
	// ReasonFailed: an operation failed and is retried. The message holds the error.
	ReasonFailed = "Failed"
	// ReasonInvalid: the spec is invalid. There is no retry until it changes.
	ReasonInvalid = "Invalid"
	// ReasonIgnored: the OVNCluster says that another component applies the object.
	ReasonIgnored = "Ignored"
	// ReasonNotImplemented: this version has no controller for the kind.
	ReasonNotImplemented = "NotImplemented"
	// ReasonValid: the spec is valid.
	ReasonValid = "Valid"
	// ReasonPlaced: no pod of the namespaces is in the default subnet.
	ReasonPlaced = "Placed"
	// ReasonNamespacesMissing: the object lists namespaces that do not exist.
	ReasonNamespacesMissing = "NamespacesMissing"
	// ReasonPodsElsewhere: pods of the namespaces are in the default subnet.
	ReasonPodsElsewhere = "PodsElsewhere"
	// ReasonPortsAvailable: the switch of a subnet can have further ports.
	ReasonPortsAvailable = "PortsAvailable"
	// ReasonSwitchFull: the switch of a subnet has all the ports that it can have.
	ReasonSwitchFull = "SwitchFull"
	// ReasonGatewayAnswers: no node reports that the gateway has not answered.
	ReasonGatewayAnswers = "GatewayAnswers"
	// ReasonGatewayNotAnswering: pods on some nodes wait for an answer of the gateway.
	ReasonGatewayNotAnswering = "GatewayNotAnswering"
	// ReasonFieldsIgnored: the spec sets fields that have no effect in this version.
	ReasonFieldsIgnored = "FieldsIgnored"
	// ReasonAllInForce: every field that is set has its effect.
	ReasonAllInForce = "AllInForce"
)

// Reasons of events on pods, which agents report.
const (
	// ReasonPortRestored: the port of a running pod was missing in Open vSwitch, and was added again.
	ReasonPortRestored = "PortRestored"
	// ReasonLimitNotEnforced: the kernel of the pod's node does not enforce a limit of the pod.
	ReasonLimitNotEnforced = "LimitNotEnforced"
	// ReasonPortMissing: the port of a running pod is missing in Open vSwitch, and cannot be added again.
	ReasonPortMissing = "PortMissing"
)

// ConditionsOf returns the conditions of an object itself, without the conditions of nodes, or nil for a kind without conditions.
func ConditionsOf(object runtime.Object) (conditions []metav1.Condition) {
	if network, is := object.(*ProviderNetwork); is {
		return network.Status.OwnConditions()
	}
	if status := reflect.ValueOf(object).Elem().FieldByName("Status"); status.IsValid() {
		if field := status.FieldByName("Conditions"); field.IsValid() {
			conditions, _ = field.Interface().([]metav1.Condition)
		}
	}
	return conditions
}
