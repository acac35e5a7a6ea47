// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"strings"
)

// ProtectionMode defines whether the packets for ovn-controller are limited.
// +kubebuilder:validation:Enum=Limited;Unlimited
type ProtectionMode string

// Values of ProtectionMode.
const (
	ProtectionLimited   ProtectionMode = "Limited"
	ProtectionUnlimited ProtectionMode = "Unlimited"
)

// ControlPlaneProtection limits the packets that a node's Open vSwitch passes to ovn-controller, which has one thread for all of them. Each VPC has
// limits of its own on each node, so that a flood in one VPC does not use up the limits of another. Health checks are not limited.
type ControlPlaneProtection struct {
	// mode is Limited or Unlimited. With Unlimited, pods of one VPC can delay DHCP, neighbour discovery, refused connections and ICMP errors of
	// all pods on their node.
	// +optional
	// +kubebuilder:default=Limited
	Mode ProtectionMode `json:"mode,omitempty"`
	// packetsPerSecond are the limits of each VPC on each node. Packets of one second can arrive at once. Open vSwitch drops further ones.
	// +optional
	PacketsPerSecond ControlPacketRates `json:"packetsPerSecond,omitempty"`
}

// ControlPacketRates are limits by the kind of packet, in packets per second.
type ControlPacketRates struct {
	// dhcp limits requests of DHCP and DHCPv6, and router solicitations. When it is not set: 1000.
	// +optional
	// +kubebuilder:validation:Minimum=50
	// +kubebuilder:validation:Maximum=1000000
	DHCP int32 `json:"dhcp,omitempty"`
	// neighbors limits neighbour solicitations that OVN answers, and ARP packets and neighbour advertisements that routers of OVN learn from. When it
	// is not set: 2000.
	// +optional
	// +kubebuilder:validation:Minimum=50
	// +kubebuilder:validation:Maximum=1000000
	Neighbors int32 `json:"neighbors,omitempty"`
	// resolutions limits packets for whose next hop a router of OVN has to find the MAC address. When it is not set: 1000.
	// +optional
	// +kubebuilder:validation:Minimum=50
	// +kubebuilder:validation:Maximum=1000000
	Resolutions int32 `json:"resolutions,omitempty"`
	// rejects limits connections that OVN refuses: to Services without endpoints, by ACLs with the action reject, and to addresses of
	// routers. When it is not set: 1000.
	// +optional
	// +kubebuilder:validation:Minimum=50
	// +kubebuilder:validation:Maximum=1000000
	Rejects int32 `json:"rejects,omitempty"`
	// errors limits packets that routers of OVN answer with an ICMP error: larger than the MTU, with an expired hop limit, or to a port of the
	// router. When it is not set: 1000.
	// +optional
	// +kubebuilder:validation:Minimum=50
	// +kubebuilder:validation:Maximum=1000000
	Errors int32 `json:"errors,omitempty"`
	// multicast limits packets of IGMP and MLD in subnets with enableMulticastSnoop. When it is not set: 1000.
	// +optional
	// +kubebuilder:validation:Minimum=50
	// +kubebuilder:validation:Maximum=1000000
	Multicast int32 `json:"multicast,omitempty"`
	// bfd limits packets of BFD to external ports of a VPC's router. 64 sessions with minTransmit 50ms receive 1,280. When it is not set: 2000.
	// +optional
	// +kubebuilder:validation:Minimum=50
	// +kubebuilder:validation:Maximum=1000000
	BFD int32 `json:"bfd,omitempty"`
}

// Effective returns the rates with defaults for those that are not set. A node can start 110 pods at once, of which each sends a few packets of
// DHCP and neighbour discovery in each family, and more for each peer.
func (r ControlPacketRates) Effective() ControlPacketRates {
	return ControlPacketRates{
		DHCP:        cmp.Or(r.DHCP, 1000),
		Neighbors:   cmp.Or(r.Neighbors, 2000),
		Resolutions: cmp.Or(r.Resolutions, 1000),
		Rejects:     cmp.Or(r.Rejects, 1000),
		Errors:      cmp.Or(r.Errors, 1000),
		Multicast:   cmp.Or(r.Multicast, 1000),
		BFD:         cmp.Or(r.BFD, 2000),
	}
}

// meterPrefix starts the names of OVN's meters for the limits.
const meterPrefix = "copp-"

// PacketMeter returns the name of OVN's meter for a kind of packets of a VPC. Kinds contain no dash.
func PacketMeter(kind, vpc string) string { return meterPrefix + kind + "-" + vpc }

// ParsePacketMeter is the inverse of PacketMeter. It returns false for other meters.
func ParsePacketMeter(name string) (kind, vpc string, ok bool) {
	rest, ours := strings.CutPrefix(name, meterPrefix)
	kind, vpc, ok = strings.Cut(rest, "-")
	return kind, vpc, ours && ok
}
