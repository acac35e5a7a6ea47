// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"cmp"
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

// Port identifies a logical switch port: the connection of a pod to the network of one provider. Only NewPort and PortOf build the name of a port, and
// nothing reads a pod from it: names of pods and of providers contain dots. Two ports can have the same name: pod `p.victim.net` of namespace `default`, and
// pod `p` of namespace `victim` at provider `net.default`. Compare whole Ports, which are comparable.
// +kubebuilder:object:generate=false
type Port struct {
	// Namespace and Owner are of the pod, or of the KubeVirt virtual machine that it runs. Both are empty for the port of an IP object that no pod has.
	Namespace, Owner string
	// Provider of the network.
	Provider string
	// Name of the port, and of its IP object: `<owner>.<namespace>`, with the suffix `.<provider>` unless the provider is ProviderOVN.
	Name string
}

// NewPort returns the port of an owner on the network of a provider; an empty provider means ProviderOVN.
func NewPort(namespace, owner, provider string) Port {
	p := Port{Namespace: namespace, Owner: owner, Provider: cmp.Or(provider, ProviderOVN), Name: owner + "." + namespace}
	if p.Provider != ProviderOVN {
		p.Name += "." + p.Provider
	}
	return p
}

// NamedPort returns the port of an owner that has a name; false if no port of the owner has it.
func NamedPort(namespace, owner, name string) (Port, bool) {
	provider := strings.TrimPrefix(strings.TrimPrefix(name, NewPort(namespace, owner, ProviderOVN).Name), ".")
	p := NewPort(namespace, owner, provider)
	return p, p.Name == name && namespace != "" && owner != ""
}

// PortOf returns the port of a pod on the network of a provider according to the pod's annotations. Its owner is the virtual machine that the pod runs if
// the published allocation names that machine, otherwise the pod.
func PortOf(pod metav1.Object, provider string) Port {
	if machine := pod.GetAnnotations()[keyMachine]; machine != "" && machine == MachineOf(pod) && IsPublished(pod) {
		return NewPort(pod.GetNamespace(), machine, provider)
	}
	return NewPort(pod.GetNamespace(), pod.GetName(), provider)
}

// Key returns the reconcile key of the port: its owner's, or else the name of the port.
func (p Port) Key() types.NamespacedName {
	if p.Owner == "" {
		return types.NamespacedName{Name: p.Name}
	}
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Owner}
}

// NodePortName returns the name of a node's logical switch port and of its IP object.
func NodePortName(node string) string { return "node-" + node }
