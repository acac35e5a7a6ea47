// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BgpConfSpec defines the BGP sessions of gateway instances.
type BgpConfSpec struct {
	// localASN is the number of the own autonomous system.
	// +optional
	LocalASN int32 `json:"localASN,omitempty"`
	// peerASN is the number of the neighbours' autonomous system.
	// +optional
	PeerASN int32 `json:"peerASN,omitempty"`
	// routerId is the BGP identifier, written as an IPv4 address.
	// +optional
	RouterID string `json:"routerId,omitempty"`
	// neighbours are the addresses of the BGP neighbours.
	// +optional
	Neighbours []string `json:"neighbours,omitempty"`
	// password of the TCP MD5 signature (RFC 2385). All users with access to the object can read it.
	// +optional
	Password string `json:"password,omitempty"`
	// holdTime is a duration such as `90s` (RFC 4271).
	// +optional
	HoldTime string `json:"holdTime,omitempty"`
	// keepaliveTime is a duration such as `30s` (RFC 4271).
	// +optional
	KeepaliveTime string `json:"keepaliveTime,omitempty"`
	// connectTime is a duration such as `120s`: the pause before the next attempt to connect.
	// +optional
	ConnectTime string `json:"connectTime,omitempty"`
	// ebgpMultiHop allows neighbours of another autonomous system that are not directly connected.
	// +optional
	EbgpMultiHop bool `json:"ebgpMultiHop,omitempty"`
	// gracefulRestart keeps routes while a speaker restarts (RFC 4724).
	// +optional
	GracefulRestart bool `json:"gracefulRestart,omitempty"`
}

// BgpConfStatus is the observed state of a BgpConf.
type BgpConfStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// BgpConf configures BGP for VpcEgressGateways. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=bgp-confs,singular=bgp-conf,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type BgpConf struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec BgpConfSpec `json:"spec,omitempty"`
	// +optional
	Status BgpConfStatus `json:"status,omitempty"`
}

// BgpConfList is a list of BgpConfs.
// +kubebuilder:object:root=true
type BgpConfList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BgpConf `json:"items"`
}

// EvpnConfSpec defines the EVPN routes of gateway instances.
type EvpnConfSpec struct {
	// vni is the VXLAN network identifier.
	// +optional
	VNI int32 `json:"vni,omitempty"`
	// routeTargets are extended communities, for example `65000:100` (RFC 4360).
	// +optional
	RouteTargets []string `json:"routeTargets,omitempty"`
}

// EvpnConfStatus is the observed state of an EvpnConf.
type EvpnConfStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// EvpnConf configures EVPN for VpcEgressGateways. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=evpn-confs,singular=evpn-conf,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type EvpnConf struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec EvpnConfSpec `json:"spec,omitempty"`
	// +optional
	Status EvpnConfStatus `json:"status,omitempty"`
}

// EvpnConfList is a list of EvpnConfs.
// +kubebuilder:object:root=true
type EvpnConfList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EvpnConf `json:"items"`
}
