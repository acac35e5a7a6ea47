// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ExternalGateways are settings of the ports of VPCs' routers in external subnets.
type ExternalGateways struct {
	// bfd has the times of sessions with physical routers, which Vpcs request by enableBfd and staticRoutes.bfdId.
	// +optional
	BFD BFD `json:"bfd,omitempty"`
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
