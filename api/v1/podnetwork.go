// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// PodNetwork is the typed form of what the controller writes on a pod for one network: the result of an allocation, complete
// for the agent, which needs no other object. Nodes carry the same annotations for their port on the join subnet.
// +kubebuilder:object:generate=false
type PodNetwork struct {
	// Provider of the network; empty means ProviderOVN.
	Provider string
	// UID of the pod the result is for. A pod that was created again under the same name, or with copied annotations, has another.
	UID types.UID
	// Allocated: the port is in the northbound database.
	Allocated bool
	// Routed: policies and routes of the port are in the northbound database, too.
	Routed bool
	// Addresses, at most one per family, in the order of CIDRs.
	Addresses []netip.Addr
	MAC       net.HardwareAddr
	// CIDRs of the subnet, one per family.
	CIDRs []netip.Prefix
	// Gateways of the subnet, in the order of CIDRs.
	Gateways []netip.Addr
	// LogicalSwitch is the subnet's name, LogicalRouter its VPC's.
	LogicalSwitch string
	LogicalRouter string
	// MTU of the subnet in bytes; 0 leaves it to the agent.
	MTU int
	// NICType is PodNICTypeVeth.
	NICType string
	// Machine is the name of the virtual machine that the port is of; empty for a pod's own.
	Machine string
}

// IsFor reports whether this is an allocation made for the pod with that UID. What other pods left behind, and what users and
// Kube-OVN wrote, is not: its addresses count as a request.
func (p PodNetwork) IsFor(uid types.UID) bool { return p.Allocated && uid != "" && p.UID == uid }

// Annotations is the form kept on the object. Empty fields are left out.
func (p PodNetwork) Annotations() map[string]string {
	provider := providerOrDefault(p.Provider)
	out := make(map[string]string, 12)
	set := func(a Annotation, value string) {
		if value != "" {
			out[a.For(provider)] = value
		}
	}
	set(AnnotationPodUID, string(p.UID))
	set(AnnotationAllocated, trueOrEmpty(p.Allocated))
	set(AnnotationRouted, trueOrEmpty(p.Routed))
	set(AnnotationIPAddress, joinStringers(p.Addresses))
	set(AnnotationMACAddress, p.MAC.String())
	set(AnnotationCIDR, joinStringers(p.CIDRs))
	set(AnnotationGateway, joinStringers(p.Gateways))
	set(AnnotationLogicalSwitch, p.LogicalSwitch)
	set(AnnotationLogicalRouter, p.LogicalRouter)
	set(AnnotationPodNICType, p.NICType)
	set(AnnotationMachine, p.Machine)
	if p.MTU > 0 {
		set(AnnotationMTU, strconv.Itoa(p.MTU))
	}
	return out
}

// ParsePodNetwork reads the annotations of the first network. Absent annotations leave their fields empty; the error names the
// annotation that cannot be read.
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

// AnnotationError is an annotation that cannot be read.
// +kubebuilder:object:generate=false
type AnnotationError struct {
	Key   string
	Value string
	Err   error
}

// Error returns the annotation's key, the beginning of its value, which users control, and the cause.
func (e *AnnotationError) Error() string {
	return fmt.Sprintf("annotation %s=%.100q: %.300s", e.Key, e.Value, e.Err)
}

// Unwrap returns the cause.
func (e *AnnotationError) Unwrap() error { return e.Err }

func providerOrDefault(provider string) string {
	if provider == "" {
		return ProviderOVN
	}
	return provider
}

func trueOrEmpty(b bool) string {
	if b {
		return "true"
	}
	return ""
}

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

// parseCIDR takes a CIDR. It keeps the bits after the prefix.
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

// parseAddress takes an address without zone; IPv4 in IPv6 counts as IPv4.
func parseAddress(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, err
	}
	return a.WithZone("").Unmap(), nil
}
