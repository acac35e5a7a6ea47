// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/validation"
)

// addressConflict returns a problem if a Service or a rule of any kind with precedence has one of the rule's addresses and ports in the same VPC: OVN would
// choose either of them at every change. An OvnEip belongs to one VPC: to the VPC of the first rule that names it.
func (r *controller) addressConflict(ctx context.Context, rule *rule, s *state) (*validation.Problem, error) {
	if router, ok := rule.Object.(*kubeovnv1.RouterLBRule); ok {
		claim := lookup.RouterClaim(router, &router.Spec, rule.isLast())
		others, err := r.Networks.ExternalClaims(ctx, claim, nil)
		if err != nil {
			return nil, err
		}
		others = slices.DeleteFunc(others, func(c validation.ExternalClaim) bool { return c.Kind == translate.KindRouterLBRule }) // below
		if problem := validation.ExternalConflict(claim, others); problem != nil {
			return problem, nil
		}
	}
	for _, vip := range s.in.VIPs {
		if problem := r.claimed(rule, s, vip); problem != nil {
			return problem, nil
		}
		services, err := r.Services.At(ctx, vip)
		if err != nil {
			return nil, fmt.Errorf("find the Services at an address: %w", err)
		}
		for _, other := range services {
			front := sharedWith(other, vip, s)
			if front == "" {
				continue
			}
			denied, err := r.Grants.Vpc(ctx, other.Namespace, s.in.Vpc)
			if err != nil {
				return nil, err
			}
			if denied == "" { // a denied Service is not served, whatever its annotations say
				return validation.InUse("%s: Service %s has %s %s: choose another address or port", fieldOf(rule), client.ObjectKeyFromObject(other), vip, front), nil
			}
		}
		others, err := r.rulesAt(ctx, vip)
		if err != nil {
			return nil, err
		}
		for _, other := range others {
			if problem, err := r.ruleConflict(ctx, rule, other, s, vip); problem != nil || err != nil {
				return problem, err
			}
		}
	}
	return nil, nil
}

// claimed returns a problem if a Service has an address and a port of a SwitchLBRule by an OvnEip. Claims decide for RouterLBRules.
func (r *controller) claimed(rule *rule, s *state, vip netip.Addr) *validation.Problem {
	if rule.kind == translate.KindRouterLBRule {
		return nil
	}
	for _, claim := range r.Networks.ServiceClaims.At(s.in.Vpc, vip) {
		for _, p := range s.in.Ports {
			if front := (validation.Front{Protocol: p.Protocol, Port: p.Port}); slices.Contains(claim.Fronts, front) {
				return validation.InUse("%s: %s has %s %s: choose another address or port", fieldOf(rule), claim, vip, front)
			}
		}
	}
	return nil
}

// ruleConflict returns a problem if the rule conflicts with another rule at the same address that has precedence.
func (r *controller) ruleConflict(ctx context.Context, rule, other *rule, s *state, vip netip.Addr) (*validation.Problem, error) {
	if !precedes(other, rule) {
		return nil, nil
	}
	theirs := portsOf(other.spec)
	vpc, err := r.vpcOf(ctx, other)
	if err != nil {
		return nil, err
	}
	front := common(theirs, s.in.Ports)
	switch {
	case vpc != s.in.Vpc && rule.kind == translate.KindRouterLBRule && other.kind == rule.kind:
		return validation.InUse("ovnEip: %s uses it for VPC %s: name another OvnEip", described(other, rule), vpc), nil
	case vpc == s.in.Vpc && front != "":
		return validation.InUse("%s: %s has %s %s: choose another address or port", fieldOf(rule), described(other, rule), vip, front), nil
	}
	return nil, nil
}

// described returns another rule as messages about a rule name it.
func described(other, rule *rule) string {
	if at, own := other.GetCreationTimestamp(), rule.GetCreationTimestamp(); own.Before(&at) {
		return other.String()
	}
	return "the older " + other.String()
}

// fieldOf returns the name of the field that defines the addresses of a rule.
func fieldOf(rule *rule) string {
	if rule.kind == translate.KindRouterLBRule {
		return "ovnEip"
	}
	return "vip"
}

