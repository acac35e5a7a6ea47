// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trace says why a connection reaches its destination, or which object stops it and which change lets it pass. It computes the answer from objects of
// the API alone, with the functions that the controllers use: it makes the rows of the northbound database for both ends, and follows a packet through them.
// It is pure: a Snapshot and a Query in, an Answer out.
package trace

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// Snapshot holds the objects that a question concerns. An object that is not there does not exist, unless Unread has its resource.
type Snapshot struct {
	// Cluster is nil if there is no OVNCluster, or if it cannot be read: its defaults then apply.
	Cluster    *v1alpha1.OVNCluster
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Nodes      []*corev1.Node
	// Records are the IP objects of nodes.
	Records  []*kubeovnv1.IP
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	// Policies are the NetworkPolicies of the namespaces of both ends, and all cluster-wide policies.
	Policies    []client.Object
	Groups      []*kubeovnv1.SecurityGroup
	Subnets     []*kubeovnv1.Subnet
	Vpcs        []*kubeovnv1.Vpc
	SwitchRules []*kubeovnv1.SwitchLBRule
	RouterRules []*kubeovnv1.RouterLBRule
	Eips        []*kubeovnv1.OvnEip
	Egresses    []*kubeovnv1.EgressAddress
	// ExternalRules are of v1.NATKinds.
	ExternalRules []client.Object
	ServiceCIDRs  []netip.Prefix
	// Networks are the ProviderNetworks of pods on underlay subnets.
	Networks []*kubeovnv1.ProviderNetwork
	// Events are those about the ports of pods.
	Events []*corev1.Event
	// Omitted are the addresses of endpoints whose pods were not read, because there are too many.
	Omitted map[netip.Addr]bool
	Unread  []Unread

	// observe gets the rows that the answer depends on; nil without an observer.
	observe func(owner desired.Owner, rows []desired.Row)
	// policies has the rows of pods and policies, for all ends.
	policies *model
	// owners are the pods by their addresses.
	owners map[netip.Addr][]host
}

// Unread is what the user may not read.
type Unread struct {
	// Resource is the plural of the kind with its group, as in RBAC: networkpolicies.networking.k8s.io.
	Resource string `json:"resource"`
	// Namespace is empty for the whole cluster.
	Namespace string `json:"namespace,omitempty"`
	// Name is empty for all objects.
	Name string `json:"name,omitempty"`
	// Verb is get or list.
	Verb string `json:"verb"`
}

// String returns the missing permission.
func (u Unread) String() string {
	text := u.Verb + " " + u.Resource
	if u.Name != "" {
		text += "/" + u.Name
	}
	if u.Namespace != "" {
		text += " in namespace " + u.Namespace
	}
	return text
}

// The resources that Unread names.
const (
	ResourcePods       = "pods"
	ResourceNodes      = "nodes"
	ResourceNamespaces = "namespaces"
	ResourceServices   = "services"
	ResourceSlices     = "endpointslices.discovery.k8s.io"
	ResourcePolicies   = "networkpolicies.networking.k8s.io"
	ResourceSubnets    = "subnets.kubeovn.io"
	ResourceVpcs       = "vpcs.kubeovn.io"
	ResourceGroups     = "security-groups.kubeovn.io"
	ResourceRecords    = "ips.kubeovn.io"
	ResourceCluster    = "ovnclusters.kubeovn.io"
	ResourceSwitchRule = "switch-lb-rules.kubeovn.io"
	ResourceRouterRule = "router-lb-rules.kubeovn.io"
	ResourceEips       = "ovn-eips.kubeovn.io"
	ResourceEgresses   = "egress-addresses.kubeovn.io"
	ResourceNetworks   = "provider-networks.kubeovn.io"
	ResourceEvents     = "events"
	GroupPolicies      = "policy.networking.k8s.io"
)

// ResourceOf returns the resource of a kind.
func ResourceOf(kind *kubeovnv1.Kind) string {
	return kind.Resource + "." + kubeovnv1.GroupVersion.Group
}

// unread returns the missing permission for objects of a resource, in a namespace or of the whole cluster; nil if they were read.
func (s *Snapshot) unread(resource, namespace string) *Unread {
	for i := range s.Unread {
		if u := &s.Unread[i]; u.Resource == resource && (u.Namespace == namespace || u.Namespace == "") {
			return u
		}
	}
	return nil
}

// Protocols of a Query.
const (
	TCP  = "tcp"
	UDP  = "udp"
	SCTP = "sctp"
	ICMP = "icmp"
	// Neighbour is the resolution of the destination's hardware address, by ARP or neighbour discovery.
	Neighbour = "arp"
)

// Query is a question: what happens to the first packet of a connection?
type Query struct {
	From, To End
	// Protocol is TCP, UDP, SCTP, ICMP or Neighbour.
	Protocol string
	// Port is the destination port. It is 0 if Protocol has none.
	Port uint16
	// SourcePort is 0 for a port that the client's system chooses.
	SourcePort uint16
	// SourceAddress and SourceMAC are not valid for the addresses of From.
	SourceAddress netip.Addr
	SourceMAC     net.HardwareAddr
	// TargetMAC is the hardware address to which From sends the packet; nil for the one that From resolves. The rules of the API do not depend on it.
	TargetMAC net.HardwareAddr
	// Answer: From answers a connection that To has opened. Rules with a state let its packets pass; routes and gateways decide.
	Answer bool
}

