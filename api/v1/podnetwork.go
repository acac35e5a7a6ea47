// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// PodNetwork is the typed form of the annotations that kube-ovn-controller writes on a pod for one network. It holds the complete result of
// an allocation: the agent reads no other object. Nodes have the same annotations for their port on the join subnet.
// +kubebuilder:object:generate=false
type PodNetwork struct {
	// Provider of the network; empty means ProviderOVN.
	Provider string
	// UID of the pod that the result is for. A pod that was recreated under the same name, or that has copied annotations, has another UID.
	UID types.UID
	// Allocated: the port exists in the northbound database.
	Allocated bool
	// Routed: the policies and routes of the port exist in the northbound database, too.
	Routed bool
	// Addresses, at most one per family, in the order of CIDRs.
	Addresses []netip.Addr
	MAC       net.HardwareAddr
	// CIDRs of the subnet, one per family.
	CIDRs []netip.Prefix
	// Gateways of the subnet, in the order of CIDRs.
	Gateways []netip.Addr
	// LogicalSwitch is the name of the subnet, LogicalRouter the name of its VPC.
	LogicalSwitch string
	LogicalRouter string
	// MTU of the subnet in bytes. 0: the agent chooses.
	MTU int
	// ProviderNetwork is the physical network of an underlay subnet, and VLAN the tag there. Both are empty for an overlay subnet.
	ProviderNetwork string
	VLAN            int
	// Groups are the security groups that the pod is in.
	Groups []string
	// NICType is PodNICTypeVeth.
	NICType string
	// Machine is the name of the virtual machine that owns the port. Empty if the pod owns it.
	Machine string
}

// IsFor reports whether this is the result of an allocation for the pod with that UID. Otherwise the annotations come from another pod, a
// user or Kube-OVN, and their addresses are a request.
func (p PodNetwork) IsFor(uid types.UID) bool { return p.Allocated && uid != "" && p.UID == uid }

// Annotations returns the annotations of the network. It omits empty fields.
func (p PodNetwork) Annotations() map[string]string {
	provider := cmp.Or(p.Provider, ProviderOVN)
	out := make(map[string]string, 12)
	set := func(a Annotation, value string) {
		if value != "" {
			out[a.For(provider)] = value
		}
	}
	set(AnnotationPodUID, string(p.UID))
	if p.Allocated {
		set(AnnotationAllocated, "true")
	}
	if p.Routed {
		set(AnnotationRouted, "true")
	}
	set(AnnotationIPAddress, joinStringers(p.Addresses))
	set(AnnotationMACAddress, p.MAC.String())
	set(AnnotationCIDR, joinStringers(p.CIDRs))
	set(AnnotationGateway, joinStringers(p.Gateways))
	set(AnnotationLogicalSwitch, p.LogicalSwitch)
	set(AnnotationLogicalRouter, p.LogicalRouter)
	set(AnnotationPodNICType, p.NICType)
	set(AnnotationMachine, p.Machine)
	set(AnnotationKeptGroups, strings.Join(p.Groups, ","))
	if p.ProviderNetwork != "" {
		set(AnnotationProviderNetwork, p.ProviderNetwork)
		set(AnnotationVlanID, strconv.Itoa(p.VLAN))
	}
	if p.MTU > 0 {
		set(AnnotationMTU, strconv.Itoa(p.MTU))
	}
	return out
}

// ParsePodNetwork reads the annotations of the first network. A missing annotation leaves its field empty. The error is an AnnotationError
// with the key of the invalid annotation.
func ParsePodNetwork(annotations map[string]string) (PodNetwork, error) {
	return ParsePodNetworkOf(annotations, ProviderOVN)
}

// ParsePodNetworkOf is ParsePodNetwork for the network of a provider.
func ParsePodNetworkOf(annotations map[string]string, provider string) (PodNetwork, error) {
	get := func(a Annotation) string { return strings.TrimSpace(annotations[a.For(provider)]) }
	p := PodNetwork{
		Provider:      provider,
		UID:           types.UID(get(AnnotationPodUID)),
		Allocated:     get(AnnotationAllocated) == "true",
		Routed:        get(AnnotationRouted) == "true",
		LogicalSwitch: get(AnnotationLogicalSwitch),
		LogicalRouter: get(AnnotationLogicalRouter),
		NICType:       get(AnnotationPodNICType),
		Machine:       get(AnnotationMachine),

		ProviderNetwork: get(AnnotationProviderNetwork),
	}
	fields := []struct {
		annotation Annotation
		parse      func(string) error
	}{
		{AnnotationIPAddress, func(s string) (err error) { p.Addresses, err = parseList(s, parseAddress); return }},
		{AnnotationMACAddress, func(s string) (err error) { p.MAC, err = ParseMAC(s); return }},
		{AnnotationCIDR, func(s string) (err error) { p.CIDRs, err = parseList(s, parseCIDR); return }},
		{AnnotationGateway, func(s string) (err error) { p.Gateways, err = parseList(s, parseAddress); return }},
		{AnnotationMTU, func(s string) (err error) { p.MTU, err = parseMTU(s); return }},
		{AnnotationKeptGroups, func(s string) error { p.Groups = strings.Split(s, ","); return nil }},
		{AnnotationVlanID, func(s string) (err error) { p.VLAN, err = parseVLAN(s); return }},
	}
	for _, f := range fields {
		value := get(f.annotation)
		if value == "" {
			continue
		}
		if err := f.parse(value); err != nil {
			return PodNetwork{}, &AnnotationError{Key: f.annotation.For(provider), Value: value, Err: err}
		}
	}
	return p, nil
}

// AnnotationError is the error of an invalid annotation.
// +kubebuilder:object:generate=false
type AnnotationError struct {
	Key   string
	Value string
	Err   error
}

// Error returns the key of the annotation, the cause, and the beginning of the value, which users control.
func (e *AnnotationError) Error() string {
	return fmt.Sprintf("annotation %s=%.100q: %.300s", e.Key, e.Value, e.Err)
}

// Unwrap returns the cause.
func (e *AnnotationError) Unwrap() error { return e.Err }

func joinStringers[T fmt.Stringer](values []T) string {
	parts := make([]string, len(values))
	for i, v := range values {
		parts[i] = v.String()
	}
	return strings.Join(parts, ",")
}

func parseList[T any](s string, parse func(string) (T, error)) ([]T, error) {
	parts := strings.Split(s, ",")
	if err := checkLength(len(parts)); err != nil {
		return nil, err
	}
	out := make([]T, 0, len(parts))
	for _, part := range parts {
		v, err := parse(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// parseCIDR parses a CIDR and retains the bits after the prefix length.
func parseCIDR(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(s)
	if err == nil && prefix.Addr().Is4In6() {
		err = fmt.Errorf("%s is IPv4 in IPv6: write the IPv4 CIDR", prefix)
	}
	return prefix, err
}

// parseMTU parses an MTU that a Linux interface can have: at most 65535.
func parseMTU(s string) (int, error) {
	mtu, err := strconv.ParseUint(s, 10, 16)
	return int(mtu), err
}

// parseVLAN parses a VLAN ID (IEEE 802.1Q), or 0.
func parseVLAN(s string) (int, error) {
	id, err := strconv.ParseUint(s, 10, 12)
	return int(id), err
}

// parseAddress parses an address. It removes the zone and converts IPv4-mapped IPv6 addresses to IPv4.
func parseAddress(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, err
	}
	return a.WithZone("").Unmap(), nil
}
