// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// groupKubeVirt is the API group of KubeVirt's virtual machines.
const groupKubeVirt = "kubevirt.io"

// keyAllocated, keyPodUID and keyMachine are read in every event of a pod.
var (
	keyAllocated = AnnotationAllocated.Key()
	keyPodUID    = AnnotationPodUID.Key()
	keyMachine   = AnnotationMachine.Key()
)

// IsPublished reports whether a pod's annotations hold the result of an allocation for this very pod, in whatever state the others are.
func IsPublished(pod metav1.Object) bool {
	annotations := pod.GetAnnotations()
	return PodNetwork{Allocated: annotations[keyAllocated] == "true", UID: types.UID(annotations[keyPodUID])}.IsFor(pod.GetUID())
}

// MachineOf is the virtual machine of KubeVirt that a pod runs, as its controller reference says; empty for other pods. The API server does not
// check the names in owner references: one that no object can have counts as none.
func MachineOf(pod metav1.Object) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "VirtualMachineInstance" || !strings.HasPrefix(owner.APIVersion, groupKubeVirt+"/") ||
		len(validation.IsDNS1123Subdomain(owner.Name)) > 0 {
		return ""
	}
	return owner.Name
}

// PortOwner returns the name under which a pod's first network has its port. It is the name of the virtual machine that the pod runs when
// the result of the allocation names it, and the pod's own name otherwise.
func PortOwner(pod metav1.Object) string {
	if machine := pod.GetAnnotations()[keyMachine]; machine != "" && machine == MachineOf(pod) && IsPublished(pod) {
		return machine
	}
	return pod.GetName()
}