// End is one end of a connection. Exactly one of its fields is set.
type End struct {
	// Pod and Service are namespace and name.
	Pod, Service types.NamespacedName
	Node         string
	Address      netip.Addr
	// Host is the name of a host outside, with its Addresses.
	Host      string
	Addresses []netip.Addr
}

// Addrs returns the addresses of an end that was given by its address or by the name of a host.
func (e End) Addrs() []netip.Addr {
	if e.Address.IsValid() {
		return []netip.Addr{e.Address}
	}
	return e.Addresses
}

// String returns the end as in the answer.
func (e End) String() string {
	switch {
	case e.Pod.Name != "":
		return "pod " + e.Pod.String()
	case e.Service.Name != "":
		return "Service " + e.Service.String()
	case e.Node != "":
		return "node " + e.Node
	case e.Host != "":
		return e.Host
	}
	return e.Address.String()
}

// Verdict is the fate of a packet.
type Verdict string

// Verdicts.
const (
	// Delivered: the packet reaches the destination, or the network outside of the cluster on the way to it.
	Delivered Verdict = "Delivered"
	// Dropped: an object stops the packet.
	Dropped Verdict = "Dropped"
	// CannotTell: it depends on something that the API does not have, or that the user may not read.
	CannotTell Verdict = "CannotTell"
)

// Answer is the answer to a Query.
type Answer struct {
	Verdict Verdict `json:"verdict"`
	From    string  `json:"from"`
	To      string  `json:"to"`
	// Traces has one trace for each family that both ends have.
	Traces []Trace `json:"traces"`
	// Difference says how the families differ. It is empty if they do not.
	Difference string `json:"difference,omitempty"`
	// Unread are the missing permissions.
	Unread []Unread `json:"unread,omitempty"`
}

// Trace is the way of a packet of one family.
type Trace struct {
	// Family is IPv4 or IPv6.
	Family      string     `json:"family"`
	Source      netip.Addr `json:"source"`
	Destination netip.Addr `json:"destination"`
	Protocol    string     `json:"protocol"`
	Port        uint16     `json:"port,omitempty"`
	Verdict     Verdict    `json:"verdict"`
	Steps       []Step     `json:"steps"`
	// DecidedBy is the object that stops the packet, and Change what to change so that it passes.
	DecidedBy *Object `json:"decidedBy,omitempty"`
	Change    string  `json:"change,omitempty"`
	// Endpoints of a Service or a rule, with their own verdicts.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
}

// Endpoint is an endpoint of a Service.
type Endpoint struct {
	Address string  `json:"address"`
	Verdict Verdict `json:"verdict"`
}

// Effect is the effect of a step.
type Effect string

// Effects.
const (
	Passes  Effect = "passes"
	Changes Effect = "changes" // the destination or the source
	Drops   Effect = "drops"
	Unclear Effect = "unclear"
	Notes   Effect = "notes" // decides nothing
)

// Step is one sentence of a trace.
type Step struct {
	Effect Effect  `json:"effect"`
	Object *Object `json:"object,omitempty"`
	Text   string  `json:"text"`
}

// Object is the object that decides a step.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Rule is the field of the rule: ingress[0], policyRoutes[2]. It is empty if the whole object decides.
	Rule string `json:"rule,omitempty"`
}

// String returns kind and name.
func (o Object) String() string {
	if o.Namespace != "" {
		return o.Kind + " " + o.Namespace + "/" + o.Name
	}
	return o.Kind + " " + o.Name
}

// ExitCode is 0 for Delivered, 1 for Dropped and 2 for CannotTell.
func (a *Answer) ExitCode() int {
	switch a.Verdict {
	case Delivered:
		return 0
	case Dropped:
		return 1
	case CannotTell:
	}
	return 2
}

// summarize sets the verdict of an answer from its traces: Dropped if a family is dropped, because a client may choose it.
func (a *Answer) summarize() {
	a.Verdict = CannotTell
	verdicts := map[Verdict]bool{}
	var parts []string
	for _, t := range a.Traces {
		verdicts[t.Verdict] = true
		parts = append(parts, t.Family+": "+t.Verdict.text())
	}
	for _, v := range []Verdict{Dropped, CannotTell, Delivered} {
		if verdicts[v] {
			a.Verdict = v
			break
		}
	}
	if len(verdicts) > 1 {
		a.Difference = strings.Join(parts, ", ")
	}
}

func (v Verdict) text() string {
	return map[Verdict]string{Delivered: "delivered", Dropped: "dropped", CannotTell: "cannot tell"}[v]
}

func portText(protocol string, port uint16) string {
	if port == 0 {
		return protocol
	}
	return fmt.Sprintf("%s port %d", protocol, port)
}
