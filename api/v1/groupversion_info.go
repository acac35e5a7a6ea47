// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1 holds the network resources (Vpc, Subnet, IP and others) and typed forms of the annotations of pods and nodes. JSON names,
// enums, defaults and columns match the API kubeovn.io/v1 of Kube-OVN, so that its manifests apply unchanged.
// +kubebuilder:object:generate=true
// +groupName=kubeovn.io
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "kubeovn.io", Version: "v1"}

// AddToScheme adds the types of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	for _, k := range Kinds {
		s.AddKnownTypes(GroupVersion, k.Object, k.List)
	}
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
