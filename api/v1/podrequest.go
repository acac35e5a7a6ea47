// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// MaxListEntries is the maximum length of lists in annotations. An annotation can have 256 KiB: tens of thousands of names, which
// kube-ovn-controller would look up at each change of the pod.
const MaxListEntries = 1024

// TooLong reports whether a comma-separated list has more than MaxListEntries entries.
func TooLong(list string) bool { return strings.Count(list, ",") >= MaxListEntries }

// checkLength returns an error if a list has more than MaxListEntries entries.
func checkLength(entries int) error {
	if entries > MaxListEntries {
		return fmt.Errorf("has %d entries, more than %d: use fewer", entries, MaxListEntries)
	}
	return nil
}

// PodRequest is the typed form of the annotations by which a user configures one network of a pod. Annotations with RoleClaim are included
// as they are: after the allocation (PodNetwork.IsFor) they hold the result.
// +kubebuilder:object:generate=false
type PodRequest struct {
	// Provider of the network; empty means ProviderOVN.
	Provider string
	// Subnet; if empty, the namespace determines it.
	Subnet string
	// Addresses, at most one per family; if empty, any addresses of the subnet.
	Addresses []netip.Addr
	// Pools are names of IPPools, which are tried in order; if empty, the namespace determines them.
	Pools []string
	// Choices are alternatives, each with at most one address per family. The pod gets one of them: in a StatefulSet the one at its
	// ordinal, otherwise any free one.
	Choices [][]netip.Addr
	// Vip is the name of the Vip whose addresses the pod uses as its own.
	Vip string
	// MAC; if nil, it is derived from the first address.
	MAC net.HardwareAddr
	// Family limits a pod on a dual-stack subnet to one family; if empty, the pod gets every family of the subnet.
	Family corev1.IPFamily
	// NorthGateway are the next hops for traffic of the pod that leaves the VPC, at most one per family.
	NorthGateway []netip.Addr
	// Routes are additional routes in the pod.
	Routes []Route
	// WithoutDefaultRoute omits the default routes through the subnet's gateways.
	WithoutDefaultRoute bool
	// Vips are additional addresses that the pod may share with other pods.
	Vips []netip.Addr
}

// Route is a route in a pod.
// +kubebuilder:object:generate=false
type Route struct {
	// Destination; the invalid prefix stands for the default route of the family of Gateway.
	Destination netip.Prefix
	// Gateway; the invalid address stands for the gateway of the subnet.
	Gateway netip.Addr
}

// ParsePodRequest reads the annotations of the first network. The error is an AnnotationError with the key of the first invalid annotation; the
// request then has the valid ones.
func ParsePodRequest(annotations map[string]string) (PodRequest, error) {
	return ParsePodRequestOf(annotations, ProviderOVN)
}

// ParsePodRequestOf is ParsePodRequest for the network of a provider.
func ParsePodRequestOf(annotations map[string]string, provider string) (PodRequest, error) {
	r := PodRequest{Provider: provider}
	var first error
	for _, e := range annotationTable {
		if e.parse != nil {
			if err := e.read(annotations, provider, &r); first == nil {
				first = err
			}
		}
	}
	if first != nil {
		return r, first
	}
	for _, address := range r.Addresses {
		if r.Family != "" && r.Family != familyOf(address) {
			err := fmt.Errorf("%s is not of family %s, the only one that %s asks for: remove one of them", address, r.Family, AnnotationIPFamily.For(provider))
			return r, &AnnotationError{Key: AnnotationIPAddress.For(provider), Value: annotations[AnnotationIPAddress.For(provider)], Err: err}
		}
	}
	return r, nil
}

// ParsePortVips returns the addresses that a pod shares with others on its first network without duplicates, or none if the annotation is
// invalid.
func ParsePortVips(annotations map[string]string) []netip.Addr {
	return parseRequest(annotations, AnnotationPortVips, parseVips)
}

// ParseAAPs returns the names of the Vips that a pod shares with others, or none if the annotation is invalid.
func ParseAAPs(annotations map[string]string) []string {
	return parseRequest(annotations, AnnotationAAPs, parseNames)
}

// IsTrue reports whether the annotation a has the value "true" for the first network of a pod.
func IsTrue(annotations map[string]string, a Annotation) bool {
	return IsTrueOf(annotations, a, ProviderOVN)
}

// IsTrueOf is IsTrue for the network of a provider.
func IsTrueOf(annotations map[string]string, a Annotation, provider string) bool {
	text, err := RequestText(annotations, a.For(provider))
	return err == nil && text == "true"
}

var keySecurityGroups, keyKeptGroups = AnnotationGroups.Key(), AnnotationKeptGroups.Key()

