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

// MaxListEntries bounds the lists in annotations. An annotation can have 256 KiB: tens of thousands of names, which kube-ovn-controller would
// look up for each pod and at each of its changes.
const MaxListEntries = 1024

// TooLong reports whether a list with commas between its entries is longer than MaxListEntries.
func TooLong(list string) bool { return strings.Count(list, ",") >= MaxListEntries }

// checkLength is the error of a list that is too long.
func checkLength(entries int) error {
	if entries > MaxListEntries {
		return fmt.Errorf("has %d entries, more than %d: use fewer", entries, MaxListEntries)
	}
	return nil
}

// PodRequest is the typed form of what a user asks for on a pod for one network. Annotations that hold results, too, are read
// as they stand: while PodNetwork.IsFor the pod, they say what it got.
// +kubebuilder:object:generate=false
type PodRequest struct {
	// Provider of the network; empty means ProviderOVN.
	Provider string
	// Subnet; empty leaves the choice to the namespace.
	Subnet string
	// Addresses, at most one per family; empty leaves the choice to the subnet.
	Addresses []netip.Addr
	// Pools are names of IPPools, to be tried in order; empty leaves the choice to the namespace.
	Pools []string
	// Choices are addresses, at most one per family each, of which the pod gets one: that of its ordinal in a StatefulSet, else any.
	Choices [][]netip.Addr
	// Vip is the name of the Vip whose addresses the pod has for its own.
	Vip string
	// MAC; nil has it follow from the first address.
	MAC net.HardwareAddr
	// Family limits a pod on a dual-stack subnet to one family; empty means every family of the subnet.
	Family corev1.IPFamily
	// NorthGateway are next hops of what leaves the VPC from the pod, at most one per family.
	NorthGateway []netip.Addr
	// Routes to add in the pod.
	Routes []Route
	// WithoutDefaultRoute leaves out the routes through the subnet's gateways to everything.
	WithoutDefaultRoute bool
	// Vips are addresses that the pod may use beside its own, as other pods may.
	Vips []netip.Addr
}

// Route is one route in a pod.
// +kubebuilder:object:generate=false
type Route struct {
	// Destination; the invalid prefix means the default route of the gateway's family.
	Destination netip.Prefix
	// Gateway; the invalid address means the subnet's.
	Gateway netip.Addr
}

// ParsePodRequest reads the annotations of the first network. The error is an AnnotationError and names the one to change.
func ParsePodRequest(annotations map[string]string) (PodRequest, error) {
	return ParsePodRequestOf(annotations, ProviderOVN)
}

// ParsePodRequestOf is ParsePodRequest for the network of a provider.
func ParsePodRequestOf(annotations map[string]string, provider string) (PodRequest, error) {
	r := PodRequest{Provider: provider}
	for _, e := range annotationTable {
		if e.parse != nil {
			if err := e.read(annotations, provider, &r); err != nil {
				return PodRequest{}, err
			}
		}
	}
	for _, address := range r.Addresses {
		if r.Family != "" && r.Family != familyOf(address) {
			err := fmt.Errorf("%s is not of family %s, the only one that %s asks for: remove one of them", address, r.Family, AnnotationIPFamily.For(provider))
			return PodRequest{}, &AnnotationError{Key: AnnotationIPAddress.For(provider), Value: annotations[AnnotationIPAddress.For(provider)], Err: err}
		}
	}
	return r, nil
}

// ParseNorthGateway reads the next hops of what leaves the VPC from a pod: none when they are not valid.
func ParseNorthGateway(annotations map[string]string) []netip.Addr {
	return parseRequest(annotations, AnnotationNorthGateway, parseOnePerFamily)
}

// ParsePortVips reads the addresses that a pod shares with others on its first network, each once: none when they are not valid.
func ParsePortVips(annotations map[string]string) []netip.Addr {
	return parseRequest(annotations, AnnotationPortVips, parseVips)
}

// ParseAAPs reads the names of the Vips that a pod shares with others: none when they are not valid.
func ParseAAPs(annotations map[string]string) []string {
	return parseRequest(annotations, AnnotationAAPs, parseNames)
}

// IsTrue reports whether a pod has the request "true" on its first network.
func IsTrue(annotations map[string]string, a Annotation) bool {
	text, err := RequestText(annotations, a.Key())
	return err == nil && text == "true"
}

var keySecurityGroups = AnnotationGroups.Key()

// ParseSecurityGroups reads the names of a pod's security groups on its first network, each once and in order. It keeps names that no group can
// have: a group that does not exist lets nothing through. A pod that names too many is closed.
func ParseSecurityGroups(annotations map[string]string) []string {
	value := annotations[keySecurityGroups]
	if value == "" {
		return nil
	}
	if TooLong(value) {
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

// parsePools takes names of IPPools with commas, or addresses: `a,b,c`, and `a,b;c,d` for pairs of both families. Two addresses of
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

// ParseMAC reads a MAC address that a port can have: a unicast address of 48 bits.
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

// parseVips reads addresses, each once.
func parseVips(s string) ([]netip.Addr, error) {
	addresses, err := parseList(s, parseAddress)
	seen := make(map[netip.Addr]bool, len(addresses))
	return slices.DeleteFunc(addresses, func(a netip.Addr) bool {
		repeated := seen[a]
		seen[a] = true
		return repeated
	}), err
}

// parseNo reads whether something is not wanted.
func parseNo(s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, errors.New("must be true or false")
	}
	return s == "false", nil
}

func parseFamily(s string) (corev1.IPFamily, error) {
	switch strings.ToLower(s) {
	case "ipv4":
		return corev1.IPv4Protocol, nil
	case "ipv6":
		return corev1.IPv6Protocol, nil
	case "dual":
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

// parseDestination takes a CIDR or a single address.
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
