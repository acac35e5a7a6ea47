// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package beta has ClusterNetworkPolicy of policy.networking.k8s.io/v1beta1, which network-policy-api 0.3.0 stores and serves. Its fields are those
// of v1alpha2. 0.3.0 no longer has the kinds of v1alpha1, which Kiln serves as well, so its Go module cannot replace that of 0.2.0.
package beta

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Version is the name of the version.
const Version = "v1beta1"

// ClusterNetworkPolicy is a policy of this version.
type ClusterNetworkPolicy struct {
	v1alpha2.ClusterNetworkPolicy `json:",inline"`
}

// DeepCopyObject implements runtime.Object.
func (p *ClusterNetworkPolicy) DeepCopyObject() runtime.Object {
	return &ClusterNetworkPolicy{*p.DeepCopy()}
}

// ClusterNetworkPolicyList is a list of policies.
type ClusterNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterNetworkPolicy `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *ClusterNetworkPolicyList) DeepCopyObject() runtime.Object {
	out := &ClusterNetworkPolicyList{TypeMeta: l.TypeMeta, Items: make([]ClusterNetworkPolicy, len(l.Items))}
	l.DeepCopyInto(&out.ListMeta)
	for i := range l.Items {
		l.Items[i].DeepCopyInto(&out.Items[i].ClusterNetworkPolicy)
	}
	return out
}

// AddToScheme adds the kind.
func AddToScheme(scheme *runtime.Scheme) error {
	version := schema.GroupVersion{Group: v1alpha2.GroupName, Version: Version}
	scheme.AddKnownTypes(version, &ClusterNetworkPolicy{}, &ClusterNetworkPolicyList{})
	metav1.AddToGroupVersion(scheme, version)
	return nil
}
