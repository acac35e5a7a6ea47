// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/validation"
)

// Indexes of rules for external addresses.
const (
	// indexEip finds RouterLBRules by EipsOf.
	indexEip = "lookup.eip"
	// indexInside finds OvnFips, OvnSnatRules and OvnDnatRules by natKeys.
	indexInside = "lookup.inside"
	// indexAbsent finds OvnEips by AbsentNodes.
	indexAbsent = "lookup.absent"
)

// NATRule is an OvnFip, an OvnSnatRule or an OvnDnatRule.
type NATRule struct {
	client.Object

	Kind string
	// Specs are the current spec and, if it differs, the last valid one.
	Specs []NATSpec
}

// NATSpec is a spec of a rule.
type NATSpec struct {
	validation.NAT

	Problem *validation.Problem
	// Last: it is the last valid one.
	Last bool
}

// specsOf parses the current spec of a rule and, if it differs, its last valid one.
func specsOf[S any](current, last *S, parse func(*S) (validation.NAT, *validation.Problem)) []NATSpec {
	one := func(spec *S, isLast bool) NATSpec {
		nat, problem := parse(spec)
		return NATSpec{NAT: nat, Problem: problem, Last: isLast}
	}
	same := last != nil && equality.Semantic.DeepEqual(current, last)
	specs := []NATSpec{one(current, same)}
	if last != nil && !same {
		specs = append(specs, one(last, true))
	}
	return specs
}

// NATRuleOf returns a rule; nil for objects of other kinds.
func NATRuleOf(o client.Object) *NATRule {
	switch o := o.(type) {
	case *kubeovnv1.OvnFip:
		return &NATRule{Object: o, Kind: "OvnFip", Specs: specsOf(&o.Spec, o.Status.ValidatedSpec, validation.OvnFip)}
	case *kubeovnv1.OvnSnatRule:
		return &NATRule{Object: o, Kind: "OvnSnatRule", Specs: specsOf(&o.Spec, o.Status.ValidatedSpec, validation.OvnSnatRule)}
	case *kubeovnv1.OvnDnatRule:
		return &NATRule{Object: o, Kind: "OvnDnatRule", Specs: specsOf(&o.Spec, o.Status.ValidatedSpec, validation.OvnDnatRule)}
	}
	return nil
}

// Eips returns the OvnEips that a rule names.
func (r *NATRule) Eips() []string {
	return r.keys(func(s NATSpec) string { return s.Eip })
}

// Vpc returns the VPC in the status of a rule. It stays there while the objects that the rule translates do not exist.
func (r *NATRule) Vpc() string {
	switch o := r.Object.(type) {
	case *kubeovnv1.OvnFip:
		return o.Status.Vpc
	case *kubeovnv1.OvnSnatRule:
		return o.Status.Vpc
	case *kubeovnv1.OvnDnatRule:
		return o.Status.Vpc
	}
	return ""
}

// HasValid reports whether a rule has a last valid spec.
func (r *NATRule) HasValid() bool {
	return slices.ContainsFunc(r.Specs, func(s NATSpec) bool { return s.Last })
}

