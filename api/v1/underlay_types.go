// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// InterfaceName is the name of a network interface of a node.
// +kubebuilder:validation:MaxLength=15
// +kubebuilder:validation:Pattern=`^[^/\s]+$`
type InterfaceName string

// ProviderNetworkSpec defines a physical network and the interfaces of nodes that connect to it.
type ProviderNetworkSpec struct {
	// defaultInterface is the interface of every node that customInterfaces does not list.
	DefaultInterface InterfaceName `json:"defaultInterface"`
	// customInterfaces are the interfaces of nodes whose interface has another name.
	// +optional
	CustomInterfaces []CustomInterface `json:"customInterfaces,omitempty"`
	// excludeNodes are the names of nodes that do not connect to the network.
	// +optional
	ExcludeNodes []string `json:"excludeNodes,omitempty"`
	// nodeSelector selects the nodes that connect to the network. All nodes when empty.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// exchangeLinkName gives the bridge the name of the interface, and the interface the name of the bridge.
	// +optional
	ExchangeLinkName bool `json:"exchangeLinkName,omitempty"`
	// autoCreateVlanSubinterfaces creates missing VLAN interfaces such as `eth0.10` on nodes.
	// +optional
	AutoCreateVlanSubinterfaces bool `json:"autoCreateVlanSubinterfaces,omitempty"`
	// preserveVlanInterfaces keeps the VLAN interfaces that the node has on the interface.
	// +optional
	PreserveVlanInterfaces bool `json:"preserveVlanInterfaces,omitempty"`
	// vlanInterfaces are the names of the VLAN interfaces to keep or to create.
	// +optional
	VlanInterfaces []string `json:"vlanInterfaces,omitempty"`
}

// CustomInterface is the interface of some nodes.
type CustomInterface struct {
	// +optional
	Interface InterfaceName `json:"interface,omitempty"`
	// nodes are the names of the nodes.
	// +optional
	Nodes []string `json:"nodes,omitempty"`
}

// ProviderNetworkCondition describes one aspect of a ProviderNetwork, or of one node of it.
type ProviderNetworkCondition struct {
	// node is empty if the condition concerns the whole network.
	// +optional
	Node      string `json:"node,omitempty"`
	Condition `json:",inline"`
}

// ProviderNetworkStatus is the observed state of a ProviderNetwork.
type ProviderNetworkStatus struct {
	// +optional
	Conditions []ProviderNetworkCondition `json:"conditions,omitempty"`
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	ReadyNodes []string `json:"readyNodes,omitempty"`
	// +optional
	NotReadyNodes []string `json:"notReadyNodes,omitempty"`
	// vlans are the names of the Vlans of this network.
	// +optional
	Vlans []string `json:"vlans,omitempty"`
}

// ProviderNetwork is a physical network that nodes connect to with a bridge. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=provider-networks,singular=provider-network,shortName=pn,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="DefaultInterface",type=string,JSONPath=`.spec.defaultInterface`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ProviderNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec ProviderNetworkSpec `json:"spec,omitempty"`
	// +optional
	Status ProviderNetworkStatus `json:"status,omitempty"`
}

// ProviderNetworkList is a list of ProviderNetworks.
// +kubebuilder:object:root=true
type ProviderNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProviderNetwork `json:"items"`
}

// VlanSpec defines a VLAN of a physical network.
type VlanSpec struct {
	// id of the VLAN. 0 is untagged.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	ID int `json:"id,omitempty"`
	// provider is the name of the ProviderNetwork.
	Provider string `json:"provider"`
	// vlanId is an older name of id.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	VlanID int `json:"vlanId,omitempty"`
	// providerInterfaceName is an older name of provider.
	// +optional
	ProviderInterfaceName string `json:"providerInterfaceName,omitempty"`
}

// VlanStatus is the observed state of a Vlan.
type VlanStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// subnets are the names of the Subnets of this VLAN.
	// +optional
	Subnets []string `json:"subnets,omitempty"`
	// conflict is true if another Vlan has the same id and provider.
	// +optional
	Conflict bool `json:"conflict,omitempty"`
}

// Vlan is a VLAN of a ProviderNetwork. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=vlans,singular=vlan,shortName=vlan,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="ID",type=string,JSONPath=`.spec.id`
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="conflict",type=boolean,JSONPath=`.status.conflict`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Vlan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec VlanSpec `json:"spec,omitempty"`
	// +optional
	Status VlanStatus `json:"status,omitempty"`
}

// VlanList is a list of Vlans.
// +kubebuilder:object:root=true
type VlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Vlan `json:"items"`
}
