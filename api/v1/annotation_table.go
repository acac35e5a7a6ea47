// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Role defines which users and components may write an annotation.
type Role string

const (
	// RoleRequest is the role of annotations that users may write at any time. A change on a pod enqueues the pod.
	RoleRequest Role = "request"
	// RoleResult is the role of annotations that only kube-ovn-controller changes. On pods, an admission policy denies changes by others.
	RoleResult Role = "result"
	// RoleClaim is the role of pod annotations that are requests until the pod's network is allocated (PodNetwork.IsFor), and results from
	// then on.
	RoleClaim Role = "request, then result"
)

// Kinds of objects that have annotations.
const (
	OnPod           = "Pod"
	OnNode          = "Node"
	OnNamespace     = "Namespace"
	OnService       = "Service"
	OnSubnet        = "Subnet"
	OnIP            = "IP"
	OnNetworkPolicy = "NetworkPolicy"
	OnSecurityGroup = "SecurityGroup"
	// OnClusterPolicy are AdminNetworkPolicy, BaselineAdminNetworkPolicy and ClusterNetworkPolicy.
	OnClusterPolicy = "cluster-wide policy"
	OnSwitchLBRule  = "SwitchLBRule"
	OnRouterLBRule  = "RouterLBRule"
	OnOvnFip        = "OvnFip"
	OnOvnSnatRule   = "OvnSnatRule"
	OnOvnDnatRule   = "OvnDnatRule"
	OnEgressAddress = "EgressAddress"
	OnOvnEip        = "OvnEip"
)

// annotationEntry is a row of annotationTable: an annotation on objects of one kind.
type annotationEntry struct {
	name Annotation
	on   string
	role Role
	// parse adds a request of a pod to a PodRequest. A pod with an invalid request gets no network.
	parse func(*PodRequest, string) error
	// check returns an error for an invalid request. The request is then ignored and a warning event reports it.
	check func(string) error
	// key is of the first network, because every pass of a pod reads all its requests.
	key string
}

func withKeys(table []annotationEntry) []annotationEntry {
	for i := range table {
		table[i].key = table[i].name.Key()
	}
	return table
}

