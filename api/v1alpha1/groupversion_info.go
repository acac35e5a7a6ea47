// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the API of the deployment: OVNCluster.
// +kubebuilder:object:generate=true
// +groupName=kubeovn.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "kubeovn.io", Version: "v1alpha1"}

// AddToScheme adds the types of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &OVNCluster{}, &OVNClusterList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
