// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/kiln-net/kiln/controllers/policy/beta"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Limits of cluster-wide policies. Each priority that the API allows has its own range of priorities of ACLs, so that the order of two policies never
// depends on others. ACLs have no room for 100 rules of each of 1,001 priorities: AdminNetworkPolicies with a priority above maxWideAdminPriority have room for
// fewer changes between actions (compiler.placed).
const (
	maxAdminPriority     = 1000
	maxWideAdminPriority = 99
	roomOfWideAdmin      = 100
	roomOfAdmin          = 22
	roomOfBaseline       = 100
	roomOfCluster        = 25
)

// rangeOfAdmin returns the priority of the first rule of an AdminNetworkPolicy, and its room.
func rangeOfAdmin(priority int) (first, room int) {
	if priority <= maxWideAdminPriority {
		return translate.PriorityCluster - priority*roomOfWideAdmin, roomOfWideAdmin
	}
	below := translate.PriorityCluster - (maxWideAdminPriority+1)*roomOfWideAdmin
	return below - (priority-maxWideAdminPriority-1)*roomOfAdmin, roomOfAdmin
}

// clusterKind is a kind of cluster-wide policies.
type clusterKind struct {
	name       string // of the kind
	resource   string
	versions   []kindVersion // the first one that the API server serves is used
	read       func(client.Object) clusterPolicy
	conditions func(client.Object) *[]metav1.Condition
}

// is reports whether an object is of this kind, in any version.
func (k clusterKind) is(o client.Object) bool {
	return slices.ContainsFunc(k.versions, func(v kindVersion) bool { return reflect.TypeOf(v.object()) == reflect.TypeOf(o) })
}

// kindVersion is a version of a kind.
type kindVersion struct {
	name   string
	object func() client.Object
	list   func() client.ObjectList
}

// clusterOf returns a ClusterNetworkPolicy of any version.
func clusterOf(o client.Object) *v1alpha2.ClusterNetworkPolicy {
	if p, ok := o.(*beta.ClusterNetworkPolicy); ok {
		return &p.ClusterNetworkPolicy
	}
	return o.(*v1alpha2.ClusterNetworkPolicy)
}

// clusterKinds are the supported kinds of sigs.k8s.io/network-policy-api.
var clusterKinds = []clusterKind{
	{
		name: translate.KindAdminNetworkPolicy, resource: "adminnetworkpolicies", versions: []kindVersion{{
			"v1alpha1", func() client.Object { return &v1alpha1.AdminNetworkPolicy{} }, func() client.ObjectList { return &v1alpha1.AdminNetworkPolicyList{} },
		}},
		read: func(o client.Object) clusterPolicy { return readAdmin(o.(*v1alpha1.AdminNetworkPolicy)) },
		conditions: func(o client.Object) *[]metav1.Condition {
			return &o.(*v1alpha1.AdminNetworkPolicy).Status.Conditions
		},
	},
	{
		name: translate.KindBaselineAdminNetworkPolicy, resource: "baselineadminnetworkpolicies", versions: []kindVersion{{
			"v1alpha1", func() client.Object { return &v1alpha1.BaselineAdminNetworkPolicy{} }, func() client.ObjectList { return &v1alpha1.BaselineAdminNetworkPolicyList{} },
		}},
		read: func(o client.Object) clusterPolicy { return readBaseline(o.(*v1alpha1.BaselineAdminNetworkPolicy)) },
		conditions: func(o client.Object) *[]metav1.Condition {
			return &o.(*v1alpha1.BaselineAdminNetworkPolicy).Status.Conditions
		},
	},
	{
		name: translate.KindClusterNetworkPolicy, resource: "clusternetworkpolicies", versions: []kindVersion{
			{beta.Version, func() client.Object { return &beta.ClusterNetworkPolicy{} }, func() client.ObjectList { return &beta.ClusterNetworkPolicyList{} }},
			{"v1alpha2", func() client.Object { return &v1alpha2.ClusterNetworkPolicy{} }, func() client.ObjectList { return &v1alpha2.ClusterNetworkPolicyList{} }},
		},
		read:       func(o client.Object) clusterPolicy { return readCluster(clusterOf(o)) },
		conditions: func(o client.Object) *[]metav1.Condition { return &clusterOf(o).Status.Conditions },
	},
}

