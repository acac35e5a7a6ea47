// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// UpgradeMode says how much of a change of image or settings is carried out.
// +kubebuilder:validation:Enum=Automatic;Canary;Paused
type UpgradeMode string

// Modes of upgrades.
const (
	UpgradeAutomatic UpgradeMode = "Automatic"
	UpgradeCanary    UpgradeMode = "Canary"
	UpgradePaused    UpgradeMode = "Paused"
)

// Upgrade says how pods are replaced when the image or the settings of components change: on nodes first, then the databases, northd and
// kube-ovn-controller; backwards when spec.image is set to an image of before.
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Canary' || has(self.canaryNodeSelector) && self.canaryNodeSelector.size() > 0",message="mode Canary needs canaryNodeSelector: which nodes are replaced first"
type Upgrade struct {
	// mode is Automatic (everything, as long as all is well), Canary (the nodes of canaryNodeSelector and nothing else; going back is
	// not held) or Paused (nothing is replaced).
	// +optional
	// +kubebuilder:default=Automatic
	Mode UpgradeMode `json:"mode,omitempty"`
	// canaryNodeSelector are the nodes that come first, by their labels. The others follow when all of these are well.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	CanaryNodeSelector map[string]string `json:"canaryNodeSelector,omitempty"`
	// maxUnavailable nodes, a number or a percentage of all, are replaced at once. Nodes that are not well count; those that do not answer
	// do not.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : string(self).matches('^([1-9][0-9]?|100)%$')",message="must be a number from 1, or a percentage from 1% to 100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// UpgradeStage is what is replaced.
type UpgradeStage string

// Stages of an upgrade, in their order; backwards it is the reverse.
const (
	StageNodes      UpgradeStage = "Nodes"
	StageDatabases  UpgradeStage = "Databases"
	StageNorthd     UpgradeStage = "Northd"
	StageController UpgradeStage = "Controller"
)

// UpgradeStatus is how far pods are replaced.
type UpgradeStatus struct {
	// stage that is under way: Nodes, Databases, Northd or Controller. Empty when there is nothing to replace.
	// +optional
	Stage UpgradeStage `json:"stage,omitempty"`
	// direction is Forward or Back.
	// +optional
	Direction string `json:"direction,omitempty"`
	// message says what is replaced or waited for, or why it stopped and what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// images that were wanted, oldest first. To set one in spec.image that is before one that still runs is to go back.
	// +optional
	// +listType=atomic
	Images []string `json:"images,omitempty"`
}

// Directions of an upgrade.
const (
	DirectionForward = "Forward"
	DirectionBack    = "Back"
)
