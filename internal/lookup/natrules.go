// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/validation"
)

// NATRule is an object of one of v1.NATKinds.
type NATRule struct {
	client.Object

	Kind string
	// Specs are the current spec and, if it differs, the last valid one.
	Specs  []NATSpec
	Status NATStatus
}

// NATStatus has the fields that the status of rules of each kind has. They point into the object.
type NATStatus struct {
	Vpc *string
	// External and Internal are the translated addresses, of IPv4 and of IPv6. Internal are prefixes in rules that translate sources only.
	External, Internal [2]*string
	Ready              *bool
	Conditions         *[]metav1.Condition
	// Accept makes the current spec the last valid one.
	Accept func()
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
		st := &o.Status
		return &NATRule{o, "OvnFip", specsOf(&o.Spec, st.ValidatedSpec, validation.OvnFip), NATStatus{
			&st.Vpc, [2]*string{&st.V4Eip, &st.V6Eip}, [2]*string{&st.V4IP, &st.V6IP}, &st.Ready, &st.Conditions, func() { st.ValidatedSpec = o.Spec.DeepCopy() },
		}}
	case *kubeovnv1.OvnSnatRule:
		st := &o.Status
		return &NATRule{o, "OvnSnatRule", specsOf(&o.Spec, st.ValidatedSpec, validation.OvnSnatRule), NATStatus{
			&st.Vpc, [2]*string{&st.V4Eip, &st.V6Eip}, [2]*string{&st.V4IPCIDR, &st.V6IPCIDR}, &st.Ready, &st.Conditions, func() { st.ValidatedSpec = o.Spec.DeepCopy() },
		}}
	case *kubeovnv1.OvnDnatRule:
		st := &o.Status
		return &NATRule{o, "OvnDnatRule", specsOf(&o.Spec, st.ValidatedSpec, validation.OvnDnatRule), NATStatus{
			&st.Vpc, [2]*string{&st.V4Eip, &st.V6Eip}, [2]*string{&st.V4IP, &st.V6IP}, &st.Ready, &st.Conditions, func() { st.ValidatedSpec = o.Spec.DeepCopy() },
		}}
	}
	return nil
}

// EmptyNATRule returns an empty object of one of v1.NATKinds, by its name.
func EmptyNATRule(kind string) client.Object {
	return natKind(kind)[0].Object.DeepCopyObject().(client.Object)
}

// ViewNATRule is the part of a rule on which other users of its OvnEip depend: its specs, and the addresses that it translates.
func ViewNATRule(o client.Object) string {
	rule := NATRuleOf(o)
	return fmt.Sprint(o.GetGeneration(), rule.Specs[0].Last, rule.InsideKeys())
}

// Eips returns the OvnEips that a rule names.
func (r *NATRule) Eips() []string {
	return r.keys(func(s NATSpec) string { return s.Eip })
}

// Vpc returns the VPC in the status of a rule. It stays there while the objects that the rule translates do not exist.
func (r *NATRule) Vpc() string { return *r.Status.Vpc }

// HasValid reports whether a rule has a last valid spec.
func (r *NATRule) HasValid() bool {
	return slices.ContainsFunc(r.Specs, func(s NATSpec) bool { return s.Last })
}

