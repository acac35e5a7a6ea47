// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LBRulePort is a port of a rule's address.
type LBRulePort struct {
	// name of the port. Each name may occur only once in a rule.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$')`,message="must be lower-case letters, digits and hyphens, such as http"
	Name string `json:"name,omitempty"`
	// port that clients send to.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// targetPort of the endpoints. The same as port when it is 0 or not set.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	TargetPort int32 `json:"targetPort,omitempty"`
	// protocol is TCP (the default), UDP or SCTP.
	// +optional
	// +kubebuilder:validation:Enum="";TCP;UDP;SCTP
	// +kubebuilder:validation:MaxLength=4
	Protocol string `json:"protocol,omitempty"`
}

// LBRuleBackends are the endpoints of a rule: the pods that selector selects, or the addresses in endpoints.
type LBRuleBackends struct {
	// namespace in which selector selects pods. `default` when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// selector selects ready pods of namespace. Each entry is a label in the form `key:value`; a pod must match all of them.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^\s*[A-Za-z0-9][-A-Za-z0-9_./]*\s*:\s*([A-Za-z0-9][-A-Za-z0-9_.]*)?\s*$')`,message="must be a label as key:value, such as app:web",messageExpression=`self.contains('=') && !self.contains('!') ? 'must be a label as key:value: write ' + self.replace('==', '=').replace('=', ':') : 'must be a label as key:value, such as app:web'`
	// +kubebuilder:validation:items:MaxLength=512
	Selector []string `json:"selector,omitempty"`
	// endpoints are the addresses of the endpoints, instead of selector.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isIP(self)",message="must be an address, such as 10.16.0.9"
	Endpoints []string `json:"endpoints,omitempty"`
	// sessionAffinity is None (the default) or ClientIP. ClientIP sends a client to the same endpoint as long as that one
	// serves. For nodes and clients outside the cluster this ends three hours after the last connection.
	// +optional
	// +kubebuilder:validation:Enum="";None;ClientIP
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`
	// ports of the address.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, b.port == a.port && (!has(b.protocol) || b.protocol == '' ? 'TCP' : b.protocol) == (!has(a.protocol) || a.protocol == '' ? 'TCP' : a.protocol)))",message="a port of one protocol can be there once only: remove one of the two"
	Ports []LBRulePort `json:"ports,omitempty"`
}

// SwitchLBRuleSpec defines a load balancer address for the pods of a VPC.
type SwitchLBRuleSpec struct {
	// vip is the address that clients send to: one, or one per family separated by a comma.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self == '' || self.split(',').all(a, isIP(a.trim()))",message="must be an address, or one of each family with a comma between them, such as 10.16.0.9,fd00::9"
	VIP string `json:"vip,omitempty"`

	LBRuleBackends `json:",inline"`
}

// LBRuleStatus is the observed state of a rule of both kinds.
type LBRuleStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// ports that the rule serves, in the form `80/TCP,53/UDP`.
	// +optional
	Ports string `json:"ports,omitempty"`
	// service is the namespace and name of the headless Service that selects the pods. Empty for a rule with endpoints.
	// +optional
	Service string `json:"service,omitempty"`
}

// SwitchLBRuleStatus is the observed state of a SwitchLBRule.
type SwitchLBRuleStatus struct {
	LBRuleStatus `json:",inline"`
	// validatedSpec is the last spec that was found valid and served. It is served while the current spec is invalid.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *SwitchLBRuleSpec `json:"validatedSpec,omitempty"`
}

// SwitchLBRule is a load balancer on the switches of a VPC.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=switch-lb-rules,singular=switch-lb-rule,shortName=slr,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="vip",type=string,JSONPath=`.spec.vip`
// +kubebuilder:printcolumn:name="port(s)",type=string,JSONPath=`.status.ports`
// +kubebuilder:printcolumn:name="service",type=string,priority=1,JSONPath=`.status.service`
// +kubebuilder:printcolumn:name="age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type SwitchLBRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec SwitchLBRuleSpec `json:"spec,omitempty"`
	// +optional
	Status SwitchLBRuleStatus `json:"status,omitempty"`
}

// SwitchLBRuleList is a list of SwitchLBRules.
// +kubebuilder:object:root=true
type SwitchLBRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SwitchLBRule `json:"items"`
}

// RouterLBRuleSpec defines a load balancer address in front of pods of a VPC, for clients outside as well.
type RouterLBRuleSpec struct {
	// vpc of the endpoints. ovn-cluster when empty. Clients outside reach only rules of ovn-cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	VPC string `json:"vpc,omitempty"`
	// ovnEip is the OvnEip with the addresses that clients send to.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	OvnEip string `json:"ovnEip,omitempty"`

	LBRuleBackends `json:",inline"`
}

// RouterLBRuleStatus is the observed state of a RouterLBRule.
type RouterLBRuleStatus struct {
	LBRuleStatus `json:",inline"`
	// validatedSpec is the last spec that was found valid and served. It is served while the current spec is invalid, or waits for its OvnEip or Vpc.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *RouterLBRuleSpec `json:"validatedSpec,omitempty"`
}

// RouterLBRule is a load balancer on the router of a VPC.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=router-lb-rules,singular=router-lb-rule,shortName=rlr,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="ovnEip",type=string,JSONPath=`.spec.ovnEip`
// +kubebuilder:printcolumn:name="vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="port(s)",type=string,JSONPath=`.status.ports`
// +kubebuilder:printcolumn:name="service",type=string,priority=1,JSONPath=`.status.service`
// +kubebuilder:printcolumn:name="age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type RouterLBRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec RouterLBRuleSpec `json:"spec,omitempty"`
	// +optional
	Status RouterLBRuleStatus `json:"status,omitempty"`
}

// RouterLBRuleList is a list of RouterLBRules.
// +kubebuilder:object:root=true
type RouterLBRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RouterLBRule `json:"items"`
}

// OfRouterLBRule reports whether a Service was created for a RouterLBRule: through it, nodes serve the rule's addresses.
func OfRouterLBRule(service metav1.Object) bool {
	rule := metav1.GetControllerOf(service)
	return rule != nil && rule.Kind == OnRouterLBRule && rule.APIVersion == GroupVersion.String()
}
