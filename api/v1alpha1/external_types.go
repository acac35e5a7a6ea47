// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ExternalGatewayConfig is the name of the ConfigMap of Kube-OVN about external gateways, in the namespace of the operator.
	ExternalGatewayConfig = "ovn-external-gw-config"
	// ExternalGatewayLabel with the value "true" is on nodes that can host external ports, while the ConfigMap enables external gateways. NodeRestriction denies it to
	// kubelets.
	ExternalGatewayLabel = "ovn.kubernetes.io/external-gw"
	// MaxExternalGatewayNodes bounds the nodes that the ConfigMap names.
	MaxExternalGatewayNodes = 1000
)

// ExternalGateways are settings of the ports of VPCs' routers in external subnets.
type ExternalGateways struct {
	// nodeSelector selects the nodes that can host the ports, among those of the ProviderNetwork. When it is empty, the ConfigMap ovn-external-gw-config in the namespace of
	// the operator decides, if its enable-external-gw is true: nodes in its external-gw-nodes, and nodes with the label ovn.kubernetes.io/external-gw=true. Otherwise all
	// nodes of the ProviderNetwork can host the ports.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// bfd has the times of sessions with physical routers, which Vpcs request by enableBfd and staticRoutes.bfdId.
	// +optional
	BFD BFD `json:"bfd,omitempty"`
}

// ExternalGatewaysStatus has the settings of the ConfigMap ovn-external-gw-config.
type ExternalGatewaysStatus struct {
	// nodes of external-gw-nodes, sorted. Nodes with the label ovn.kubernetes.io/external-gw=true are selected, too.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	Nodes []string `json:"nodes,omitempty"`
}

// BFD defines a BFD session. The failure of a path is detected after minReceive times multiplier.
type BFD struct {
	// minTransmit is the interval of packets. By default 300ms.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('50ms') && duration(self) <= duration('60s')",message="minTransmit is 50ms to 60s"
	MinTransmit *metav1.Duration `json:"minTransmit,omitempty"`
	// minReceive is the interval in which the router's packets are expected. By default 300ms.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('50ms') && duration(self) <= duration('60s')",message="minReceive is 50ms to 60s"
	MinReceive *metav1.Duration `json:"minReceive,omitempty"`
	// multiplier is the number of missing packets that count as a failure. By default 3.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=50
	Multiplier int32 `json:"multiplier,omitempty"`
}

// Intervals returns the times of a session, with defaults for those that are not set. b may be nil.
func (b *BFD) Intervals() (transmit, receive time.Duration, multiplier int32) {
	transmit, receive, multiplier = DefaultBFDInterval, DefaultBFDInterval, DefaultBFDMultiplier
	if b == nil {
		return transmit, receive, multiplier
	}
	if b.MinTransmit != nil {
		transmit = b.MinTransmit.Duration
	}
	if b.MinReceive != nil {
		receive = b.MinReceive.Duration
	}
	return transmit, receive, cmp.Or(b.Multiplier, multiplier)
}