// ParseSecurityGroups returns the names of a pod's security groups on its first network, sorted and without duplicates. It keeps invalid
// names, because a group that does not exist allows nothing. For a list that CheckRequests calls too long it returns DenyAllGroup.
func ParseSecurityGroups(annotations map[string]string) []string {
	value := annotations[keySecurityGroups]
	if value == "" || IsMirror(annotations) {
		return nil
	}
	if TooLong(value) || len(value) > maxRequest {
		return []string{DenyAllGroup}
	}
	var names []string
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// KeptSecurityGroups returns the groups that a pod is in according to its results; none if these are for another pod.
func KeptSecurityGroups(pod *corev1.Pod) []string {
	kept := pod.Annotations[keyKeptGroups]
	if kept == "" || !IsPublished(pod) {
		return nil
	}
	return strings.Split(kept, ",")
}

func familyOf(address netip.Addr) corev1.IPFamily {
	if address.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func parseOnePerFamily(s string) ([]netip.Addr, error) {
	addresses, err := parseList(s, parseAddress)
	if err != nil {
		return nil, err
	}
	if len(addresses) > 2 || len(addresses) == 2 && addresses[0].Is4() == addresses[1].Is4() {
		return nil, errors.New("at most one address of each family may be given")
	}
	return addresses, nil
}

// ParseExternal returns the addresses of an OvnEip that a pod requests by AnnotationEip or AnnotationSnat; none if the request is missing or invalid.
func ParseExternal(annotations map[string]string, a Annotation) []netip.Addr {
	return parseRequest(annotations, a, parseOnePerFamily)
}

// parsePools parses names of IPPools separated by commas, or addresses: `a,b,c`, and `a,b;c,d` for pairs of both families. Two addresses of
// different families without a semicolon are one pair.
func parsePools(s string) (names []string, choices [][]netip.Addr, err error) {
	items := strings.Split(s, ";")
	if len(items) == 1 {
		items = strings.Split(s, ",")
	}
	if pair, err := parseOnePerFamily(s); err == nil && len(pair) == 2 {
		return nil, [][]netip.Addr{pair}, nil
	}
	if err := checkLength(len(items)); err != nil {
		return nil, nil, err
	}
	for _, item := range items {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		if choice, err := parseOnePerFamily(item); err == nil {
			choices = append(choices, choice)
			continue
		}
		names = append(names, item)
	}
	if len(names) > 0 && (len(choices) > 0 || strings.ContainsAny(s, ";:/ ")) {
		return nil, nil, errors.New("must be names of IPPools like a,b or addresses like 10.16.0.2,10.16.0.3 or 10.16.0.2,fd00::2;10.16.0.3,fd00::3")
	}
	names, err = parseNames(strings.Join(names, ","))
	return names, choices, err
}

// ParseMAC parses a 48-bit unicast MAC address.
func ParseMAC(s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	if err != nil {
		return nil, err
	}
	if len(mac) != 6 {
		return nil, errors.New("a MAC address has 48 bits")
	}
	if mac[0]&1 != 0 || [6]byte(mac) == [6]byte{} {
		return nil, errors.New("not a unicast MAC address")
	}
	return mac, nil
}

// parseVips parses a list of addresses and removes duplicates.
func parseVips(s string) ([]netip.Addr, error) {
	addresses, err := parseList(s, parseAddress)
	seen := make(map[netip.Addr]bool, len(addresses))
	return slices.DeleteFunc(addresses, func(a netip.Addr) bool {
		repeated := seen[a]
		seen[a] = true
		return repeated
	}), err
}

func withoutDefaultRoute(r *PodRequest, s string) error {
	with, err := parseBool(s)
	r.WithoutDefaultRoute = err == nil && !with
	return err
}

func parseBool(s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, errors.New("must be true or false")
	}
	return s == "true", nil
}

func parseFamily(s string) (corev1.IPFamily, error) {
	switch {
	case strings.EqualFold(s, "ipv4"):
		return corev1.IPv4Protocol, nil
	case strings.EqualFold(s, "ipv6"):
		return corev1.IPv6Protocol, nil
	case strings.EqualFold(s, "dual"):
		return "", nil
	}
	return "", errors.New("must be ipv4 or ipv6")
}

func parseRoutes(s string) ([]Route, error) {
	var items []struct {
		Destination string `json:"dst"`
		Gateway     string `json:"gw"`
	}
	if err := json.Unmarshal([]byte(s), &items); err != nil {
		return nil, fmt.Errorf(`must be a JSON list like [{"dst":"192.168.0.0/16","gw":"10.16.0.2"}]: %w`, err)
	}
	if err := checkLength(len(items)); err != nil {
		return nil, err
	}
	routes := make([]Route, 0, len(items))
	for _, item := range items {
		var route Route
		var err error
		if item.Gateway != "" {
			if route.Gateway, err = parseAddress(item.Gateway); err != nil {
				return nil, err
			}
		}
		if item.Destination != "" {
			if route.Destination, err = parseDestination(item.Destination); err != nil {
				return nil, err
			}
		}
		if err := route.check(); err != nil {
			return nil, err
		}
		routes = append(routes, route)
	}
	return routes, nil
}

// parseDestination parses a CIDR or an address.
func parseDestination(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		address, err := parseAddress(s)
		if err != nil {
			return netip.Prefix{}, err
		}
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := parseCIDR(s)
	return prefix.Masked(), err
}

func (r Route) check() error {
	switch {
	case !r.Destination.IsValid() && !r.Gateway.IsValid():
		return errors.New("a route needs a dst or a gw")
	case r.Destination.IsValid() && r.Gateway.IsValid() && r.Destination.Addr().Is4() != r.Gateway.Is4():
		return fmt.Errorf("route to %s has the gateway %s of the other family", r.Destination, r.Gateway)
	}
	return nil
}
