// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DNSName is a DNS name with a final dot. The first label may be a wildcard.
// +kubebuilder:validation:MaxLength=254
// +kubebuilder:validation:Pattern=`^(\*\.)?([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.){2,}$`
type DNSName string

// DNSNameResolverSpec has the DNS name to resolve.
type DNSNameResolverSpec struct {
	// name to resolve. It cannot change.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="name cannot change: create another DNSNameResolver",messageExpression=`'name cannot change from ' + oldSelf + ' to ' + self + ': create another DNSNameResolver'`
	Name DNSName `json:"name"`
}

// DNSNameResolverStatus is the observed state of a DNSNameResolver.
type DNSNameResolverStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// resolvedNames holds an entry for the name, or for each name that matches its wildcard.
	// +optional
	// +listType=map
	// +listMapKey=dnsName
	ResolvedNames []DNSNameResolverResolvedName `json:"resolvedNames,omitempty"`
}

// DNSNameResolverResolvedName is a name with its addresses.
type DNSNameResolverResolvedName struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	DNSName    DNSName            `json:"dnsName"`
	// resolvedAddresses of the name.
	// +listType=map
	// +listMapKey=ip
	ResolvedAddresses []DNSNameResolverResolvedAddress `json:"resolvedAddresses"`
	// resolutionFailures counts failed attempts since the last success.
	// +optional
	ResolutionFailures int32 `json:"resolutionFailures,omitempty"`
}

// DNSNameResolverResolvedAddress is an address of a name.
type DNSNameResolverResolvedAddress struct {
	IP string `json:"ip"`
	// ttlSeconds is the time to live of the DNS record.
	TTLSeconds     int32        `json:"ttlSeconds"`
	LastLookupTime *metav1.Time `json:"lastLookupTime"`
}

// DNSNameResolver resolves a DNS name for network policies. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=dnsnameresolvers,singular=dnsnameresolver,shortName=dnr,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type DNSNameResolver struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec DNSNameResolverSpec `json:"spec,omitempty"`
	// +optional
	Status DNSNameResolverStatus `json:"status,omitempty"`
}

// DNSNameResolverList is a list of DNSNameResolvers.
// +kubebuilder:object:root=true
type DNSNameResolverList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DNSNameResolver `json:"items"`
}