// InsideKeys returns the keys of the objects and addresses that a rule translates: `ip/…`, `vip/…`, `subnet/…`, `vpc/…` and, by its status,
// `at/VPC/PREFIX`.
func (r *NATRule) InsideKeys() []string {
	keys := slices.Concat(
		r.keys(func(s NATSpec) string { return prefixed("ip/", s.IP) }),
		r.keys(func(s NATSpec) string { return prefixed("vip/", s.Vip) }),
		r.keys(func(s NATSpec) string { return prefixed("subnet/", s.Subnet) }),
		r.keys(func(s NATSpec) string { return prefixed("vpc/", s.Vpc) }),
	)
	vpc, texts := r.Vpc(), []string(nil)
	switch o := r.Object.(type) {
	case *kubeovnv1.OvnFip:
		texts = []string{o.Status.V4IP, o.Status.V6IP}
	case *kubeovnv1.OvnSnatRule:
		texts = []string{o.Status.V4IPCIDR, o.Status.V6IPCIDR}
	}
	for _, text := range texts {
		if text != "" {
			keys = append(keys, SourceKey(vpc, text))
		}
	}
	if vpc != "" {
		keys = append(keys, "vpc/"+vpc)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func prefixed(prefix, name string) string {
	if name == "" {
		return ""
	}
	return prefix + name
}

func (r *NATRule) keys(of func(NATSpec) string) []string {
	var keys []string
	for _, spec := range r.Specs {
		if key := of(spec); key != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// natLists returns empty lists of the kinds of NATRule.
func natLists() []client.ObjectList {
	return []client.ObjectList{&kubeovnv1.OvnFipList{}, &kubeovnv1.OvnSnatRuleList{}, &kubeovnv1.OvnDnatRuleList{}}
}

// NATRulesBy returns the rules with one of the keys of InsideKeys, or with the OvnEip if the key is `eip/NAME`.
func (n *Networks) NATRulesBy(ctx context.Context, keys ...string) ([]*NATRule, error) {
	return n.natRules(ctx, func(client.Object) bool { return false }, keys)
}

// Rivals returns the rules of NATRulesBy that another one may exclude, or that it may release.
func (n *Networks) Rivals(ctx context.Context, of *NATRule, keys ...string) ([]*NATRule, error) {
	claim := validation.ExternalClaim{Vpc: of.Vpc(), Whole: of.Kind == "OvnFip"}
	for _, spec := range of.Specs {
		claim.Fronts = append(claim.Fronts, validation.Front{Protocol: spec.Protocol, Port: spec.ExternalPort})
	}
	return n.natRules(ctx, func(o client.Object) bool {
		if !of.HasValid() { // a rule that was never applied has no precedence over applied ones
			claim.Vpc = appliedVpc(o)
		}
		return apart(o, claim)
	}, keys)
}

// apart reports whether an object is an OvnDnatRule that is applied beside a claim on the same OvnEip. It needs no parser and no other object: thousands of ports can share an OvnEip.
func apart(o client.Object, claim validation.ExternalClaim) bool {
	rule, is := o.(*kubeovnv1.OvnDnatRule)
	if !is || claim.Whole || appliedVpc(o) != claim.Vpc || claim.Vpc == "" {
		return false
	}
	return !slices.ContainsFunc(claim.Fronts, func(f validation.Front) bool {
		return strings.EqualFold(rule.Status.Protocol, string(f.Protocol)) && rule.Status.ExternalPort == strconv.Itoa(int(f.Port))
	})
}

// appliedVpc returns the VPC of an OvnDnatRule whose current spec is applied; "" otherwise.
func appliedVpc(o client.Object) string {
	rule, is := o.(*kubeovnv1.OvnDnatRule)
	if !is || !rule.Status.Ready || rule.Status.ValidatedSpec == nil || *rule.Status.ValidatedSpec != rule.Spec {
		return ""
	}
	return rule.Status.Vpc
}

func (n *Networks) natRules(ctx context.Context, skip func(client.Object) bool, keys []string) ([]*NATRule, error) {
	var rules []*NATRule
	seen := map[client.ObjectKey]map[string]bool{}
	for _, key := range keys {
		for _, list := range natLists() {
			which := client.MatchingFields{indexInside: key}
			if err := n.reader.List(ctx, list, which, client.UnsafeDisableDeepCopy); err != nil {
				return nil, fmt.Errorf("list rules for external addresses by %s: %w", key, err)
			}
			for _, o := range itemsOf(list) {
				if skip(o) {
					continue
				}
				rule := NATRuleOf(o)
				name := client.ObjectKeyFromObject(o)
				if seen[name] == nil {
					seen[name] = map[string]bool{}
				}
				if !seen[name][rule.Kind] {
					seen[name][rule.Kind] = true
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}

func itemsOf(list client.ObjectList) []client.Object {
	var items []client.Object
	switch l := list.(type) {
	case *kubeovnv1.OvnFipList:
		for i := range l.Items {
			items = append(items, &l.Items[i])
		}
	case *kubeovnv1.OvnSnatRuleList:
		for i := range l.Items {
			items = append(items, &l.Items[i])
		}
	case *kubeovnv1.OvnDnatRuleList:
		for i := range l.Items {
			items = append(items, &l.Items[i])
		}
	}
	return items
}

// Inside is what a rule translates.
type Inside struct {
	Vpc      string
	Internal []netip.Prefix
	// Port, Node and MAC are of a pod's IP.
	Port, Node string
	MAC        net.HardwareAddr
	// Missing describes an object that does not exist, or has no addresses yet.
	Missing string
}

// InsideOf returns what a spec translates. The problem is of an object that cannot be translated.
func (n *Networks) InsideOf(ctx context.Context, nat validation.NAT) (Inside, *validation.Problem, error) {
	switch {
	case nat.IP != "":
		ip, err := k8s.Find[kubeovnv1.IP](ctx, n.reader, client.ObjectKey{Name: nat.IP}, client.UnsafeDisableDeepCopy)
		switch {
		case err != nil:
			return Inside{}, nil, fmt.Errorf("get IP %s: %w", nat.IP, err)
		case ip == nil || ip.DeletionTimestamp != nil:
			return Inside{Missing: "IP " + nat.IP + ", which does not exist: create its pod, or name another one"}, nil, nil
		case ip.Spec.Namespace == "" || ip.Spec.PodName == "":
			return Inside{}, validation.Invalid("ipName: IP %s is not of a pod: name another one", nat.IP), nil
		}
		if _, static := ip.Labels[kubeovnv1.LabelStaticPod]; static {
			return Inside{Missing: "IP " + nat.IP + " to be of another pod: a node alone decides about its static pods"}, nil, nil
		}
		in := Inside{Port: ip.Name, Node: ip.Spec.NodeName, Internal: ipfamily.Hosts(ipfamily.ValidAddrs(ip.Spec.V4IPAddress, ip.Spec.V6IPAddress))}
		in.MAC, _ = net.ParseMAC(ip.Spec.MACAddress)
		return n.ofSubnet(ctx, in, ip.Spec.Subnet, "IP "+nat.IP, false)
	case nat.Vip != "":
		vip, err := k8s.Find[kubeovnv1.Vip](ctx, n.reader, client.ObjectKey{Name: nat.Vip}, client.UnsafeDisableDeepCopy)
		switch {
		case err != nil:
			return Inside{}, nil, fmt.Errorf("get Vip %s: %w", nat.Vip, err)
		case vip == nil || vip.DeletionTimestamp != nil:
			return Inside{Missing: "Vip " + nat.Vip + ", which does not exist: create it, or name another one"}, nil, nil
		case vip.Status.V4IP+vip.Status.V6IP == "":
			return Inside{Missing: "Vip " + nat.Vip + " to have its addresses"}, nil, nil
		}
		in := Inside{Internal: ipfamily.Hosts(ipfamily.ValidAddrs(vip.Status.V4IP, vip.Status.V6IP))}
		return n.ofSubnet(ctx, in, cmp.Or(k8s.AppliedVip(vip).Spec.Subnet, kubeovnv1.DefaultSubnet), "Vip "+nat.Vip, false)
	case nat.Subnet != "":
		return n.ofSubnet(ctx, Inside{}, nat.Subnet, "vpcSubnet", true)
	}
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, n.reader, client.ObjectKey{Name: nat.Vpc}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return Inside{}, nil, fmt.Errorf("get VPC %s: %w", nat.Vpc, err)
	}
	in := Inside{Vpc: nat.Vpc, Internal: nat.Internal}
	if vpc == nil {
		in.Missing = "VPC " + nat.Vpc + ", which does not exist: create it, or name another one"
	}
	return in, nil, nil
}

// ofSubnet completes addresses of a subnet. whole takes all addresses of the subnet.
func (n *Networks) ofSubnet(ctx context.Context, in Inside, name, what string, whole bool) (Inside, *validation.Problem, error) {
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, n.reader, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return in, nil, fmt.Errorf("get subnet %s: %w", name, err)
	}
	if subnet == nil {
		in.Missing = "subnet " + name + ", which does not exist: create it, or name another one"
		return in, nil, nil
	}
	if subnet = k8s.WithValidSpec(subnet); subnet == nil {
		in.Missing = "subnet " + name + ", which is not valid yet"
		return in, nil, nil
	}
	if subnet.Spec.PhysicalGateway() {
		return in, validation.Invalid("%s: the gateway of subnet %s is a router of the physical network, which packets to and from its pods pass instead of the VPC's router", what, name), nil
	}
	cidrs, _ := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
	if whole {
		in.Internal = cidrs
	} else {
		in.Internal = slices.DeleteFunc(in.Internal, func(p netip.Prefix) bool { return !slices.ContainsFunc(cidrs, p.Overlaps) })
	}
	in.Vpc = VpcOf(subnet)
	return in, nil, nil
}

// Claim returns the claim of a rule by a spec that translates in. subnet is the external subnet of its OvnEip. A pod that was created again in another VPC takes no address
// from the rules there, or from those that it leaves.
func (r *NATRule) Claim(spec NATSpec, in Inside, subnet string) validation.ExternalClaim {
	claim := validation.ExternalClaim{
		Kind: r.Kind, Name: r.GetName(), Created: r.GetCreationTimestamp().Time, Last: spec.Last && in.Vpc == r.Vpc(), Eip: spec.Eip, Subnet: subnet, Vpc: in.Vpc,
	}
	switch {
	case spec.Protocol != "":
		claim.Fronts = []validation.Front{{Protocol: spec.Protocol, Port: spec.ExternalPort}}
	default:
		claim.Whole, claim.Sources = r.Kind == "OvnFip", in.Internal
	}
	return claim
}

// ExternalClaims returns the claims of rules that may exclude a claim: of those that name its OvnEip, and of those that translate the same sources.
func (n *Networks) ExternalClaims(ctx context.Context, of validation.ExternalClaim, insideKeys []string) ([]validation.ExternalClaim, error) {
	keys := append([]string{"eip/" + of.Eip}, insideKeys...)
	for _, source := range of.Sources {
		keys = append(keys, SourceKey(of.Vpc, SourceText(source)))
	}
	rules, err := n.natRules(ctx, func(o client.Object) bool { return apart(o, of) }, keys)
	if err != nil {
		return nil, err
	}
	var claims []validation.ExternalClaim
	for _, rule := range rules {
		for _, spec := range rule.Specs {
			if spec.Problem != nil || rule.Kind == of.Kind && rule.GetName() == of.Name {
				continue
			}
			in, problem, err := n.InsideOf(ctx, spec.NAT)
			if err != nil {
				return nil, err
			}
			if in.Vpc == "" && in.Missing != "" && spec.Last { // it keeps its address until its pod is created again
				in.Vpc = rule.Vpc()
			}
			if problem != nil || in.Vpc == "" {
				continue // it translates nothing
			}
			subnet, err := n.subnetOfEip(ctx, spec.Eip)
			if err != nil {
				return nil, err
			}
			claims = append(claims, rule.Claim(spec, in, subnet))
		}
	}
	routers, err := n.routerClaims(ctx, of.Eip)
	return append(claims, routers...), err
}

// HasSource reports whether a rule other than this one translates a source of a VPC in one of these external subnets.
func (n *Networks) HasSource(ctx context.Context, than *NATRule, vpc string, source netip.Prefix, subnets []string) (bool, error) {
	if len(subnets) == 0 {
		return false, nil
	}
	rules, err := n.NATRulesBy(ctx, SourceKey(vpc, SourceText(source)))
	if err != nil {
		return false, err
	}
	for _, rule := range rules {
		for _, spec := range rule.Specs {
			if !spec.Last || rule.Kind == than.Kind && rule.GetName() == than.GetName() {
				continue
			}
			subnet, err := n.subnetOfEip(ctx, spec.Eip)
			if err != nil || slices.Contains(subnets, subnet) {
				return err == nil, err
			}
		}
	}
	return false, nil
}

func (n *Networks) subnetOfEip(ctx context.Context, name string) (string, error) {
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, n.reader, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil || eip == nil {
		return "", client.IgnoreNotFound(err)
	}
	return ExternalOfEip(eip), nil
}

// routerClaims returns the claims of the RouterLBRules that name an OvnEip.
func (n *Networks) routerClaims(ctx context.Context, eip string) ([]validation.ExternalClaim, error) {
	var list kubeovnv1.RouterLBRuleList
	if err := n.reader.List(ctx, &list, client.MatchingFields{indexEip: eip}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list RouterLBRules by OvnEip: %w", err)
	}
	var claims []validation.ExternalClaim
	for i := range list.Items {
		rule := &list.Items[i]
		specs, last := []*kubeovnv1.RouterLBRuleSpec{&rule.Spec}, rule.Status.ValidatedSpec
		same := last != nil && equality.Semantic.DeepEqual(last, &rule.Spec)
		if last != nil && !same {
			specs = append(specs, last)
		}
		for _, spec := range specs {
			if spec.OvnEip == eip && validation.RouterLBRule(spec) == nil {
				claims = append(claims, RouterClaim(rule, spec, same || spec == last))
			}
		}
	}
	return claims, nil
}

// RouterClaim returns the claim of a RouterLBRule by a spec.
func RouterClaim(rule *kubeovnv1.RouterLBRule, spec *kubeovnv1.RouterLBRuleSpec, last bool) validation.ExternalClaim {
	claim := validation.ExternalClaim{
		Kind: "RouterLBRule", Name: rule.Name, Created: rule.CreationTimestamp.Time, Last: last, Eip: spec.OvnEip, Vpc: cmp.Or(spec.VPC, kubeovnv1.DefaultVpc),
	}
	for _, p := range spec.Ports {
		claim.Fronts = append(claim.Fronts, validation.Front{
			Protocol: cmp.Or(corev1.Protocol(p.Protocol), corev1.ProtocolTCP), Port: uint16(p.Port), //nolint:gosec // the CRD takes 1 to 65535
		})
	}
	return claim
}

// SourceKey is the key of InsideKeys for a source of a VPC.
func SourceKey(vpc, source string) string { return "at/" + vpc + "/" + source }

// SourceText is a prefix as in the status of a rule: without a length if it is one address.
func SourceText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// natKeys are the keys of indexInside for rules.
func natKeys(o client.Object) []string {
	rule := NATRuleOf(o)
	keys := rule.InsideKeys()
	for _, eip := range rule.Eips() {
		keys = append(keys, "eip/"+eip)
	}
	return keys
}
