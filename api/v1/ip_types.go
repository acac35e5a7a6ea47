// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPSpec is one network attachment and the addresses it holds. The object's name is that of its logical switch port:
// `<pod>.<namespace>` for pods, `node-<node>` for nodes.
type IPSpec struct {
	// podName is the name of the pod, or of the node.
	// +optional
	PodName string `json:"podName,omitempty"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// subnet the addresses are of.
	// +optional
	Subnet string `json:"subnet,omitempty"`
	// attachSubnets are further subnets of the same port.
	// +optional
	AttachSubnets []string `json:"attachSubnets,omitempty"`
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// ipAddress holds every address, with commas between them.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self == '' || self.split(',').all(a, isIP(a.trim())) && [4, 6].all(f, self.split(',').filter(a, isIP(a.trim()) && ip(a.trim()).family() == f).size() <= 1)",message="must be one address, or one of each family with a comma between them"
	IPAddress string `json:"ipAddress,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 4",message="must be an IPv4 address"
	V4IPAddress string `json:"v4IpAddress,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 6",message="must be an IPv6 address"
	V6IPAddress string `json:"v6IpAddress,omitempty"`
	// +optional
	AttachIPs []string `json:"attachIps,omitempty"`
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
	// +optional
	AttachMACs []string `json:"attachMacs,omitempty"`
	// +optional
	ContainerID string `json:"containerID,omitempty"`
	// podType is empty, StatefulSet or VirtualMachine: the kind of workload that keeps the addresses while its pod is away.
	// +optional
	PodType string `json:"podType,omitempty"`
}

// IP records the addresses of one port. Created by hand, it reserves them.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=ips,singular=ip,shortName=ip
// +kubebuilder:printcolumn:name="V4IP",type=string,JSONPath=`.spec.v4IpAddress`
// +kubebuilder:printcolumn:name="V6IP",type=string,JSONPath=`.spec.v6IpAddress`
// +kubebuilder:printcolumn:name="Mac",type=string,JSONPath=`.spec.macAddress`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
type IP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec IPSpec `json:"spec,omitempty"`
}

// IPList is a list of IPs.
// +kubebuilder:object:root=true
type IPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IP `json:"items"`
}
