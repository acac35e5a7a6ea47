// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VpcDnsSpec defines DNS servers in a custom VPC.
type VpcDnsSpec struct {
	// vpc of the servers.
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// subnet of the servers' addresses.
	// +optional
	Subnet string `json:"subnet,omitempty"`
	// replicas is the number of servers.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// corefile is the name of the ConfigMap with the configuration of CoreDNS.
	// +optional
	// +kubebuilder:default=vpc-dns-corefile
	Corefile string `json:"corefile,omitempty"`
}

// VpcDnsStatus is the observed state of a VpcDns.
type VpcDnsStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// active is true for the VpcDns that serves its VPC; only one does.
	// +optional
	Active bool `json:"active,omitempty"`
}

// VpcDns runs DNS servers in a custom VPC. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=vpc-dnses,singular=vpc-dns,shortName=vpc-dns,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Active",type=boolean,JSONPath=`.status.active`
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="Corefile",type=string,JSONPath=`.spec.corefile`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type VpcDns struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec VpcDnsSpec `json:"spec,omitempty"`
	// +optional
	Status VpcDnsStatus `json:"status,omitempty"`
}

// VpcDnsList is a list of VpcDnses.
// +kubebuilder:object:root=true
type VpcDnsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VpcDns `json:"items"`
}
