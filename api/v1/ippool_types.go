// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPPoolSpec defines a part of a subnet's addresses that is reserved for some pods.
type IPPoolSpec struct {
	// subnet of the addresses.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="subnet cannot change: create another IPPool",messageExpression=`'subnet cannot change from ' + oldSelf + ' to ' + self + ': create another IPPool'`
	Subnet string `json:"subnet"`
	// namespaces whose pods get addresses from this pool, and from no other part of the subnet.
	// +optional
	// +listType=set
	Namespaces []string `json:"namespaces,omitempty"`
	// allowedNamespaces are additional namespaces whose pods may name the pool or addresses of it, if namespaces is not empty. `*` is every
	// namespace. If namespaces is empty, every pod that may use the subnet may name the pool.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	AllowedNamespaces []AllowedNamespace `json:"allowedNamespaces,omitempty"`
	// ips are addresses, ranges `a..b` and CIDRs of the subnet. Addresses in excludeIps of the subnet are not part of the pool.
	// +kubebuilder:validation:MinItems=1
	// +listType=set
	IPs []string `json:"ips"`
	// enableAddressSet publishes the addresses as an OVN address set, for use in the matches of ACLs and policies. The name of the set is
	// the name of the pool with each dash replaced by a dot.
	// +optional
	// +kubebuilder:default=false
	EnableAddressSet bool `json:"enableAddressSet,omitempty"`
}

// IPPoolStatus is the observed state of an IPPool. Counts above 2^53 are rounded.
type IPPoolStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	// +kubebuilder:default=0
	V4AvailableIPs float64 `json:"v4AvailableIPs"`
	// v4AvailableIPRange lists addresses and ranges in the form `10.16.0.2-10.16.0.9`, separated by commas.
	// +optional
	V4AvailableIPRange string `json:"v4AvailableIPRange"`
	// +optional
	// +kubebuilder:default=0
	V4UsingIPs float64 `json:"v4UsingIPs"`
	// +optional
	V4UsingIPRange string `json:"v4UsingIPRange"`
	// +optional
	// +kubebuilder:default=0
	V6AvailableIPs float64 `json:"v6AvailableIPs"`
	// +optional
	V6AvailableIPRange string `json:"v6AvailableIPRange"`
	// +optional
	// +kubebuilder:default=0
	V6UsingIPs float64 `json:"v6UsingIPs"`
	// +optional
	V6UsingIPRange string `json:"v6UsingIPRange"`
	// validatedSpec is the last spec that was found valid. It is applied while the current spec is invalid or not validated yet.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *IPPoolSpec `json:"validatedSpec,omitempty"`
}

// IPPool reserves addresses of a subnet for the pods of some namespaces and for pods that name the pool.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=ippools,singular=ippool,shortName=ippool,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="enableAddressSet",type=boolean,priority=1,JSONPath=`.spec.enableAddressSet`
// +kubebuilder:printcolumn:name="IPs",type=string,JSONPath=`.spec.ips`
// +kubebuilder:printcolumn:name="V4Used",type=number,JSONPath=`.status.v4UsingIPs`
// +kubebuilder:printcolumn:name="V4Available",type=number,JSONPath=`.status.v4AvailableIPs`
// +kubebuilder:printcolumn:name="V6Used",type=number,JSONPath=`.status.v6UsingIPs`
// +kubebuilder:printcolumn:name="V6Available",type=number,JSONPath=`.status.v6AvailableIPs`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPPoolSpec `json:"spec"`
	// +optional
	Status IPPoolStatus `json:"status,omitempty"`
}

// IPPoolList is a list of IPPools.
// +kubebuilder:object:root=true
type IPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPPool `json:"items"`
}