// annotationTable lists each annotation for each kind of object. docs/reference/api.md has the same rows. The users of a request validate
// it if it has neither parse nor check: internal/validation for DHCP options, the controllers for annotations of rules and NetworkPolicies.
var annotationTable = withKeys([]annotationEntry{
	{name: AnnotationPodUID, on: OnPod, role: RoleResult},
	{name: AnnotationAllocated, on: OnPod, role: RoleResult},
	{name: AnnotationRouted, on: OnPod, role: RoleResult},
	{name: AnnotationCIDR, on: OnPod, role: RoleResult},
	{name: AnnotationGateway, on: OnPod, role: RoleResult},
	{name: AnnotationLogicalRouter, on: OnPod, role: RoleResult},
	{name: AnnotationMTU, on: OnPod, role: RoleResult},
	{name: AnnotationPodNICType, on: OnPod, role: RoleResult},
	{name: AnnotationVlanID, on: OnPod, role: RoleResult},
	{name: AnnotationProviderNetwork, on: OnPod, role: RoleResult},
	{name: AnnotationKeptGroups, on: OnPod, role: RoleResult},

	{name: AnnotationIPAddress, on: OnPod, role: RoleClaim, parse: func(r *PodRequest, s string) (err error) { r.Addresses, err = parseOnePerFamily(s); return }},
	{name: AnnotationMACAddress, on: OnPod, role: RoleClaim, parse: func(r *PodRequest, s string) (err error) { r.MAC, err = ParseMAC(s); return }},
	{name: AnnotationLogicalSwitch, on: OnPod, role: RoleClaim, parse: func(r *PodRequest, s string) (err error) { r.Subnet, err = parseName(s); return }},
	{name: AnnotationMachine, on: OnPod, role: RoleClaim}, // before the allocation, MachineOf is used instead

	{name: AnnotationIPFamily, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.Family, err = parseFamily(s); return }},
	{name: AnnotationIPPool, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.Pools, r.Choices, err = parsePools(s); return }},
	{name: AnnotationVip, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.Vip, err = parseName(s); return }},
	{name: AnnotationRoutes, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.Routes, err = parseRoutes(s); return }},
	{name: AnnotationDefaultRoute, on: OnPod, role: RoleRequest, parse: withoutDefaultRoute},
	{name: AnnotationNorthGateway, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.NorthGateway, err = parseOnePerFamily(s); return }},
	{name: AnnotationPortVips, on: OnPod, role: RoleRequest, parse: func(r *PodRequest, s string) (err error) { r.Vips, err = parseVips(s); return }},
	{name: AnnotationDHCPv4, on: OnPod, role: RoleRequest},
	{name: AnnotationDHCPv6, on: OnPod, role: RoleRequest},
	{name: AnnotationPortSecurity, on: OnPod, role: RoleRequest, check: valid(parseBool)},
	{name: AnnotationLayer2Forward, on: OnPod, role: RoleRequest, check: valid(parseBool)},
	{name: AnnotationMirror, on: OnPod, role: RoleRequest, check: valid(parseBool)},
	{name: AnnotationBGP, on: OnPod, role: RoleRequest, check: valid(ParseAnnouncement)},
	{name: AnnotationAAPs, on: OnPod, role: RoleRequest, check: valid(parseNames)},
	{name: AnnotationEip, on: OnPod, role: RoleRequest, check: valid(parseOnePerFamily)},
	{name: AnnotationSnat, on: OnPod, role: RoleRequest, check: valid(parseOnePerFamily)},
	{name: AnnotationIngressRate, on: OnPod, role: RoleRequest, check: valid(ParseMegabits)},
	{name: AnnotationEgressRate, on: OnPod, role: RoleRequest, check: valid(ParseMegabits)},
	{name: AnnotationIngressBurst, on: OnPod, role: RoleRequest, check: valid(ParseMegabits)},
	{name: AnnotationEgressBurst, on: OnPod, role: RoleRequest, check: valid(ParseMegabits)},
	{name: AnnotationLatency, on: OnPod, role: RoleRequest, check: valid(ParseMilliseconds)},
	{name: AnnotationJitter, on: OnPod, role: RoleRequest, check: valid(ParseMilliseconds)},
	{name: AnnotationLimit, on: OnPod, role: RoleRequest, check: valid(ParsePackets)},
	{name: AnnotationLoss, on: OnPod, role: RoleRequest, check: valid(ParsePercent)},
	{name: AnnotationGroups, on: OnPod, role: RoleRequest, check: valid(parseNames)}, // a group with an invalid name allows nothing

	{name: AnnotationAllocated, on: OnNode, role: RoleResult},
	{name: AnnotationIPAddress, on: OnNode, role: RoleResult},
	{name: AnnotationMACAddress, on: OnNode, role: RoleResult},
	{name: AnnotationCIDR, on: OnNode, role: RoleResult},
	{name: AnnotationGateway, on: OnNode, role: RoleResult},
	{name: AnnotationLogicalSwitch, on: OnNode, role: RoleResult},
	{name: AnnotationPortName, on: OnNode, role: RoleResult},
	{name: AnnotationChassis, on: OnNode, role: RoleResult},
	{name: AnnotationFlush, on: OnNode, role: RoleResult},
	{name: AnnotationFlushed, on: OnNode, role: RoleResult},

	{name: AnnotationNodeAddresses, on: OnIP, role: RoleResult},
	{name: AnnotationClaimedAddresses, on: OnIP, role: RoleResult},

	{name: AnnotationLogicalSwitch, on: OnNamespace, role: RoleResult},
	{name: AnnotationCIDR, on: OnNamespace, role: RoleResult},
	{name: AnnotationExcludeIPs, on: OnNamespace, role: RoleResult},
	{name: AnnotationIPPool, on: OnNamespace, role: RoleResult},

	{name: AnnotationLogicalRouter, on: OnService, role: RoleRequest, check: valid(parseName)},
	{name: AnnotationVpc, on: OnService, role: RoleResult},
	{name: AnnotationBGP, on: OnService, role: RoleRequest},       // the speaker checks it: another annotation of the Service stays in effect
	{name: AnnotationIPAddress, on: OnService, role: RoleRequest}, // the controller of pools checks it
	{name: AnnotationBGP, on: OnSubnet, role: RoleRequest},
	{name: AnnotationBGP, on: OnEgressAddress, role: RoleRequest},
	{name: AnnotationBGP, on: OnOvnEip, role: RoleRequest},

	{name: AnnotationLogicalRouter, on: OnSwitchLBRule, role: RoleRequest},
	{name: AnnotationLogicalSwitch, on: OnSwitchLBRule, role: RoleRequest},
	{name: AnnotationHealthCheck, on: OnSwitchLBRule, role: RoleRequest},
	{name: AnnotationHealthCheck, on: OnRouterLBRule, role: RoleRequest},

	{name: AnnotationVpcEip, on: OnOvnFip, role: RoleResult},
	{name: AnnotationVpcEip, on: OnOvnSnatRule, role: RoleResult},
	{name: AnnotationVpcEip, on: OnOvnDnatRule, role: RoleResult},

	{name: AnnotationEnableLog, on: OnNetworkPolicy, role: RoleRequest},
	{name: AnnotationLogActions, on: OnNetworkPolicy, role: RoleRequest},
	{name: AnnotationLogRate, on: OnNetworkPolicy, role: RoleRequest},
	{name: AnnotationLogDropsUntil, on: OnNetworkPolicy, role: RoleRequest},
	{name: AnnotationLogDropsUntil, on: OnSecurityGroup, role: RoleRequest},
	{name: AnnotationLogDropsUntil, on: OnSubnet, role: RoleRequest},
	{name: AnnotationLogDropsUntil, on: OnClusterPolicy, role: RoleRequest},
	{name: AnnotationEnforcement, on: OnNetworkPolicy, role: RoleRequest},
	{name: AnnotationPolicyFor, on: OnNetworkPolicy, role: RoleRequest},
})

