// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
)

// groupReader reads security groups of a snapshot, for grants.Rules.
type groupReader struct {
	client.Reader

	groups []*kubeovnv1.SecurityGroup
}

// Get implements client.Reader.
func (r groupReader) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	into, is := o.(*kubeovnv1.SecurityGroup)
	for _, g := range r.groups {
		if is && g.Name == key.Name {
			*into = *g
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: kubeovnv1.GroupVersion.Group, Resource: "security-groups"}, key.Name)
}

// groupsOf returns the security groups of a pod.
func (s *Snapshot) groupsOf(pod *corev1.Pod) grants.Groups {
	open := s.Cluster != nil && s.Cluster.Spec.Tenancy.Membership == v1alpha1.MembershipOpen
	g, _ := grants.NewRules(groupReader{groups: s.Groups}, nil, nil, open).
		Groups(context.Background(), pod.Namespace, kubeovnv1.ParseSecurityGroups(pod.Annotations), kubeovnv1.KeptSecurityGroups(pod)) // the reader returns no other error
	return g
}

// ignoresPolicies reports whether another component enforces the policies of Kubernetes.
func (s *Snapshot) ignoresPolicies() bool {
	return s.Cluster != nil && s.Cluster.Spec.Policies.NetworkPolicies == v1alpha1.NetworkPoliciesIgnored
}

// addPolicies adds the ports of the snapshot's pods, and the ACLs of all policies. Other pods decide nothing.
func (m *model) addPolicies(s *Snapshot) {
	var pods []host
	for _, pod := range s.Pods {
		network, err := kubeovnv1.ParsePodNetwork(pod.Annotations)
		if err == nil && !pod.Spec.HostNetwork && kubeovnv1.IsPublished(pod) && podset.Counts(pod) {
			pods = append(pods, host{kind: aPod, pod: pod, net: network, node: pod.Spec.NodeName})
		}
	}
	sets := podset.New()
	for _, ns := range s.Namespaces {
		sets.SetNamespace(ns.Name, ns.Labels)
	}
	for _, pod := range s.Pods {
		if podset.Counts(pod) && (pod.Spec.HostNetwork || slices.ContainsFunc(pods, func(h host) bool { return h.pod == pod })) {
			groups := s.groupsOf(pod)
			sets.SetPod(podset.Of(pod, kubeovnv1.ProviderOVN, groups.Sets()))
		}
	}
	var policies []client.Object
	if !s.ignoresPolicies() {
		policies = slices.Clone(s.Policies)
	}
	for _, g := range s.Groups {
		policies = append(policies, g)
	}
	world := policy.World{Numbers: sets.Numbers, Nodes: s.nodesWith, Group: s.hasGroup}
	named := false
	rules := policy.RulesOf(policies, world)
	for _, r := range rules {
		sets.Use(r.Owner, r.Sets)
		named = named || slices.ContainsFunc(r.Sets, func(set podset.Selector) bool { return set.Port != "" })
	}
	if named { // the sets have the numbers of named ports now
		rules = policy.RulesOf(policies, world)
	}
	for _, r := range rules {
		sets.Use(r.Owner, r.Sets)
		sets.Settle(r.Owner)
		m.add(r.Owner, r.Rows)
	}
	s.useEgress(sets)
	for _, set := range sets.InUse() {
		if set.HasRows() {
			m.addSet(s, sets, set)
		}
	}
	grouped := false
	for _, h := range pods {
		membership := sets.Membership(podset.KeyOf(h.pod, kubeovnv1.ProviderOVN))
		grouped = grouped || membership.Grouped
		m.addPod(s, h, membership)
	}
	in := translate.IsolationInputs{Grouped: grouped}
	for _, name := range s.nodeNames() {
		own, join := s.nodeAddresses(name)
		in.Nodes = append(in.Nodes, translate.PolicyNode{Name: name, Addresses: slices.Concat(own, join)})
	}
	m.add(translate.IsolationOwner(), translate.Isolation(in))
}

