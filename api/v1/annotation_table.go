// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Role says who writes an annotation of an object.
type Role string

const (
	// RoleRequest is an annotation that users write at any time. A change of one on a pod enqueues the pod.
	RoleRequest Role = "request"
	// RoleResult is an annotation that only kube-ovn-controller changes. On pods an admission policy denies other changes.
	RoleResult Role = "result"
	// RoleClaim is an annotation of a pod that is a request until the pod's network is allocated (PodNetwork.IsFor), and a result from then on.
	RoleClaim Role = "request, then result"
)

// The kinds of objects that have annotations.
const (
	OnPod           = "Pod"
	OnNode          = "Node"
	OnNamespace     = "Namespace"
	OnService       = "Service"
	OnIP            = "IP"
	OnNetworkPolicy = "NetworkPolicy"
	OnSwitchLBRule  = "SwitchLBRule"
	OnRouterLBRule  = "RouterLBRule"
)

// annotationEntry is a row of the table: an annotation of the objects of one kind.
type annotationEntry struct {
	name Annotation
	on   string
	role Role
	// parse reads a request of a pod into a PodRequest. A pod gets no network while such a request is not valid.
	parse func(*PodRequest, string) error
	// check returns why a request is not valid. Such a request is ignored with a warning.
	check func(string) error
}

// annotationTable holds each annotation of each kind of object. docs/reference-api.md has the same rows. Requests with neither parse nor check are
// read where they are used: DHCP options by internal/validation, annotations of rules and of NetworkPolicies by their controllers.
var annotationTable = []annotationEntry{
	{name: AnnotationPodUID, on: OnPod, role: RoleResult},
	{name: AnnotationAllocated, on: OnPod, role: RoleResult},
	{name: AnnotationRouted, on: OnPod, role: RoleResult},
	{name: AnnotationCIDR, on: OnPod, role: RoleResult},
	{name: AnnotationGateway, on: OnPod, role: RoleResult},
	{name: AnnotationLogicalRouter, on: OnPod, role: RoleResult},
	{name: AnnotationMTU, on: OnPod, role: RoleResult},
	{name: AnnotationPodNICType, on: OnPod, role: RoleResult},

	{name: AnnotationIPAddress, on: OnPod, role: RoleClaim, parse: func(r *PodRequest, s string) (err error) { r.Addresses, err = parseOnePerFamily(s); return }},
	{name: AnnotationMACAddress, on: OnPod, role: RoleClaim, parse: func(r *PodRequest, s string) (err error) { r.MAC, err = ParseMAC(s); return }},
	{name: AnnotationLogicalSwitch, on: OnPod, role: RoleClaim, parse: func(r *PodRequest, s string) (err error) { r.Subnet, err = parseName(s); return }},
	{name: AnnotationMachine, on: OnPod, role: RoleClaim}, // before the allocation MachineOf decides

	{name: AnnotationIPFamily, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.Family, err = parseFamily(s); return }},
	{name: AnnotationIPPool, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.Pools, r.Choices, err = parsePools(s); return }},
	{name: AnnotationVip, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.Vip, err = parseName(s); return }},
	{name: AnnotationRoutes, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.Routes, err = parseRoutes(s); return }},
	{name: AnnotationDefaultRoute, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.WithoutDefaultRoute, err = parseNo(s); return }},
	{name: AnnotationNorthGateway, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.NorthGateway, err = parseOnePerFamily(s); return }},
	{name: AnnotationPortVips, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.Vips, err = parseVips(s); return }},
	{name: AnnotationDHCPv4, on: OnPod, role: RoleRequest},
	{name: AnnotationDHCPv6, on: OnPod, role: RoleRequest},
	{name: AnnotationPortSecurity, on: OnPod, role: RoleRequest, check: valid(parseNo)},
	{name: AnnotationLayer2Forward, on: OnPod, role: RoleRequest, check: valid(parseNo)},
	{name: AnnotationAAPs, on: OnPod, role: RoleRequest, check: valid(parseNames)},
	{name: AnnotationGroups, on: OnPod, role: RoleRequest, check: valid(parseNames)}, // a group that cannot exist lets nothing through

	{name: AnnotationAllocated, on: OnNode, role: RoleResult},
	{name: AnnotationIPAddress, on: OnNode, role: RoleResult},
	{name: AnnotationMACAddress, on: OnNode, role: RoleResult},
	{name: AnnotationCIDR, on: OnNode, role: RoleResult},
	{name: AnnotationGateway, on: OnNode, role: RoleResult},
	{name: AnnotationLogicalSwitch, on: OnNode, role: RoleResult},
	{name: AnnotationPortName, on: OnNode, role: RoleResult},
	{name: AnnotationChassis, on: OnNode, role: RoleResult},

	{name: AnnotationNodeAddresses, on: OnIP, role: RoleResult},
	{name: AnnotationStatusAddresses, on: OnIP, role: RoleResult},

	{name: AnnotationLogicalSwitch, on: OnNamespace, role: RoleResult},
	{name: AnnotationCIDR, on: OnNamespace, role: RoleResult},
	{name: AnnotationExcludeIPs, on: OnNamespace, role: RoleResult},

	{name: AnnotationLogicalRouter, on: OnService, role: RoleRequest, check: valid(parseName)},
	{name: AnnotationVpc, on: OnService, role: RoleResult},

	{name: AnnotationLogicalRouter, on: OnSwitchLBRule, role: RoleRequest},
	{name: AnnotationLogicalSwitch, on: OnSwitchLBRule, role: RoleRequest},
	{name: AnnotationHealthCheck, on: OnSwitchLBRule, role: RoleRequest},
	{name: AnnotationHealthCheck, on: OnRouterLBRule, role: RoleRequest},

	{name: AnnotationEnableLog, on: OnNetworkPolicy, role: RoleRequest},
	{name: AnnotationLogActions, on: OnNetworkPolicy, role: RoleRequest},
	{name: AnnotationLogRate, on: OnNetworkPolicy, role: RoleRequest},
	{name: AnnotationEnforcement, on: OnNetworkPolicy, role: RoleRequest},
	{name: AnnotationPolicyFor, on: OnNetworkPolicy, role: RoleRequest},
}

