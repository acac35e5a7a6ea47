// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TrafficMirrorType is the encapsulation of copies.
// +kubebuilder:validation:Enum=gre;erspan
type TrafficMirrorType string

// Values of TrafficMirrorType.
const (
	TrafficMirrorGRE    TrafficMirrorType = "gre"
	TrafficMirrorERSPAN TrafficMirrorType = "erspan"
)

// TrafficMirrorDirection defines which packets are copied, as the pods see them.
// +kubebuilder:validation:Enum=To;From;Both
type TrafficMirrorDirection string

// Values of TrafficMirrorDirection.
const (
	TrafficMirrorTo   TrafficMirrorDirection = "To"
	TrafficMirrorFrom TrafficMirrorDirection = "From"
	TrafficMirrorBoth TrafficMirrorDirection = "Both"
)

// TrafficMirrorSpec selects pods and a collector.
// +kubebuilder:validation:XValidation:rule="self.type != 'erspan' || self.key <= 1023",message="key: ERSPAN has 10 bits for it: write a number up to 1023"
// +kubebuilder:validation:XValidation:rule="has(self.vpc) || has(self.namespaceSelector) || has(self.podSelector)",message="write vpc, namespaceSelector or podSelector; podSelector: {} selects all pods of the cluster"
type TrafficMirrorSpec struct {
	// type is the encapsulation: gre, or erspan (version 1, type II). The address of sink decides the family of the outer packets.
	// +optional
	// +kubebuilder:default=gre
	Type TrafficMirrorType `json:"type,omitempty"`
	// sink is the address of the collector. Nodes send copies to it from the address that their route to it selects, outside of the network of
	// pods.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).isGlobalUnicast()",message="must be an IPv4 or IPv6 address that nodes can route packets to: not a loopback, link-local, multicast or unspecified one"
	Sink string `json:"sink"`
	// key is in each copy: the key of GRE, or the session and the index of ERSPAN, which has 10 bits. Two TrafficMirrors with the same type and sink need different
	// keys.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	Key int64 `json:"key"`
	// direction is To (packets to the pods), From (packets from the pods) or Both.
	// +optional
	// +kubebuilder:default=Both
	Direction TrafficMirrorDirection `json:"direction,omitempty"`
	// vpc limits the selection to pods in this VPC. By default pods of all VPCs are selected.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Vpc string `json:"vpc,omitempty"`
	// namespaceSelector selects namespaces by their labels. By default, and when it is empty, all namespaces are selected.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// podSelector selects pods of these namespaces by their labels. By default, and when it is empty, all pods are selected.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
}

// TrafficMirrorStatus is the observed state of a TrafficMirror.
type TrafficMirrorStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// ports is the number of ports of pods whose packets are copied.
	// +optional
	// +kubebuilder:default=0
	Ports int32 `json:"ports"`
	// nodes is the number of nodes with such ports.
	// +optional
	// +kubebuilder:default=0
	Nodes int32 `json:"nodes"`
	// validatedSpec is the last spec that was found valid. It is applied while the current spec is invalid or not validated yet.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *TrafficMirrorSpec `json:"validatedSpec,omitempty"`
}

// TrafficMirror copies packets of selected pods to a collector outside, in GRE or ERSPAN. Kube-OVN has no such kind.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=traffic-mirrors,singular=traffic-mirror,shortName=tmirror,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Sink",type=string,JSONPath=`.spec.sink`
// +kubebuilder:printcolumn:name="Key",type=integer,JSONPath=`.spec.key`
// +kubebuilder:printcolumn:name="Direction",type=string,JSONPath=`.spec.direction`
// +kubebuilder:printcolumn:name="Ports",type=integer,JSONPath=`.status.ports`
// +kubebuilder:printcolumn:name="Nodes",type=integer,priority=1,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type TrafficMirror struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec TrafficMirrorSpec `json:"spec"`
	// +optional
	Status TrafficMirrorStatus `json:"status,omitempty"`
}

// TrafficMirrorList is a list of TrafficMirrors.
// +kubebuilder:object:root=true
type TrafficMirrorList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TrafficMirror `json:"items"`
}