// AnnotationsOf returns the annotations of objects of a kind in the order of annotationTable. If roles are given, it returns only
// annotations with these roles.
func AnnotationsOf(kind string, roles ...Role) []Annotation {
	var names []Annotation
	for _, e := range annotationTable {
		if e.on == kind && (len(roles) == 0 || slices.Contains(roles, e.role)) {
			names = append(names, e.name)
		}
	}
	return names
}

// resultsOfPods are the annotations that PodNetwork has, and firstResults their keys for the first network.
var (
	resultsOfPods = AnnotationsOf(OnPod, RoleResult, RoleClaim)
	firstResults  = Keys(resultsOfPods)
)

// ResultKeys returns the keys of the results on a pod for the network of a provider. A key that PodNetwork.Annotations leaves out is removed from the pod.
func ResultKeys(provider string) []string {
	if provider == ProviderOVN {
		return firstResults
	}
	keys := make([]string, len(resultsOfPods))
	for i, a := range resultsOfPods {
		keys[i] = a.For(provider)
	}
	return keys
}

// IgnoredAnnotations returns the names of Kube-OVN's annotations of pods that request features that this version does not have. The value of each
// is the default, which is no request.
func IgnoredAnnotations() map[string]string { return ignoredAnnotations }

var ignoredAnnotations = map[string]string{
	"activation_strategy":        "rarp",
	string(AnnotationPodNICType): PodNICTypeVeth,
}

