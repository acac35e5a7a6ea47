// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// PortSeries defines which ports have metrics of their own.
// +kubebuilder:validation:Enum=Node;All
type PortSeries string

// Values of PortSeries.
const (
	PortSeriesNode PortSeries = "Node"
	PortSeriesAll  PortSeries = "All"
)

// Monitoring defines the metrics of the components.
type Monitoring struct {
	// portSeries is Node or All. Node: in the metrics of Open vSwitch, the interfaces of a node have series of their own, and those of its
	// pods and tunnels share one each. All: every interface has its own; a node then has some 20 series more for each pod and for each other
	// node. It applies while the processes run; no pod is replaced.
	// +optional
	// +kubebuilder:default=Node
	PortSeries PortSeries `json:"portSeries,omitempty"`
}