func (m *model) addSet(s *Snapshot, sets *podset.Index, set podset.Selector) {
	in := translate.PodSetInputs{
		Name: set.Name(), Selector: set.String(), Subjects: set.Role == podset.Subjects, Numbers: []int32{0}, HostAddresses: map[int32][]netip.Addr{},
	}
	if set.Port != "" {
		in.Numbers = sets.Numbers(set)
	}
	for number, nodes := range sets.HostNodes(set) {
		for _, node := range nodes {
			own, join := s.nodeAddresses(node)
			in.HostAddresses[number] = slices.Concat(in.HostAddresses[number], own, join)
		}
	}
	m.add(translate.PodSetOwner(set.Name()), translate.PodSet(in))
}

// addPod adds the port of a pod, as the controller of pods does.
func (m *model) addPod(s *Snapshot, h host, membership podset.Membership) {
	port := kubeovnv1.PortOf(h.pod, kubeovnv1.ProviderOVN)
	in := translate.PodInputs{
		Namespace: port.Namespace, Name: port.Owner, Provider: port.Provider, Node: h.node, Subnet: h.net.LogicalSwitch, Vpc: h.net.LogicalRouter,
		Addresses: h.net.Addresses, MAC: h.net.MAC,
	}
	if h.net.ProviderNetwork != "" { // its traffic leaves through no node
		in.Vpc = ""
	}
	if membership.Grouped {
		in.Policy.Grouped = append(in.Policy.Grouped, translate.TierBaseline)
	}
	if membership.First {
		in.Policy.Grouped = append(in.Policy.Grouped, translate.TierPolicy)
	}
	for _, part := range membership.Parts {
		switch {
		case part.Role == podset.Subjects:
			in.Policy.Subjects = append(in.Policy.Subjects, part.Name())
		case part.HasRows():
			in.Policy.Peers = append(in.Policy.Peers, translate.PodSetPart{Name: part.Name(), Number: part.Number})
		}
	}
	in.PortSecurity, in.Vips = s.secures(h), kubeovnv1.ParsePortVips(h.pod.Annotations)
	m.add(translate.PodOwner(port), translate.Pod(in))
}

// secures reports whether the port of a pod has port security: by its annotation, its subnet, or the default of the cluster.
func (s *Snapshot) secures(h host) bool {
	if kubeovnv1.IsTrue(h.pod.Annotations, kubeovnv1.AnnotationPortSecurity) {
		return true
	}
	asked := kubeovnv1.PortSecurity("")
	if subnet := s.subnet(h.net.LogicalSwitch); subnet != nil {
		asked = subnet.Spec.PortSecurity
	}
	switch {
	case asked != "":
	case s.Cluster != nil:
		asked = s.Cluster.Spec.Tenancy.PortSecurity
	default:
		asked = kubeovnv1.PortSecurityEnforced // the default of the OVNCluster
	}
	return asked == kubeovnv1.PortSecurityEnforced
}

func (s *Snapshot) hasGroup(name string) bool {
	return slices.ContainsFunc(s.Groups, func(g *kubeovnv1.SecurityGroup) bool { return g.Name == name })
}

// nodeNames returns the nodes of the snapshot, sorted.
func (s *Snapshot) nodeNames() []string {
	var names []string
	for _, n := range s.Nodes {
		names = append(names, n.Name)
	}
	for _, r := range s.Records {
		names = append(names, r.Spec.NodeName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// nodesWith returns the addresses of the nodes that a selector matches.
func (s *Snapshot) nodesWith(selector *metav1.LabelSelector) ([]netip.Prefix, error) {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("label selector: %w", err)
	}
	var addresses []netip.Prefix
	for _, n := range s.Nodes {
		if !parsed.Matches(labels.Set(n.Labels)) {
			continue
		}
		own, join := s.nodeAddresses(n.Name)
		for _, a := range slices.Concat(own, join) {
			addresses = append(addresses, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return addresses, nil
}

// ruleOf returns the field of a policy's rule by the key of its ACL, such as ingress[0] by acl/ingress/0/ip4; "" for a default rule.
func ruleOf(owner desired.Owner, key string) string {
	parts := strings.Split(key, "/")
	if len(parts) < 3 || parts[2] == "default" || parts[2] == "same" {
		return ""
	}
	if owner.Kind == translate.KindSecurityGroup {
		return parts[1] + "Rules[" + parts[2] + "]"
	}
	return parts[1] + "[" + parts[2] + "]"
}
