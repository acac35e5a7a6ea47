// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

// MetricsAccess defines who may read metrics.
// +kubebuilder:validation:Enum=Open;Authorized
type MetricsAccess string

// Values of MetricsAccess.
const (
	MetricsOpen       MetricsAccess = "Open"
	MetricsAuthorized MetricsAccess = "Authorized"
)

// MonitoringPart defines whether a part of the monitoring is installed.
// +kubebuilder:validation:Enum=Enabled;Disabled
type MonitoringPart string

// Values of MonitoringPart.
const (
	MonitoringEnabled  MonitoringPart = "Enabled"
	MonitoringDisabled MonitoringPart = "Disabled"
)

// PortSeries defines which ports have metrics of their own.
// +kubebuilder:validation:Enum=Node;All
type PortSeries string

// Values of PortSeries.
const (
	PortSeriesNode PortSeries = "Node"
	PortSeriesAll  PortSeries = "All"
)

// LabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule=`self.matches(r'^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$')`,message="must be letters, digits, dots, hyphens and underscores, and begin and end with a letter or digit"
type LabelValue string

// Monitoring defines the metrics of the components and the objects with which Prometheus finds them.
type Monitoring struct {
	// access is Open or Authorized. Open: each process serves its metrics over plain HTTP to everyone who can reach the node. Authorized: it
	// serves them over TLS, to callers with a token whose user may `get` the URL `/metrics`. It applies while the processes run; no pod is
	// replaced.
	// +optional
	// +kubebuilder:default=Open
	Access MetricsAccess `json:"access,omitempty"`

	// portSeries is Node or All. Node: in the metrics of Open vSwitch, the interfaces of a node have series of their own, and those of its
	// pods and tunnels share one each. All: every interface has its own; a node then has some 20 series more for each pod and for each other
	// node.
	// +optional
	// +kubebuilder:default=Node
	PortSeries PortSeries `json:"portSeries,omitempty"`

	// monitor is Enabled or Disabled: whether kube-ovn-monitor runs, which exports the metrics of the databases and of ovn-northd.
	// +optional
	// +kubebuilder:default=Enabled
	Monitor MonitoringPart `json:"monitor,omitempty"`

	// serviceMonitors is Enabled or Disabled: whether there is a ServiceMonitor for each component. Enabled has no effect while the API server
	// does not have this kind.
	// +optional
	// +kubebuilder:default=Enabled
	ServiceMonitors MonitoringPart `json:"serviceMonitors,omitempty"`

	// rules is Enabled or Disabled: whether there is a PrometheusRule with Kiln's alerts. Enabled has no effect while the API server does not
	// have this kind.
	// +optional
	// +kubebuilder:default=Enabled
	Rules MonitoringPart `json:"rules,omitempty"`

	// labels of the ServiceMonitors and the PrometheusRule, for a Prometheus that selects them by labels.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Labels map[string]LabelValue `json:"labels,omitempty"`

	// resources of kube-ovn-monitor.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}