// actions maps the actions of all kinds to actions of ACLs.
var actions = map[string]nb.ACLAction{
	"Allow": nb.ACLActionAllowRelated, "Accept": nb.ACLActionAllowRelated, "Deny": nb.ACLActionDrop, "Pass": nb.ACLActionPass,
}

func readAdmin(in *v1alpha1.AdminNetworkPolicy) clusterPolicy {
	priority := min(in.Spec.Priority, maxAdminPriority) // a mistake must not open what the policy closes
	first, room := rangeOfAdmin(int(priority))
	p := clusterPolicy{
		owner: translate.ClusterPolicyOwner(translate.KindAdminNetworkPolicy, in.Name), title: "anp/" + in.Name, tier: translate.TierAdmin,
		first: first, room: room, subject: subjectOf(in.Spec.Subject),
	}
	if priority > maxWideAdminPriority {
		p.more = fmt.Sprintf(", or write a priority from 0 to %d", maxWideAdminPriority)
	}
	if in.Spec.Priority > maxAdminPriority {
		p.restricted = fmt.Sprintf("priority %d is out of range: write one from 0 to %d; until then %d applies", in.Spec.Priority, maxAdminPriority, priority)
	}
	for _, r := range in.Spec.Ingress {
		p.ingress = append(p.ingress, clusterRule{action: actions[string(r.Action)], peers: mapped(r.From, ingressPeer), ports: portsOf(r.Ports)})
	}
	for _, r := range in.Spec.Egress {
		p.egress = append(p.egress, clusterRule{action: actions[string(r.Action)], peers: mapped(r.To, egressPeer), ports: portsOf(r.Ports)})
	}
	return p
}

func readBaseline(in *v1alpha1.BaselineAdminNetworkPolicy) clusterPolicy {
	p := clusterPolicy{
		owner: translate.ClusterPolicyOwner(translate.KindBaselineAdminNetworkPolicy, in.Name), title: "banp/" + in.Name,
		tier: translate.TierBaseline, first: translate.PriorityBaseline, room: roomOfBaseline, subject: subjectOf(in.Spec.Subject),
	}
	for _, r := range in.Spec.Ingress {
		p.ingress = append(p.ingress, clusterRule{action: actions[string(r.Action)], peers: mapped(r.From, ingressPeer), ports: portsOf(r.Ports)})
	}
	for _, r := range in.Spec.Egress {
		p.egress = append(p.egress, clusterRule{action: actions[string(r.Action)], ports: portsOf(r.Ports), peers: mapped(r.To,
			func(in v1alpha1.BaselineAdminNetworkPolicyEgressPeer) clusterPeer {
				return egressPeer(v1alpha1.AdminNetworkPolicyEgressPeer{Namespaces: in.Namespaces, Pods: in.Pods, Nodes: in.Nodes, Networks: in.Networks})
			})})
	}
	return p
}

func readCluster(in *v1alpha2.ClusterNetworkPolicy) clusterPolicy {
	p := clusterPolicy{
		owner: translate.ClusterPolicyOwner(translate.KindClusterNetworkPolicy, in.Name), title: "cnp/" + in.Name, tier: translate.TierAdmin,
		first: translate.PriorityCluster - int(in.Spec.Priority)*roomOfCluster, room: roomOfCluster,
		subject: podsPeer(in.Spec.Subject.Namespaces, in.Spec.Subject.Pods),
	}
	switch in.Spec.Tier {
	case v1alpha2.AdminTier:
	case v1alpha2.BaselineTier:
		p.tier = translate.TierBaseline
	default:
		p.problem = fmt.Sprintf("tier %q is unknown to this version", in.Spec.Tier)
	}
	for _, r := range in.Spec.Ingress {
		p.ingress = append(p.ingress, clusterRule{action: actions[string(r.Action)], ports: protocolsOf(r.Protocols), peers: mapped(r.From,
			func(in v1alpha2.ClusterNetworkPolicyIngressPeer) clusterPeer { return podsPeer(in.Namespaces, in.Pods) })})
	}
	for _, r := range in.Spec.Egress {
		p.egress = append(p.egress, clusterRule{action: actions[string(r.Action)], ports: protocolsOf(r.Protocols), peers: mapped(r.To,
			func(in v1alpha2.ClusterNetworkPolicyEgressPeer) clusterPeer {
				out := podsPeer(in.Namespaces, in.Pods)
				out.nodes, out.networks, out.domains = in.Nodes, texts(in.Networks), len(in.DomainNames) > 0
				return out
			})})
	}
	return p
}

