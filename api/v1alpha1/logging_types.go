// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// LogFormat is the form of log lines.
// +kubebuilder:validation:Enum=JSON;Text
type LogFormat string

// Values of LogFormat.
const (
	LogJSON LogFormat = "JSON"
	LogText LogFormat = "Text"
)

// DaemonLogLevel is a level of the logs of OVN and Open vSwitch (ovs-appctl(8), vlog/set): off, emer, err, warn, info or dbg.
type DaemonLogLevel string

// DaemonLogInfo is the default level.
const DaemonLogInfo DaemonLogLevel = "info"

// Logging defines the logs of all components. Processes apply changes while they run; no pod is replaced. The levels of
// kube-ovn-controller, of the agents and of the databases' supervisors are controller.logLevel, agent.logLevel and central.logLevel.
type Logging struct {
	// format of the log lines of Kiln's processes: JSON, or Text for people. The daemons of OVN and Open vSwitch have their own format.
	// +optional
	// +kubebuilder:default=JSON
	Format LogFormat `json:"format,omitempty"`
	// operatorLevel is the verbosity of kiln-operator; 0 is info, 1 adds decisions.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	OperatorLevel int32 `json:"operatorLevel,omitempty"`
	// databases is the level of the ovsdb-servers of the northbound and the southbound database: warn, info or dbg. Their supervisors need
	// the warnings.
	// +optional
	// +kubebuilder:default=info
	// +kubebuilder:validation:Enum=warn;info;dbg
	Databases DaemonLogLevel `json:"databases,omitempty"`
	// northd is the level of ovn-northd: off, emer, err, warn, info or dbg.
	// +optional
	// +kubebuilder:default=info
	// +kubebuilder:validation:Enum=off;emer;err;warn;info;dbg
	Northd DaemonLogLevel `json:"northd,omitempty"`
	// openVSwitch is the level of ovs-vswitchd and of the ovsdb-server on each node: off, emer, err, warn, info or dbg.
	// +optional
	// +kubebuilder:default=info
	// +kubebuilder:validation:Enum=off;emer;err;warn;info;dbg
	OpenVSwitch DaemonLogLevel `json:"openVSwitch,omitempty"`
	// ovnController is the level of ovn-controller on each node: off, emer, err, warn, info or dbg.
	// +optional
	// +kubebuilder:default=info
	// +kubebuilder:validation:Enum=off;emer;err;warn;info;dbg
	OVNController DaemonLogLevel `json:"ovnController,omitempty"`
}

// Profiling defines whether processes serve profiles.
// +kubebuilder:validation:Enum=Enabled;Disabled
type Profiling string

// Values of Profiling.
const (
	ProfilingEnabled  Profiling = "Enabled"
	ProfilingDisabled Profiling = "Disabled"
)

// Debug defines what helps to find faults of Kiln itself.
type Debug struct {
	// profiling is Enabled or Disabled. Enabled: each of Kiln's processes serves profiles of Go (net/http/pprof) on 127.0.0.1 of its node,
	// to every process that runs there. It applies while the processes run; no pod is replaced.
	// +optional
	// +kubebuilder:default=Disabled
	Profiling Profiling `json:"profiling,omitempty"`
}
