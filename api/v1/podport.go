// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// groupKubeVirt is the API group of KubeVirt's virtual machines.
const groupKubeVirt = "kubevirt.io"

// keyAllocated, keyPodUID and keyMachine are computed once, because every event of a pod needs them.
var (
	keyAllocated = AnnotationAllocated.Key()
	keyPodUID    = AnnotationPodUID.Key()
	keyMachine   = AnnotationMachine.Key()
)

// IsPublished reports whether the annotations of a pod hold the result of an allocation for this pod and not for a previous pod of the same
// name. It does not check the other annotations.
func IsPublished(pod metav1.Object) bool {
	annotations := pod.GetAnnotations()
	return PodNetwork{Allocated: annotations[keyAllocated] == "true", UID: types.UID(annotations[keyPodUID])}.IsFor(pod.GetUID())
}

// IsMirror reports whether annotations belong to a mirror pod: a kubelet created it for a static pod of its node. The API server lets each kubelet create mirror
// pods in every namespace, with any labels and annotations, so nothing that a mirror pod requests is honoured.
func IsMirror(annotations map[string]string) bool {
	_, mirror := annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// MachineOf returns the name of the KubeVirt virtual machine that a pod runs, from its controller reference; empty for other pods. The API
// server does not validate names in owner references: a name that no object can have is ignored.
func MachineOf(pod metav1.Object) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "VirtualMachineInstance" || !strings.HasPrefix(owner.APIVersion, groupKubeVirt+"/") ||
		len(validation.IsDNS1123Subdomain(owner.Name)) > 0 {
		return ""
	}
	return owner.Name
}

// PortOwner returns the name that the logical switch port of a pod's first network is named after. It is the virtual machine that the pod
// runs if the published allocation names that machine, otherwise the pod.
func PortOwner(pod metav1.Object) string {
	if machine := pod.GetAnnotations()[keyMachine]; machine != "" && machine == MachineOf(pod) && IsPublished(pod) {
		return machine
	}
	return pod.GetName()
}