func subjectOf(in v1alpha1.AdminNetworkPolicySubject) clusterPeer {
	return ingressPeer(v1alpha1.AdminNetworkPolicyIngressPeer(in))
}

func ingressPeer(in v1alpha1.AdminNetworkPolicyIngressPeer) clusterPeer {
	if in.Pods != nil {
		return clusterPeer{namespaces: &in.Pods.NamespaceSelector, pods: &in.Pods.PodSelector}
	}
	return clusterPeer{namespaces: in.Namespaces}
}

func egressPeer(in v1alpha1.AdminNetworkPolicyEgressPeer) clusterPeer {
	out := ingressPeer(v1alpha1.AdminNetworkPolicyIngressPeer{Namespaces: in.Namespaces, Pods: in.Pods})
	out.nodes, out.networks, out.domains = in.Nodes, texts(in.Networks), len(in.DomainNames) > 0
	return out
}

func podsPeer(namespaces *metav1.LabelSelector, pods *v1alpha2.NamespacedPod) clusterPeer {
	if pods != nil {
		return clusterPeer{namespaces: &pods.NamespaceSelector, pods: &pods.PodSelector}
	}
	return clusterPeer{namespaces: namespaces}
}

func portsOf(in *[]v1alpha1.AdminNetworkPolicyPort) []clusterPort {
	if in == nil {
		return nil
	}
	return flatMapped(*in, func(p v1alpha1.AdminNetworkPolicyPort) []clusterPort {
		switch {
		case p.PortNumber != nil:
			return []clusterPort{{protocol: p.PortNumber.Protocol, first: p.PortNumber.Port, last: p.PortNumber.Port}}
		case p.PortRange != nil:
			of := p.PortRange.Protocol
			if of == "" {
				of = corev1.ProtocolTCP
			}
			return []clusterPort{{protocol: of, first: p.PortRange.Start, last: p.PortRange.End}}
		case p.NamedPort != nil:
			return anyProtocol(*p.NamedPort)
		}
		return []clusterPort{{}} // of a kind that is unknown
	})
}

func protocolsOf(in []v1alpha2.ClusterNetworkPolicyProtocol) []clusterPort {
	of := func(protocol corev1.Protocol, port *v1alpha2.Port) []clusterPort {
		switch {
		case port == nil:
			return []clusterPort{{protocol: protocol}}
		case port.Range != nil:
			return []clusterPort{{protocol: protocol, first: port.Range.Start, last: port.Range.End}}
		}
		return []clusterPort{{protocol: protocol, first: port.Number, last: port.Number}}
	}
	return flatMapped(in, func(p v1alpha2.ClusterNetworkPolicyProtocol) []clusterPort {
		switch {
		case p.TCP != nil:
			return of(corev1.ProtocolTCP, p.TCP.DestinationPort)
		case p.UDP != nil:
			return of(corev1.ProtocolUDP, p.UDP.DestinationPort)
		case p.SCTP != nil:
			return of(corev1.ProtocolSCTP, p.SCTP.DestinationPort)
		case p.DestinationNamedPort != "":
			return anyProtocol(p.DestinationNamedPort)
		}
		return []clusterPort{{}} // of a kind that is unknown
	})
}

// anyProtocol returns the ports of a name for which the rule gives no protocol.
func anyProtocol(name string) []clusterPort {
	return []clusterPort{
		{protocol: corev1.ProtocolTCP, name: name}, {protocol: corev1.ProtocolUDP, name: name}, {protocol: corev1.ProtocolSCTP, name: name},
	}
}

func mapped[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}

func flatMapped[A, B any](in []A, f func(A) []B) []B {
	var out []B
	for _, a := range in {
		out = append(out, f(a)...)
	}
	return out
}

func texts[S ~string](in []S) []string { return mapped(in, func(s S) string { return string(s) }) }

// AddToScheme adds the optional kinds of policies.
func AddToScheme(scheme *runtime.Scheme) error {
	return errors.Join(v1alpha1.Install(scheme), v1alpha2.Install(scheme), beta.AddToScheme(scheme))
}