// AnnotationsOf returns the annotations of the objects of a kind, in the order of the table: those of these roles, or all without roles.
func AnnotationsOf(kind string, roles ...Role) []Annotation {
	var names []Annotation
	for _, e := range annotationTable {
		if e.on == kind && (len(roles) == 0 || slices.Contains(roles, e.role)) {
			names = append(names, e.name)
		}
	}
	return names
}

// CheckRequests returns an AnnotationError for each annotation that users may write at any time on an object of a kind, and that is not valid.
func CheckRequests(kind string, annotations map[string]string) []error {
	var invalid []error
	for _, e := range annotationTable {
		if e.on == kind && e.role == RoleRequest {
			if err := e.read(annotations, ProviderOVN, &PodRequest{}); err != nil {
				invalid = append(invalid, err)
			}
		}
	}
	return invalid
}

// read reads one request among the annotations of an object. The error is an AnnotationError.
func (e annotationEntry) read(annotations map[string]string, provider string, into *PodRequest) error {
	value, err := RequestText(annotations, e.name.For(provider))
	switch {
	case err != nil || value == "":
		return err
	case e.parse != nil:
		err = e.parse(into, value)
	case e.check != nil:
		err = e.check(value)
	}
	if err != nil {
		return &AnnotationError{Key: e.name.For(provider), Value: value, Err: err}
	}
	return nil
}

// maxRequest is the length in bytes of the longest valid request: a list of 500 pairs of addresses of both families. It bounds the work
// that one object causes.
const maxRequest = 32 << 10

// RequestText returns the text of a request without the white space around it; empty when there is none. The error is an AnnotationError.
func RequestText(annotations map[string]string, key string) (string, error) {
	text := strings.TrimSpace(annotations[key])
	if len(text) > maxRequest {
		return "", &AnnotationError{Key: key, Value: text, Err: fmt.Errorf("must have at most %d bytes, and has %d", maxRequest, len(text))}
	}
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && !unicode.IsSpace(r) }) {
		return "", &AnnotationError{Key: key, Value: text, Err: errors.New("must have no control characters")}
	}
	return text, nil
}

// parseRequest reads one request of a pod on its first network: the zero value when there is none, or it is not valid.
func parseRequest[T any](annotations map[string]string, a Annotation, parse func(string) (T, error)) (request T) {
	text, err := RequestText(annotations, a.Key())
	if err != nil || text == "" {
		return request
	}
	if parsed, err := parse(text); err == nil {
		request = parsed
	}
	return request
}

func valid[T any](parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		_, err := parse(s)
		return err
	}
}

// parseName reads the name of an object of the API.
func parseName(s string) (string, error) {
	if len(validation.IsDNS1123Subdomain(s)) > 0 {
		return "", fmt.Errorf("%.100q is not the name of an object: write lower-case letters, digits, - and ., at most %d",
			s, validation.DNS1123SubdomainMaxLength)
	}
	return s, nil
}

// parseNames reads names of objects with commas between them.
func parseNames(s string) ([]string, error) {
	if err := checkLength(strings.Count(s, ",") + 1); err != nil {
		return nil, err
	}
	var names []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, err := parseName(item)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}
