// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/validation"
)

// objects are the decoded objects of kinds that have checks, and the findings about objects of all kinds.
type objects struct {
	subnets  []*kubeovnv1.Subnet
	vpcs     []*kubeovnv1.Vpc
	pools    []*kubeovnv1.IPPool
	findings []Finding
	// names of the objects that a finding is about, by its kind and message: there may be many with one problem.
	names map[Finding][]string
}

// decode decodes and judges all objects, each by itself.
func decode(c *Cluster) *objects {
	o := &objects{names: map[Finding][]string{}}
	for _, kind := range Kinds() {
		items := c.Objects[kind.Kind]
		if !kind.Implemented {
			o.unimplemented(kind.Kind, items)
			continue
		}
		for i := range items {
			o.object(kind.Kind, &items[i], kind.Object.DeepCopyObject().(client.Object))
		}
	}
	for _, pool := range o.pools {
		o.pool(pool)
	}
	for i, f := range o.findings {
		o.findings[i].Subject += " " + k8s.Some(o.names[f], someNames)
	}
	return o
}

func (o *objects) lose(kind, name, format string, args ...any) {
	o.find(Lost, kind, name, fmt.Sprintf(format, args...))
}

func (o *objects) find(level Level, kind, name, message string) {
	f := Finding{level, kind, message}
	if o.names[f] == nil {
		o.findings = append(o.findings, f)
	}
	o.names[f] = append(o.names[f], name)
}

func (o *objects) problem(kind, name string, p *validation.Problem) {
	o.lose(kind, name, "Kiln does not accept it: %s: %s", p.Reason, p.Message)
}

func (o *objects) unimplemented(kind string, items []unstructured.Unstructured) {
	for i := range items {
		o.lose(kind, strings.TrimPrefix(items[i].GetNamespace()+"/"+items[i].GetName(), "/"),
			"this version of Kiln does not implement the kind: the objects stay and have no effect")
	}
}

// object decodes and judges one object. Fields outside of spec are results.
func (o *objects) object(kind string, u *unstructured.Unstructured, typed client.Object) {
	name := u.GetName()
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(
		map[string]any{"metadata": u.Object["metadata"], "spec": u.Object["spec"]}, typed, true)
	if err != nil && !runtime.IsStrictDecodingError(err) {
		o.lose(kind, name, "it cannot be decoded: %v", err)
		return
	}
	if err != nil {
		strict, _ := runtime.AsStrictDecodingError(err)
		var unknown []string
		for _, e := range strict.Errors() {
			unknown = append(unknown, e.Error())
		}
		o.lose(kind, name, "Kiln's definition does not have these fields, and they are removed at the next change: %s", k8s.Some(unknown, someNames))
	}
	if u.GetDeletionTimestamp() != nil {
		o.find(Warning, kind, name, "it is being deleted: Kiln completes the deletion")
	}
	if fields := ineffective(kind, u, typed); len(fields) > 0 {
		o.lose(kind, name, "without effect in this version: %s", strings.Join(fields, ", "))
	}
	switch t := typed.(type) {
	case *kubeovnv1.Subnet:
		o.subnets = append(o.subnets, t)
	case *kubeovnv1.Vpc:
		o.vpcs = append(o.vpcs, t)
		_, problems := validation.Vpc(name, &t.Spec)
		if p := validation.Joined(problems); p != nil {
			o.problem(kind, name, p)
		}
		if len(t.Spec.ExternalSubnets()) > 0 && (t.Spec.EnableBfd || slices.ContainsFunc(t.Spec.StaticRoutes, monitored)) {
			o.find(Differs, kind, name, "enableBfd, bfdId: routes are used only while the router of the network answers by BFD (docs/user/external.md). If it runs no BFD, unset the fields")
		}
	case *kubeovnv1.IPPool:
		o.pools = append(o.pools, t)
	case *kubeovnv1.SwitchLBRule:
		_, p := validation.LBRuleVIPs(t.Spec.VIP)
		if p == nil {
			p = validation.LBRuleBackends(&t.Spec.LBRuleBackends)
		}
		if p != nil {
			o.problem(kind, name, p)
		}
	case *kubeovnv1.RouterLBRule:
		if p := validation.RouterLBRule(&t.Spec); p != nil {
			o.problem(kind, name, p)
		}
	case *kubeovnv1.ProviderNetwork:
		if p := validation.ProviderNetwork(name, &t.Spec); p != nil {
			o.problem(kind, name, p)
		}
	case *kubeovnv1.OvnEip:
		if !slices.Contains([]string{"", kubeovnv1.OvnEipTypeNAT, kubeovnv1.OvnEipTypeLRP}, t.Spec.Type) {
			o.lose(kind, name, "type %s: Kiln only reserves its addresses", t.Spec.Type)
		}
	default:
		if rule := lookup.NATRuleOf(typed); rule != nil && rule.Specs[0].Problem != nil {
			o.problem(kind, name, rule.Specs[0].Problem)
		}
	}
}

// monitored reports whether a static route has a bfdId.
func monitored(route *kubeovnv1.StaticRoute) bool { return route != nil && route.BFDID != "" }