// foreignResults are annotations of Kube-OVN's components that are not in annotationTable, and foreignRequests are annotations on objects other
// than pods that request features that this version does not have.
var (
	foreignResults = []string{
		"vf", "vf_representor", "switch_lb_vip", "router_lb_vip", "vpc_nat", "vpc_nat_gw", "vpc_nat_gw_init",
		"service_external_ip_from_subnet", "err_mesg",
	}
	foreignRequests = []string{"tunnel_interface", "node_networks", "vpc_lb", "attachmentprovider", "lb_svc_img"}
)

// IneffectiveKeys returns the keys of requests of Kube-OVN that this version ignores, with the value of each that requests nothing.
func IneffectiveKeys() map[string]string {
	keys := map[string]string{}
	for name, usual := range ignoredAnnotations {
		keys[Annotation(name).Key()] = usual
	}
	for _, name := range foreignRequests {
		keys[Annotation(name).Key()] = ""
	}
	return keys
}

// KnownKeys returns the keys of all annotations of Kiln and Kube-OVN on any object, sorted.
func KnownKeys() []string {
	keys := append(AllAnnotationKeys(), slices.Collect(maps.Keys(IneffectiveKeys()))...)
	for _, name := range foreignResults {
		keys = append(keys, Annotation(name).Key())
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// AllAnnotationKeys returns the keys of all annotations on objects of any kind, sorted.
func AllAnnotationKeys() []string {
	keys := make([]string, 0, len(annotationTable))
	for _, e := range annotationTable {
		keys = append(keys, e.name.Key())
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// CheckRequests returns an AnnotationError for each invalid annotation with RoleRequest on an object of a kind.
func CheckRequests(kind string, annotations map[string]string) []error {
	var invalid []error
	var ignored PodRequest
	for _, e := range annotationTable {
		if e.on == kind && e.role == RoleRequest {
			if err := e.read(annotations, ProviderOVN, &ignored); err != nil {
				invalid = append(invalid, err)
			}
		}
	}
	if kind == OnPod {
		invalid = append(invalid, checkBandwidths(annotations)...)
	}
	return invalid
}

// read parses or checks one request in the annotations of an object. The error is an AnnotationError.
func (e annotationEntry) read(annotations map[string]string, provider string, into *PodRequest) error {
	key := e.key
	if provider != ProviderOVN {
		key = e.name.For(provider)
	}
	value, err := RequestText(annotations, key)
	switch {
	case err != nil || value == "":
		return err
	case e.parse != nil:
		err = e.parse(into, value)
	case e.check != nil:
		err = e.check(value)
	}
	if err != nil {
		return &AnnotationError{Key: key, Value: value, Err: err}
	}
	return nil
}

// maxRequest is the maximum length of a request in bytes. It fits MaxListEntries routes or pairs of addresses, and limits the CPU time that
// one object can cost.
const maxRequest = 128 << 10

// RequestText returns the text of a request without surrounding white space, or "" if there is none, as for mirror pods. The error is an AnnotationError.
func RequestText(annotations map[string]string, key string) (string, error) {
	if IsMirror(annotations) {
		return "", nil
	}
	text := strings.TrimSpace(annotations[key])
	if len(text) > maxRequest {
		return "", &AnnotationError{Key: key, Value: text, Err: fmt.Errorf("must have at most %d bytes, and has %d", maxRequest, len(text))}
	}
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && !unicode.IsSpace(r) }) {
		return "", &AnnotationError{Key: key, Value: text, Err: errors.New("must have no control characters")}
	}
	return text, nil
}

// parseRequest parses one request of a pod for its first network. It returns the zero value if the request is missing or invalid.
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

// parseName checks that s is a valid name of an API object.
func parseName(s string) (string, error) {
	if len(validation.IsDNS1123Subdomain(s)) > 0 {
		return "", fmt.Errorf("%.100q is not the name of an object: write lower-case letters, digits, - and ., at most %d",
			s, validation.DNS1123SubdomainMaxLength)
	}
	return s, nil
}

// parseNames parses a list of object names that are separated by commas.
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