// InsideKeys returns the keys of the objects and addresses that a rule translates: `ip/…`, `vip/…`, `subnet/…`, `vpc/…` and, by its status,
// `at/VPC/PREFIX` or `at/VPC/PROTOCOL/ADDRESS:PORT`.
func (r *NATRule) InsideKeys() []string {
	keys := slices.Concat(
		r.keys(func(s NATSpec) string { return prefixed("ip/", s.IP) }),
		r.keys(func(s NATSpec) string { return prefixed("vip/", s.Vip) }),
		r.keys(func(s NATSpec) string { return prefixed("subnet/", s.Subnet) }),
		r.keys(func(s NATSpec) string { return prefixed("vpc/", s.Vpc) }),
	)
	vpc := r.Vpc()
	for _, text := range r.inside() {
		keys = append(keys, InsideKey(vpc, text))
	}
	if vpc != "" {
		keys = append(keys, "vpc/"+vpc)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// inside returns the sources, or the ports of pods, in the status of a rule.
func (r *NATRule) inside() []string {
	if o, is := r.Object.(*kubeovnv1.OvnDnatRule); is {
		return portsOf(&o.Status)
	}
	texts := []string{*r.Status.Internal[0], *r.Status.Internal[1]}
	return slices.DeleteFunc(texts, func(text string) bool { return text == "" })
}

func portsOf(st *kubeovnv1.OvnDnatRuleStatus) []string {
	port, err := strconv.ParseUint(st.InternalPort, 10, 16)
	if err != nil {
		return nil
	}
	var texts []string
	for _, address := range []string{st.V4IP, st.V6IP} {
		if address != "" {
			texts = append(texts, PortText(st.Protocol, address, uint16(port)))
		}
	}
	return texts
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

// NATRulesBy returns the rules with one of the keys of InsideKeys, or with the OvnEip if the key is `eip/NAME`.
func (n *Networks) NATRulesBy(ctx context.Context, keys ...string) ([]*NATRule, error) {
	return n.natRules(ctx, kubeovnv1.NATKinds, func(client.Object) bool { return false }, keys)
}

// NATRulesOfKind returns the rules of NATRulesBy of one kind.
func (n *Networks) NATRulesOfKind(ctx context.Context, kind string, keys ...string) ([]*NATRule, error) {
	return n.natRules(ctx, natKind(kind), func(client.Object) bool { return false }, keys)
}

func natKind(kind string) []*kubeovnv1.Kind {
	i := slices.IndexFunc(kubeovnv1.NATKinds, func(k *kubeovnv1.Kind) bool { return k.Kind == kind })
	return kubeovnv1.NATKinds[i : i+1]
}

// MayConflict returns the rules of NATRulesOfKind whose outcome may depend on another rule.
func (n *Networks) MayConflict(ctx context.Context, kind string, of *NATRule, keys ...string) ([]*NATRule, error) {
	u := use{vpc: of.Vpc(), whole: of.Kind == "OvnFip", eips: of.Eips(), inside: of.inside()}
	for _, spec := range of.Specs {
		u.fronts = append(u.fronts, validation.Front{Protocol: spec.Protocol, Port: spec.ExternalPort})
	}
	return n.natRules(ctx, natKind(kind), func(o client.Object) bool {
		if !of.HasValid() { // a rule that was never applied has no precedence over applied ones
			u.vpc = appliedVpc(o)
		}
		return compatible(o, u)
	}, keys)
}

// MayConflictWith returns the rules of a kind that name the OvnEip of a claim, and whose outcome may depend on it.
func (n *Networks) MayConflictWith(ctx context.Context, kind string, claim validation.ExternalClaim) ([]*NATRule, error) {
	u := use{vpc: claim.Vpc, eips: []string{claim.Eip}, fronts: claim.Fronts}
	return n.natRules(ctx, natKind(kind), func(o client.Object) bool { return compatible(o, u) }, []string{"eip/" + claim.Eip})
}

// use is what compatible compares: OvnEips, ports of their addresses, and inside, the translated sources and ports of pods as in the status of rules.
type use struct {
	vpc          string
	whole        bool
	eips, inside []string
	fronts       []validation.Front
}

// compatible reports whether an applied OvnDnatRule or OvnSnatRule shares an OvnEip, or the pods that it translates, without a conflict. The check parses no spec and reads no other
// object, because thousands of rules can share an OvnEip. It returns false for other objects.
func compatible(o client.Object, u use) bool {
	if vpc := appliedVpc(o); u.whole || vpc == "" || vpc != u.vpc {
		return false
	}
	switch rule := o.(type) {
	case *kubeovnv1.OvnDnatRule:
		return !slices.ContainsFunc(u.fronts, func(f validation.Front) bool {
			return strings.EqualFold(rule.Status.Protocol, string(f.Protocol)) && rule.Status.ExternalPort == strconv.Itoa(int(f.Port))
		}) && (slices.Contains(u.eips, rule.Spec.OvnEip) || !slices.ContainsFunc(portsOf(&rule.Status), func(port string) bool { return slices.Contains(u.inside, port) }))
	case *kubeovnv1.OvnSnatRule:
		return !slices.ContainsFunc(u.inside, func(source string) bool { return source == rule.Status.V4IPCIDR || source == rule.Status.V6IPCIDR })
	}
	return false
}

// appliedVpc returns the VPC of an OvnDnatRule or OvnSnatRule whose current spec is applied; "" otherwise.
func appliedVpc(o client.Object) string {
	switch rule := o.(type) {
	case *kubeovnv1.OvnDnatRule:
		if rule.Status.Ready && rule.Status.ValidatedSpec != nil && *rule.Status.ValidatedSpec == rule.Spec {
			return rule.Status.Vpc
		}
	case *kubeovnv1.OvnSnatRule:
		if rule.Status.Ready && rule.Status.ValidatedSpec != nil && *rule.Status.ValidatedSpec == rule.Spec {
			return rule.Status.Vpc
		}
	}
	return ""
}

func (n *Networks) natRules(ctx context.Context, kinds []*kubeovnv1.Kind, skip func(client.Object) bool, keys []string) ([]*NATRule, error) {
	var rules []*NATRule
	var seen map[string]bool // with several keys
	if len(keys) > 1 {
		seen = map[string]bool{}
	}
	for _, key := range keys {
		which := client.MatchingFields{indexInside: key}
		for _, kind := range kinds {
			list := kind.List.DeepCopyObject().(client.ObjectList)
			if err := n.reader.List(ctx, list, which, client.UnsafeDisableDeepCopy); err != nil {
				return nil, fmt.Errorf("list %ss by %s: %w", kind.Kind, key, err)
			}
			err := apimeta.EachListItem(list, func(item runtime.Object) error {
				o := item.(client.Object)
				if id := kind.Kind + "/" + o.GetName(); seen != nil && seen[id] || skip(o) {
					return nil
				} else if seen != nil {
					seen[id] = true
				}
				rules = append(rules, NATRuleOf(o))
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("read %ss by %s: %w", kind.Kind, key, err)
			}
		}
	}
	return rules, nil
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