// rulesAt returns the rules of both kinds with an address, each with the spec that has it.
func (r *Reconciler) rulesAt(ctx context.Context, address netip.Addr) ([]*rule, error) {
	var switches kubeovnv1.SwitchLBRuleList
	if err := r.Client.List(ctx, &switches, client.MatchingFields{indexVIP: address.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list SwitchLBRules by address: %w", err)
	}
	eips, err := r.Networks.EipsAt(ctx, address)
	if err != nil {
		return nil, err
	}
	var rules []*rule
	for i := range switches.Items {
		for _, claim := range ruleOf(&switches.Items[i]).claims() {
			if vips, _ := validation.LBRuleVIPs(claim.Object.(*kubeovnv1.SwitchLBRule).Spec.VIP); slices.Contains(vips, address) {
				rules = append(rules, claim)
			}
		}
	}
	for _, eip := range eips {
		named, err := r.rulesOf(ctx, eip.Name)
		if err != nil {
			return nil, err
		}
		rules = append(rules, named...)
	}
	return rules, nil
}

// rulesOf returns the RouterLBRules that name an OvnEip, each with the spec that names it.
func (r *Reconciler) rulesOf(ctx context.Context, eip string) ([]*rule, error) {
	var list kubeovnv1.RouterLBRuleList
	if err := r.Client.List(ctx, &list, client.MatchingFields{indexEip: eip}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list RouterLBRules by OvnEip: %w", err)
	}
	rules := make([]*rule, 0, len(list.Items))
	for i := range list.Items {
		for _, claim := range ruleOf(&list.Items[i]).claims() {
			if claim.Object.(*kubeovnv1.RouterLBRule).Spec.OvnEip == eip {
				rules = append(rules, claim)
			}
		}
	}
	return rules, nil
}

// vpcOf returns the VPC of another rule.
func (r *controller) vpcOf(ctx context.Context, rule *rule) (string, error) {
	if router, ok := rule.Object.(*kubeovnv1.RouterLBRule); ok {
		return vpcOfRouter(router), nil
	}
	other := &state{keys: map[string]bool{}}
	var service *corev1.Service
	if len(rule.spec.Endpoints) == 0 {
		service = &corev1.Service{}
		if err := r.Client.Get(ctx, serviceKey(rule), service, client.UnsafeDisableDeepCopy); err != nil {
			service = nil // it has no Service yet
		}
	}
	err := r.resolve(ctx, rule, service, other)
	return other.in.Vpc, err
}

// sharedWith returns the first port that a Service of the rule's VPC has at the same address, in the form "80/TCP", or "" if there is none.
func sharedWith(other *corev1.Service, vip netip.Addr, s *state) string {
	if !slices.Contains(vipsOf(other), vip) {
		return "" // the Service of a RouterLBRule: rulesAt returns the rule itself
	}
	if svc.Vpc(other) != s.in.Vpc {
		return ""
	}
	var ports []translate.LBRulePort
	for _, p := range other.Spec.Ports {
		ports = append(ports, translate.LBRulePort{Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), Port: uint16(p.Port)}) //nolint:gosec // the API server takes 1 to 65535
	}
	return common(ports, s.in.Ports)
}

func common(a, b []translate.LBRulePort) string {
	for _, x := range a {
		for _, y := range b {
			if x.Port == y.Port && x.Protocol == y.Protocol {
				return fmt.Sprintf("%d/%s", x.Port, x.Protocol)
			}
		}
	}
	return ""
}

// vipsOf returns the load balancer addresses of an object. For a SwitchLBRule, both the current and the last valid spec count.
func vipsOf(o client.Object) (vips []netip.Addr) {
	switch o := o.(type) {
	case *kubeovnv1.SwitchLBRule:
		vips, _ = validation.LBRuleVIPs(o.Spec.VIP)
		if spec := o.Status.ValidatedSpec; spec != nil && spec.VIP != o.Spec.VIP {
			last, _ := validation.LBRuleVIPs(spec.VIP)
			vips = append(vips, last...)
		}
	case *kubeovnv1.OvnEip:
		vips = ipfamily.ValidAddrs(o.Status.V4IP, o.Status.V6IP)
	case *corev1.Service:
		vips = svc.Addresses(o)
		if kubeovnv1.OfRouterLBRule(o) { // its external addresses belong to the rule
			vips = svc.ClusterIPs(o)
		}
	}
	return vips
}

func textsOf(vips []netip.Addr) []string {
	texts := make([]string, len(vips))
	for i, vip := range vips {
		texts[i] = vip.String()
	}
	return texts
}
