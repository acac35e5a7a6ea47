// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPPoolSpec sets addresses of a subnet apart for some pods.
type IPPoolSpec struct {
	// subnet the addresses are of.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="subnet cannot change: create another IPPool"
	Subnet string `json:"subnet"`
	// namespaces whose pods get addresses of this pool, and of no other part of the subnet.
	// +optional
	// +listType=set
	Namespaces []string `json:"namespaces,omitempty"`
	// allowedNamespaces are more namespaces whose pods may name the pool, or addresses of it, when namespaces is not empty. `*` is every
	// namespace. A pool without namespaces is for every pod that may use its subnet.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	AllowedNamespaces []AllowedNamespace `json:"allowedNamespaces,omitempty"`
	// ips are addresses, ranges `a..b` and CIDRs. What the subnet excludes is of no pool.
	// +kubebuilder:validation:MinItems=1
	// +listType=set
	IPs []string `json:"ips"`
	// enableAddressSet publishes the addresses as an OVN address set for the matches of ACLs and policies. Its name is that of the pool,
	// with dots for dashes.
	// +optional
	// +kubebuilder:default=false
	EnableAddressSet bool `json:"enableAddressSet,omitempty"`
}

// IPPoolStatus is what the controller sees of a pool. Counts past 2^53 are rounded.
type IPPoolStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	V4AvailableIPs float64 `json:"v4AvailableIPs"`
	// v4AvailableIPRange lists addresses and ranges in the form `10.16.0.2-10.16.0.9`, with commas between them.
	// +optional
	V4AvailableIPRange string `json:"v4AvailableIPRange"`
	// +optional
	V4UsingIPs float64 `json:"v4UsingIPs"`
	// +optional
	V4UsingIPRange string `json:"v4UsingIPRange"`
	// +optional
	V6AvailableIPs float64 `json:"v6AvailableIPs"`
	// +optional
	V6AvailableIPRange string `json:"v6AvailableIPRange"`
	// +optional
	V6UsingIPs float64 `json:"v6UsingIPs"`
	// +optional
	V6UsingIPRange string `json:"v6UsingIPRange"`
}

// IPPool sets addresses of a subnet apart, for pods of some namespaces and for those that name it.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=ippools,singular=ippool,shortName=ippool
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="enableAddressSet",type=boolean,JSONPath=`.spec.enableAddressSet`
// +kubebuilder:printcolumn:name="IPs",type=string,JSONPath=`.spec.ips`
// +kubebuilder:printcolumn:name="V4Used",type=number,JSONPath=`.status.v4UsingIPs`
// +kubebuilder:printcolumn:name="V4Available",type=number,JSONPath=`.status.v4AvailableIPs`
// +kubebuilder:printcolumn:name="V6Used",type=number,JSONPath=`.status.v6UsingIPs`
// +kubebuilder:printcolumn:name="V6Available",type=number,JSONPath=`.status.v6AvailableIPs`
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
