// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PingerMode defines whether kube-ovn-pinger runs.
// +kubebuilder:validation:Enum=Enabled;Disabled
type PingerMode string

// Values of PingerMode.
const (
	PingerEnabled  PingerMode = "Enabled"
	PingerDisabled PingerMode = "Disabled"
)

// Defaults of Pinger.
const (
	DefaultPingerInterval = 5 * time.Second
	DefaultPeers          = 10
)

// Pinger defines kube-ovn-pinger, a pod on every node that checks the network in rounds and serves the results as metrics. Except for mode and
// resources, its pods apply changes while they run.
type Pinger struct {
	// mode is Enabled or Disabled.
	// +optional
	// +kubebuilder:default=Enabled
	Mode PingerMode `json:"mode,omitempty"`
	// interval between the starts of two rounds of checks.
	// +optional
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="interval is 1s to 1h"
	Interval *metav1.Duration `json:"interval,omitempty"`
	// peers is the maximum number of other nodes that each node pings in every round: their addresses and their pods of kube-ovn-pinger. In
	// clusters with more nodes every node is pinged by as many others. Each peer has up to 48 series in the metrics of a node.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Peers *int32 `json:"peers,omitempty"`
	// externalAddresses are addresses outside of the cluster that are pinged. Addresses of a family that pods do not have are skipped.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="must be addresses",messageExpression="'must be addresses, and are ' + self.join(', ')"
	ExternalAddresses []string `json:"externalAddresses,omitempty"`
	// internalNames are names of the cluster that are resolved, as programs in pods do. An empty list turns the check off.
	// +optional
	// +listType=set
	// +kubebuilder:default={"kubernetes.default"}
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9.])?$')`,message="must be a DNS name, such as kubernetes.default"
	InternalNames []string `json:"internalNames,omitempty"`
	// externalNames are names outside of the cluster that are resolved.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9.])?$')`,message="must be a DNS name, such as example.com"
	ExternalNames []string `json:"externalNames,omitempty"`
	Workload      `json:",inline"`
	// logLevel is the verbosity of kube-ovn-pinger; 0 is info, 1 adds decisions.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	LogLevel int32 `json:"logLevel,omitempty"`
}
