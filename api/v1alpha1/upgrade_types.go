// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// UpgradeMode defines how far the operator rolls out a change of image or settings.
// +kubebuilder:validation:Enum=Automatic;Canary;Paused
type UpgradeMode string

// Values of UpgradeMode.
const (
	UpgradeAutomatic UpgradeMode = "Automatic"
	UpgradeCanary    UpgradeMode = "Canary"
	UpgradePaused    UpgradeMode = "Paused"
)

// Upgrade defines how the operator replaces pods when the image or the settings of components change. It upgrades nodes first, then the
// databases, ovn-northd and kube-ovn-controller. When spec.image is set to a previous image, it rolls back in the reverse order.
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Canary' || has(self.canaryNodeSelector) && self.canaryNodeSelector.size() > 0",message="mode Canary needs canaryNodeSelector: which nodes are replaced first"
type Upgrade struct {
	// mode is Automatic (replace all pods while the new pods are healthy), Canary (replace only pods on the nodes of canaryNodeSelector; a
	// rollback is not limited) or Paused (replace no pods).
	// +optional
	// +kubebuilder:default=Automatic
	Mode UpgradeMode `json:"mode,omitempty"`
	// canaryNodeSelector selects by labels the nodes that are upgraded first. The other nodes follow when all of these are healthy.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	CanaryNodeSelector map[string]string `json:"canaryNodeSelector,omitempty"`
	// maxUnavailable is the number of nodes, or the percentage of all nodes, that are upgraded in parallel. Unhealthy nodes count towards
	// it; nodes that do not respond do not.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : string(self).matches('^([1-9][0-9]?|100)%$')",message="must be a number from 1, or a percentage from 1% to 100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// UpgradeStage is the set of components that an upgrade currently replaces.
type UpgradeStage string

// Stages of an upgrade in order. A rollback runs them in the reverse order.
const (
	StageNodes      UpgradeStage = "Nodes"
	StageDatabases  UpgradeStage = "Databases"
	StageNorthd     UpgradeStage = "Northd"
	StageController UpgradeStage = "Controller"
)

// UpgradeStatus is the progress of an upgrade or rollback.
type UpgradeStatus struct {
	// stage in progress: Nodes, Databases, Northd or Controller. Empty when all pods are up to date.
	// +optional
	Stage UpgradeStage `json:"stage,omitempty"`
	// direction is Forward (upgrade) or Back (rollback).
	// +optional
	Direction string `json:"direction,omitempty"`
	// message describes the progress. If the upgrade stopped, it holds the cause and the required action.
	// +optional
	Message string `json:"message,omitempty"`
	// images that spec.image requested, oldest first, at most ten. Images newer than the current one are removed when all components run
	// it. Setting spec.image to an image listed before the image of a running pod is a rollback.
	// +optional
	// +listType=atomic
	Images []string `json:"images,omitempty"`
}

// Directions of an upgrade.
const (
	DirectionForward = "Forward"
	DirectionBack    = "Back"
)
