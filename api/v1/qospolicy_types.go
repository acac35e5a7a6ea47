// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// QoSPolicySpec defines limits of bandwidth.
type QoSPolicySpec struct {
	// bandwidthLimitRules of the policy.
	// +optional
	BandwidthLimitRules []BandwidthLimitRule `json:"bandwidthLimitRules,omitempty"`
	// bindingType is EIP or NATGW: what the policy applies to.
	// +optional
	BindingType string `json:"bindingType,omitempty"`
	// shared allows more than one user of the policy.
	// +optional
	Shared bool `json:"shared,omitempty"`
}

// BandwidthLimitRule limits the bandwidth of matching packets.
type BandwidthLimitRule struct {
	// name of the rule.
	Name string `json:"name"`
	// interface of the gateway, for example net1.
	// +optional
	Interface string `json:"interface,omitempty"`
	// rateMax is the highest rate in Mbit/s.
	// +optional
	RateMax string `json:"rateMax,omitempty"`
	// burstMax is the highest burst in Mbit.
	// +optional
	BurstMax string `json:"burstMax,omitempty"`
	// priority of the rule. Rules with a lower number are evaluated first.
	// +optional
	Priority int `json:"priority,omitempty"`
	// direction is ingress or egress.
	// +optional
	Direction string `json:"direction,omitempty"`
	// matchType is ip, or empty to match every packet.
	// +optional
	MatchType string `json:"matchType,omitempty"`
	// matchValue is `src` or `dst` and a CIDR, for example `src 10.0.0.0/24`.
	// +optional
	MatchValue string `json:"matchValue,omitempty"`
}

// QoSPolicyStatus is the observed state of a QoSPolicy.
type QoSPolicyStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	BandwidthLimitRules []BandwidthLimitRule `json:"bandwidthLimitRules,omitempty"`
	// +optional
	BindingType string `json:"bindingType,omitempty"`
	// +optional
	Shared bool `json:"shared,omitempty"`
}

// QoSPolicy limits the bandwidth of IptablesEIPs and VpcNatGateways. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=qos-policies,singular=qos-policy,shortName=qos,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Shared",type=string,JSONPath=`.spec.shared`
// +kubebuilder:printcolumn:name="BindingType",type=string,JSONPath=`.spec.bindingType`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type QoSPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec QoSPolicySpec `json:"spec,omitempty"`
	// +optional
	Status QoSPolicyStatus `json:"status,omitempty"`
}

// QoSPolicyList is a list of QoSPolicies.
// +kubebuilder:object:root=true
type QoSPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []QoSPolicy `json:"items"`
}
