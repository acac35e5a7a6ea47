// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import corev1 "k8s.io/api/core/v1"

// VpcEgressGatewayObservability configures metrics and logs of a gateway's pods.
type VpcEgressGatewayObservability struct {
	// +optional
	Conntrack *ConntrackObservability `json:"conntrack,omitempty"`
	// +optional
	InterfaceMetrics *MetricsSwitch `json:"interfaceMetrics,omitempty"`
	// resources of the container that observes.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// serviceMonitor is the metadata of the ServiceMonitor.
	// +optional
	ServiceMonitor *ServiceMonitorMetadata `json:"serviceMonitor,omitempty"`
}

// MetricsSwitch turns metrics on.
type MetricsSwitch struct {
	// +optional
	Enabled bool `json:"enabled,omitempty"`
}

// ServiceMonitorMetadata is the metadata of a ServiceMonitor.
type ServiceMonitorMetadata struct {
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ConntrackObservability configures metrics and logs of connections.
type ConntrackObservability struct {
	// +optional
	Metrics *MetricsSwitch `json:"metrics,omitempty"`
	// +optional
	Log *ConntrackLog `json:"log,omitempty"`
}

// ConntrackLog configures a log of connections.
type ConntrackLog struct {
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// events that are logged.
	// +optional
	// +kubebuilder:validation:MaxItems=2
	Events []string `json:"events,omitempty"`
	// +optional
	Filters *ConntrackFilters `json:"filters,omitempty"`
	// +optional
	RateLimit *ConntrackRateLimit `json:"rateLimit,omitempty"`
}

// ConntrackRateLimit limits the records of a log.
type ConntrackRateLimit struct {
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	RecordsPerSecond int32 `json:"recordsPerSecond,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Burst int32 `json:"burst,omitempty"`
}

// ConntrackFilters select the connections that are logged.
type ConntrackFilters struct {
	// include: a connection must match one of these. Every connection when empty.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Include []ConntrackFilter `json:"include,omitempty"`
	// exclude: a connection that matches one of these is not logged.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Exclude []ConntrackFilter `json:"exclude,omitempty"`
}

// ConntrackFilter matches connections.
type ConntrackFilter struct {
	// +optional
	// +kubebuilder:validation:MaxItems=2
	AddressFamilies []string `json:"addressFamilies,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=6
	Protocols []string `json:"protocols,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=3
	NATTypes []string `json:"natTypes,omitempty"`
	// original is the connection before address translation.
	// +optional
	Original *ConntrackTuple `json:"original,omitempty"`
	// translated is the connection after address translation.
	// +optional
	Translated *ConntrackTuple `json:"translated,omitempty"`
}

// ConntrackTuple matches the addresses and ports of a connection.
type ConntrackTuple struct {
	// sourceCIDRs of the connection's source.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	SourceCIDRs []string `json:"sourceCIDRs,omitempty"`
	// destinationCIDRs of the connection's destination.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	DestinationCIDRs []string `json:"destinationCIDRs,omitempty"`
	// sourcePorts of the connection.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	SourcePorts []ConntrackPortRange `json:"sourcePorts,omitempty"`
	// destinationPorts of the connection.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	DestinationPorts []ConntrackPortRange `json:"destinationPorts,omitempty"`
}

// ConntrackPortRange is a range of ports; both ends belong to it.
type ConntrackPortRange struct {
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Start int32 `json:"start,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	End int32 `json:"end,omitempty"`
}
