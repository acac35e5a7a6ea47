// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VipSpec defines addresses that are reserved independently of pods. Subnet and addresses of a Vip cannot change.
// +kubebuilder:validation:XValidation:rule=`(has(self.subnet) ? self.subnet : "") == (has(oldSelf.subnet) ? oldSelf.subnet : "")`,message="subnet cannot change: create another Vip",messageExpression=`'subnet cannot change from "' + (has(oldSelf.subnet) ? oldSelf.subnet : "") + '" to "' + (has(self.subnet) ? self.subnet : "") + '": create another Vip'`
// +kubebuilder:validation:XValidation:rule=`(has(self.v4ip) ? self.v4ip : "") == (has(oldSelf.v4ip) ? oldSelf.v4ip : "")`,message="v4ip cannot change: create another Vip",messageExpression=`'v4ip cannot change from "' + (has(oldSelf.v4ip) ? oldSelf.v4ip : "") + '" to "' + (has(self.v4ip) ? self.v4ip : "") + '": create another Vip'`
// +kubebuilder:validation:XValidation:rule=`(has(self.v6ip) ? self.v6ip : "") == (has(oldSelf.v6ip) ? oldSelf.v6ip : "")`,message="v6ip cannot change: create another Vip",messageExpression=`'v6ip cannot change from "' + (has(oldSelf.v6ip) ? oldSelf.v6ip : "") + '" to "' + (has(self.v6ip) ? self.v6ip : "") + '": create another Vip'`
// +kubebuilder:validation:XValidation:rule=`(has(self.macAddress) ? self.macAddress : "") == (has(oldSelf.macAddress) ? oldSelf.macAddress : "")`,message="macAddress cannot change: create another Vip",messageExpression=`'macAddress cannot change from "' + (has(oldSelf.macAddress) ? oldSelf.macAddress : "") + '" to "' + (has(self.macAddress) ? self.macAddress : "") + '": create another Vip'`
type VipSpec struct {
	// namespace whose pods may use the Vip, and in which selector selects pods. When empty, allowedNamespaces decides. When both are empty, pods of the namespace of the subnet
	// may use the Vip by its name, if the subnet lists only this one; with tenancy.membership Open, pods of every namespace may.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace,omitempty"`
	// allowedNamespaces whose pods may use the Vip by its name in addition to namespace, or * for all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	AllowedNamespaces []AllowedNamespace `json:"allowedNamespaces,omitempty"`
	// subnet of the addresses. ovn-default when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Subnet string `json:"subnet,omitempty"`
	// type is empty for a Vip that pods use. A Vip with another type only reserves its addresses: switch_lb_vip for a SwitchLBRule,
	// lb_health_check as the source address of the subnet's health checks, kube_host_vm_vip for a machine outside the cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Type string `json:"type,omitempty"`
	// v4ip is the IPv4 address. If v4ip and v6ip are both empty, the Vip gets an address of each family of the subnet.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 4",message="must be an IPv4 address, such as 10.16.0.9"
	V4IP string `json:"v4ip,omitempty"`
	// v6ip is the IPv6 address.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 6",message="must be an IPv6 address, such as fd00::9"
	V6IP string `json:"v6ip,omitempty"`
	// macAddress of the pod that uses the Vip as its own address (annotation vip). When empty, it is derived from the first address.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MACAddress string `json:"macAddress,omitempty"`
	// selector selects pods of namespace that share the addresses. Each entry is a label in the form `key:value`; a pod must match all of
	// them.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^\s*[A-Za-z0-9][-A-Za-z0-9_./]*\s*:\s*([A-Za-z0-9][-A-Za-z0-9_.]*)?\s*$')`,message="must be a label as key:value, such as app:web",messageExpression=`self.contains('=') && !self.contains('!') ? 'must be a label as key:value: write ' + self.replace('==', '=').replace('=', ':') : 'must be a label as key:value, such as app:web'`
	// +kubebuilder:validation:items:MaxLength=512
	Selector []string `json:"selector,omitempty"`
	// +optional
	AttachSubnets []string `json:"attachSubnets,omitempty"`
}

// Values of VipSpec.Type.
const (
	VipTypeSwitchLB   = "switch_lb_vip"
	VipTypeKubeHostVM = "kube_host_vm_vip"
	// VipTypeHealthCheck: health checks of the subnet's endpoints are sent from the addresses of the Vip.
	VipTypeHealthCheck = "lb_health_check"
)

// VipTypes are all values of VipSpec.Type.
var VipTypes = []string{VipTypeSwitchLB, VipTypeKubeHostVM, VipTypeHealthCheck}

// VipStatus is the observed state of a Vip.
type VipStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	Type string `json:"type,omitempty"`
	// +optional
	V4IP string `json:"v4ip,omitempty"`
	// +optional
	V6IP string `json:"v6ip,omitempty"`
	// +optional
	MAC string `json:"mac,omitempty"`
	// +optional
	Selector []string `json:"selector,omitempty"`
	// validatedSpec is the last spec that was found valid. It is applied while the current spec is invalid or not validated yet.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *VipSpec `json:"validatedSpec,omitempty"`
}

// Vip reserves addresses of a subnet, either for one pod that uses them as its own or for several pods that share them.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=vips,singular=vip,shortName=vip,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="V4IP",type=string,JSONPath=`.status.v4ip`
// +kubebuilder:printcolumn:name="V6IP",type=string,JSONPath=`.status.v6ip`
// +kubebuilder:printcolumn:name="Mac",type=string,priority=1,JSONPath=`.status.mac`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="Type",type=string,priority=1,JSONPath=`.status.type`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type Vip struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec VipSpec `json:"spec,omitempty"`
	// +optional
	Status VipStatus `json:"status,omitempty"`
}

// VipList is a list of Vips.
// +kubebuilder:object:root=true
type VipList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Vip `json:"items"`
}