// ineffective returns the set fields of an object's spec that have no effect, sorted.
func ineffective(kind string, u *unstructured.Unstructured, typed client.Object) (fields []string) {
	for _, f := range kubeovnv1.UnimplementedFields {
		if f.Kind == kind && f.Except != u.GetName() && f.Field != "containerID" && isSet(u, f.Field) { // Kube-OVN's components write containerID
			fields = append(fields, f.Field)
		}
	}
	switch t := typed.(type) {
	case *kubeovnv1.Subnet:
		fields = append(fields, validation.UnbuiltSubnetFields(&t.Spec)...)
		fields = append(fields, validation.IgnoredSubnetFields(t.Name, &t.Spec)...)
	case *kubeovnv1.Vpc:
		fields = append(fields, validation.IgnoredVpcFields(&t.Spec)...)
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

// isSet reports whether a field of the spec has a value that is not empty.
func isSet(u *unstructured.Unstructured, field string) bool {
	value, found, err := unstructured.NestedFieldNoCopy(u.Object, "spec", field)
	if err != nil || !found {
		return false
	}
	switch v := value.(type) {
	case string:
		return v != ""
	case bool:
		return v
	case []any:
		return len(v) > 0
	}
	return value != nil
}

func (o *objects) pool(pool *kubeovnv1.IPPool) {
	at := slices.IndexFunc(o.subnets, func(s *kubeovnv1.Subnet) bool { return s.Name == pool.Spec.Subnet })
	if at < 0 {
		o.lose("IPPool", pool.Name, "Subnet %s does not exist", pool.Spec.Subnet)
		return
	}
	if _, p := validation.IPPool(pool, o.subnets[at].Spec.CIDRBlock); p != nil {
		o.problem("IPPool", pool.Name, p)
	}
}

// peer is a subnet that is accepted.
type peer struct {
	*kubeovnv1.Subnet
	cidrs []netip.Prefix
}

// peersOf returns the subnets that must not overlap with a subnet: of those in its VPC, the ones on its router, and those on its Vlan.
func peersOf(s *kubeovnv1.Subnet, inVpc, onVlan []peer) []validation.Peer {
	var found []validation.Peer
	for _, p := range inVpc {
		if p.Spec.OnRouter() && s.Spec.OnRouter() {
			found = append(found, validation.Peer{Name: p.Name, CIDRs: p.cidrs})
		}
	}
	for _, p := range onVlan {
		found = append(found, validation.Peer{Name: p.Name, CIDRs: p.cidrs, Vlan: s.Spec.Vlan})
	}
	return found
}

// conflicts judges the subnets together with their surroundings, like kube-ovn-controller: the older of two subnets has precedence.
func (o *objects) conflicts(c *Cluster, n v1alpha1.Network) (found []Finding) {
	services, _ := parsed(n.ServiceCIDRs)
	hosts := map[netip.Addr]string{}
	for _, h := range c.hosts() {
		hosts[h.address] = h.owner
	}
	ordered := slices.Clone(o.subnets)
	slices.SortFunc(ordered, func(a, b *kubeovnv1.Subnet) int {
		if lookup.Precedes(a, b) {
			return -1
		}
		return 1
	})
	peers, onVlan := map[string][]peer{}, map[string][]peer{} // by VPC, and by Vlan
	for _, s := range ordered {
		if validation.Unbuilt(&s.Spec) != nil {
			continue
		}
		vpc, around := lookup.VpcOf(s), validation.Surroundings{}
		around.Peers = peersOf(s, peers[vpc], onVlan[s.Spec.Vlan])
		if vpc == kubeovnv1.DefaultVpc {
			around.Services = services
		}
		if vpc == kubeovnv1.DefaultVpc && !s.Spec.PhysicalGateway() {
			around.Hosts = hosts
		}
		network, p := validation.Subnet(s.Name, &s.Spec)
		if p == nil {
			_, p = validation.SubnetFeatures(&s.Spec, network)
		}
		if p == nil && slices.ContainsFunc(o.vpcs, func(v *kubeovnv1.Vpc) bool { return v.Name == s.Name }) {
			p = validation.SameName("Vpc", s.Name)
		}
		if p == nil {
			p = validation.Conflict(network.CIDRs, around)
		}
		if p != nil {
			found = append(found, Finding{Lost, "Subnet " + s.Name, fmt.Sprintf("Kiln does not accept it: %s: %s", p.Reason, p.Message)})
			continue
		}
		peers[vpc] = append(peers[vpc], peer{s, network.CIDRs})
		if s.Spec.Vlan != "" {
			onVlan[s.Spec.Vlan] = append(onVlan[s.Spec.Vlan], peer{s, network.CIDRs})
		}
		if vpc != kubeovnv1.DefaultVpc && !slices.ContainsFunc(o.vpcs, func(v *kubeovnv1.Vpc) bool { return v.Name == vpc }) {
			found = append(found, Finding{Warning, "Subnet " + s.Name, fmt.Sprintf("Vpc %s does not exist (%s)", vpc, ipfamily.Join(network.CIDRs))})
		}
	}
	return found
}
