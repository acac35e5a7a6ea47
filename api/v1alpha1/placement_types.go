// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Labels of the nodes that administrators trust, with any value. The admission plugin NodeRestriction denies both to kubelets.
const (
	// ControlPlaneLabel is on nodes of the control plane. kubeadm sets no value, k3s and RKE2 set `true`.
	ControlPlaneLabel = "node-role.kubernetes.io/control-plane"
	// ManagedLabel is on the nodes that run the operator in clusters without nodes of the control plane (config/components/managed).
	ManagedLabel = "node-restriction.kubernetes.io/kiln"
)

// Labels of the objects and pods of Kiln.
const (
	// PartOfLabel and PartOf mark the objects that the operator applies, and the pods.
	PartOfLabel = "app.kubernetes.io/part-of"
	PartOf      = "kiln"
	// ComponentLabel holds the workload's name.
	ComponentLabel = "app.kubernetes.io/component"
)

// Placement defines where components run that are not on every node.
type Placement struct {
	// nodeSelector of the component's pods. By default control-plane nodes: those with the label `node-role.kubernetes.io/control-plane`,
	// whatever its value.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// tolerations of the component's pods, in addition to those of the taints of control-plane nodes and of nodes without a network.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(t, has(t.operator) && t.operator == 'Exists' ? !has(t.value) || t.value == '' : has(t.key) && t.key != '')",message="a toleration with operator Exists has no value, and one with another operator has a key"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.tolerationSeconds) || has(t.effect) && t.effect == 'NoExecute')",message="tolerationSeconds needs the effect NoExecute"
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// resources of each container for which no other field sets resources.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// Selector returns the selector of the component's nodes.
func (p Placement) Selector() labels.Selector {
	if len(p.NodeSelector) > 0 {
		return labels.SelectorFromSet(p.NodeSelector)
	}
	controlPlane, err := labels.NewRequirement(ControlPlaneLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // impossible: the key is a constant
	}
	return labels.NewSelector().Add(*controlPlane)
}

// Workload holds the settings of one component's pods.
type Workload struct {
	// resources of the container, instead of those that several components share.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}
