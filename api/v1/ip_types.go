// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPSpec defines a network attachment and its addresses. The object has the name of its logical switch port: `<pod>.<namespace>` for pods,
// `node-<node>` for nodes. Pod, subnet and addresses cannot change once they are set.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.podName) || size(oldSelf.podName) == 0 || has(self.podName) && self.podName == oldSelf.podName",message="podName cannot change once it is set: delete the IP and create another one",messageExpression=`'podName cannot change once it is set, from "' + (has(oldSelf.podName) ? oldSelf.podName : "") + '" to "' + (has(self.podName) ? self.podName : "") + '": delete the IP and create another one'`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.__namespace__) || size(oldSelf.__namespace__) == 0 || has(self.__namespace__) && self.__namespace__ == oldSelf.__namespace__",message="namespace cannot change once it is set: delete the IP and create another one",messageExpression=`'namespace cannot change once it is set, from "' + (has(oldSelf.__namespace__) ? oldSelf.__namespace__ : "") + '" to "' + (has(self.__namespace__) ? self.__namespace__ : "") + '": delete the IP and create another one'`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.subnet) || size(oldSelf.subnet) == 0 || has(self.subnet) && self.subnet == oldSelf.subnet",message="subnet cannot change once it is set: delete the IP and create another one",messageExpression=`'subnet cannot change once it is set, from "' + (has(oldSelf.subnet) ? oldSelf.subnet : "") + '" to "' + (has(self.subnet) ? self.subnet : "") + '": delete the IP and create another one'`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.ipAddress) || size(oldSelf.ipAddress) == 0 || has(self.ipAddress) && self.ipAddress == oldSelf.ipAddress",message="ipAddress cannot change once it is set: delete the IP and create another one",messageExpression=`'ipAddress cannot change once it is set, from "' + (has(oldSelf.ipAddress) ? oldSelf.ipAddress : "") + '" to "' + (has(self.ipAddress) ? self.ipAddress : "") + '": delete the IP and create another one'`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.v4IpAddress) || size(oldSelf.v4IpAddress) == 0 || has(self.v4IpAddress) && self.v4IpAddress == oldSelf.v4IpAddress",message="v4IpAddress cannot change once it is set: delete the IP and create another one",messageExpression=`'v4IpAddress cannot change once it is set, from "' + (has(oldSelf.v4IpAddress) ? oldSelf.v4IpAddress : "") + '" to "' + (has(self.v4IpAddress) ? self.v4IpAddress : "") + '": delete the IP and create another one'`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.v6IpAddress) || size(oldSelf.v6IpAddress) == 0 || has(self.v6IpAddress) && self.v6IpAddress == oldSelf.v6IpAddress",message="v6IpAddress cannot change once it is set: delete the IP and create another one",messageExpression=`'v6IpAddress cannot change once it is set, from "' + (has(oldSelf.v6IpAddress) ? oldSelf.v6IpAddress : "") + '" to "' + (has(self.v6IpAddress) ? self.v6IpAddress : "") + '": delete the IP and create another one'`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.macAddress) || size(oldSelf.macAddress) == 0 || has(self.macAddress) && self.macAddress == oldSelf.macAddress",message="macAddress cannot change once it is set: delete the IP and create another one",messageExpression=`'macAddress cannot change once it is set, from "' + (has(oldSelf.macAddress) ? oldSelf.macAddress : "") + '" to "' + (has(self.macAddress) ? self.macAddress : "") + '": delete the IP and create another one'`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.podType) || size(oldSelf.podType) == 0 || has(self.podType) && self.podType == oldSelf.podType",message="podType cannot change once it is set: delete the IP and create another one",messageExpression=`'podType cannot change once it is set, from "' + (has(oldSelf.podType) ? oldSelf.podType : "") + '" to "' + (has(self.podType) ? self.podType : "") + '": delete the IP and create another one'`
type IPSpec struct {
	// podName is the name of the pod or of the node.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace,omitempty"`
	// subnet of the addresses.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Subnet string `json:"subnet,omitempty"`
	// attachSubnets is kept as it is, and has no effect. Kube-OVN writes it empty.
	// +optional
	AttachSubnets []string `json:"attachSubnets,omitempty"`
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// ipAddress is one address, or one per family separated by a comma.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self == '' || self.split(',').all(a, isIP(a.trim())) && [4, 6].all(f, self.split(',').filter(a, isIP(a.trim()) && ip(a.trim()).family() == f).size() <= 1)",message="must be one address, or one of each family with a comma between them, such as 10.16.0.9,fd00::9"
	IPAddress string `json:"ipAddress,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 4",message="must be an IPv4 address, such as 10.16.0.9"
	V4IPAddress string `json:"v4IpAddress,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 6",message="must be an IPv6 address, such as fd00::9"
	V6IPAddress string `json:"v6IpAddress,omitempty"`
	// attachIps is kept as it is, and has no effect. Kube-OVN writes it empty.
	// +optional
	AttachIPs []string `json:"attachIps,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MACAddress string `json:"macAddress,omitempty"`
	// attachMacs is kept as it is, and has no effect. Kube-OVN writes it empty.
	// +optional
	AttachMACs []string `json:"attachMacs,omitempty"`
	// containerID is kept as it is, and has no effect. Kube-OVN writes it empty.
	// +optional
	ContainerID string `json:"containerID,omitempty"`
	// podType is empty, StatefulSet or VirtualMachine: the kind of workload whose pods retain their addresses when they are recreated.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	PodType string `json:"podType,omitempty"`
}

// Values of IPSpec.PodType.
const (
	PodTypeStatefulSet    = "StatefulSet"
	PodTypeVirtualMachine = "VirtualMachine"
)

// LabelSubnet is the label of an IP with the name of its subnet. Users of Kube-OVN select IPs by it.
const LabelSubnet = "ovn.kubernetes.io/subnet"

// LabelNode is the label of an IP with the name of its pod's or its own node. It is absent while no pod has the addresses, and empty if the
// node's name is too long for a label. Users of Kube-OVN select IPs by it.
const LabelNode = "ovn.kubernetes.io/node-name"

// LabelStaticPod is the label of an IP of a mirror pod (IsMirror), which a single node can create under any name: external addresses do not follow it.
const LabelStaticPod = "kubeovn.io/static-pod"

// LabelReserved is the label of an IP that defines how long its addresses are reserved. A user creates an IP without it: such an IP keeps
// its addresses until a pod of its name was created and deleted.
const LabelReserved = "ovn.kubernetes.io/ip_reserved"

// Values of LabelReserved. ReservedAlways is set by users, ReservedForPod and ReservedForOwner by kube-ovn-controller.
const (
	// ReservedAlways reserves the addresses until the IP is deleted.
	ReservedAlways = "true"
	// ReservedForPod reserves the addresses while the pod or node exists.
	ReservedForPod = "false"
	// ReservedForOwner reserves the addresses while the owner of the pod (StatefulSet or virtual machine) needs a pod of that name.
	ReservedForOwner = "owner"
)

// IPStatus is the observed state of an IP that a user has created. IPs that record the addresses of pods and nodes have none.
type IPStatus struct {
	// conditions has Ready, which is False while the addresses are not reserved.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// IP records the addresses of one port. An IP that a user creates reserves its addresses: for a pod, if its name is the name of the pod's
// port.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=ips,singular=ip,shortName=ip,categories=kiln
// +kubebuilder:selectablefield:JSONPath=`.spec.v4IpAddress`
// +kubebuilder:selectablefield:JSONPath=`.spec.v6IpAddress`
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="V4IP",type=string,JSONPath=`.spec.v4IpAddress`
// +kubebuilder:printcolumn:name="V6IP",type=string,JSONPath=`.spec.v6IpAddress`
// +kubebuilder:printcolumn:name="Mac",type=string,JSONPath=`.spec.macAddress`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type IP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec IPSpec `json:"spec,omitempty"`
	// +optional
	Status IPStatus `json:"status,omitzero"`
}

// IPList is a list of IPs.
// +kubebuilder:object:root=true
type IPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IP `json:"items"`
}
