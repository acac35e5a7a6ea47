// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/validation"
)

// natRule is an OvnFip, OvnSnatRule or OvnDnatRule. Its status has the addresses of the spec that is applied: the last valid one. It has none if none is.
type natRule struct {
	in translate.OvnNATInputs
	// spec is the current one, which need not be applied, eip the OvnEip that it names.
	spec validation.NAT
	eip  string
	// vip is the Vip of the applied spec; "" if it has none.
	vip string
	// why is the message of the condition Ready; "" if it is not False.
	why string
}

// applied reports whether the router has the rule.
func (n *natRule) applied() bool { return len(n.in.Pairs) > 0 }

func (n *natRule) object() *Object { return &Object{Kind: n.in.Kind, Name: n.in.Name} }

// natOf reads a rule.
func natOf(o client.Object) (n natRule, is bool) {
	rule := lookup.NATRuleOf(o)
	if rule == nil {
		return n, false
	}
	n.in.Kind, n.in.Name, n.in.Vpc, n.spec, n.eip = rule.Kind, rule.GetName(), rule.Vpc(), rule.Specs[0].NAT, rule.Specs[0].Eip
	for _, spec := range rule.Specs {
		if spec.Last || len(rule.Specs) == 1 {
			n.vip = spec.Vip
		}
	}
	if r, is := o.(*kubeovnv1.OvnDnatRule); is {
		n.in.Protocol = corev1.Protocol(strings.ToUpper(r.Status.Protocol))
		n.in.ExternalPort, n.in.InternalPort = portNumber(r.Status.ExternalPort), portNumber(r.Status.InternalPort)
	}
	for i, external := range rule.Status.External {
		a, err := netip.ParseAddr(*external)
		p, prefixErr := prefixOf(*rule.Status.Internal[i])
		if err == nil && prefixErr == nil {
			n.in.Pairs = append(n.in.Pairs, translate.NATPair{External: a, Internal: p})
		}
	}
	if c := apimeta.FindStatusCondition(kubeovnv1.ConditionsOf(o), kubeovnv1.ConditionReady); c != nil && c.Status == metav1.ConditionFalse {
		n.why = c.Message
	}
	n.in.Inside = n.in.Vpc != kubeovnv1.DefaultVpc
	return n, true
}

func portNumber(text string) uint16 {
	n, _ := strconv.ParseUint(text, 10, 16)
	return uint16(n)
}

// prefixOf parses an address or a CIDR.
func prefixOf(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("parse the internal addresses: %w", err)
	}
	return p, nil
}

// connect sets the external subnet of a rule. Packets need a policy to the physical router there in the default VPC, whose policies for nodes precede routes, in a custom VPC
// with several external subnets, and if none of its default routes leads there.
func (n *natRule) connect(ports []translate.ExternalPort, defaults []netip.Addr) {
	for i := range n.in.Pairs {
		pair := &n.in.Pairs[i]
		for _, port := range ports {
			if !within(port.CIDRs, pair.External) {
				continue
			}
			n.in.Subnet = port.Subnet
			routed := slices.ContainsFunc(defaults, func(hop netip.Addr) bool {
				return familyOf(hop) == familyOf(pair.External) && within(port.CIDRs, hop)
			})
			if n.in.Vpc == kubeovnv1.DefaultVpc || len(ports) > 1 || !routed {
				pair.NextHop = port.Gateway(pair.External)
			}
		}
	}
}

// yields removes the policies for sources, or for answers of a port, that another rule translates in an earlier external subnet.
func (n *natRule) yields(to []natRule, ports []translate.ExternalPort) {
	rank := func(of *natRule) int {
		return slices.IndexFunc(ports, func(p translate.ExternalPort) bool { return p.Subnet == of.in.Subnet })
	}
	for i := range n.in.Pairs {
		pair := &n.in.Pairs[i]
		if slices.ContainsFunc(to, func(other natRule) bool { // only an OvnDnatRule has a protocol
			return other.in.Protocol == n.in.Protocol && other.in.InternalPort == n.in.InternalPort && rank(&other) < rank(n) &&
				slices.ContainsFunc(other.in.Pairs, func(p translate.NATPair) bool { return p.Internal == pair.Internal })
		}) {
			pair.NextHop = netip.Addr{}
		}
	}
}

// forwards reports whether a rule sends a packet for one of its external addresses to an internal one.
func (n *natRule) forwards(p packet) bool {
	switch n.in.Kind {
	case translate.KindOvnFip:
		return true
	case translate.KindOvnDnatRule:
		return protocolOf(n.in.Protocol) == p.protocol && n.in.ExternalPort == p.port
	}
	return false
}

// asksFor reports whether the current spec of a rule would forward a packet, or translate its source. A spec that cannot be read may do both.
func (n *natRule) asksFor(p packet) bool {
	return n.in.Kind == translate.KindOvnFip || n.in.Kind == translate.KindOvnDnatRule &&
		(n.spec.Protocol == "" || protocolOf(n.spec.Protocol) == p.protocol && (n.spec.ExternalPort == 0 || n.spec.ExternalPort == p.port))
}

// asksForSource reports whether the current spec of a rule would translate packets of a host.
func (n *natRule) asksForSource(vpc string, from host, source netip.Addr) bool {
	switch spec := n.spec; {
	case n.in.Kind == translate.KindOvnDnatRule:
		return false
	case spec.IP != "":
		return from.kind == aPod && spec.IP == from.port()
	case spec.Subnet != "":
		return spec.Subnet == from.net.LogicalSwitch
	case spec.Vpc != "":
		return spec.Vpc == vpc && within(spec.Internal, source)
	}
	return false
}

// routerFronts returns the RouterLBRules of a VPC that have a packet's destination, or of all VPCs.
func (w *walk) routerFronts(vpc string, p packet) []front {
	var fronts []front
	for _, r := range w.s.RouterRules {
		spec := &r.Spec
		if r.Status.ValidatedSpec != nil {
			spec = r.Status.ValidatedSpec
		}
		of := cmp.Or(spec.VPC, kubeovnv1.DefaultVpc)
		for _, eip := range w.s.Eips {
			if addresses := addressesOf(eip); eip.Name == spec.OvnEip && slices.Contains(addresses, p.dst) && (vpc == "" || of == vpc) {
				fronts = append(fronts, *w.rule(translate.KindRouterLBRule, r.Name, of, addresses, &spec.LBRuleBackends, r.Status.Service, p))
			}
		}
	}
	return fronts
}

// eipFronts returns the Services of a VPC, or of all VPCs, that have a packet's destination by an OvnEip.
func (w *walk) eipFronts(vpc string, p packet) []front {
	var fronts []front
	for _, s := range w.s.Services {
		addresses, of := svc.EipAddresses(s), svc.Vpc(s)
		if !slices.Contains(addresses, p.dst) || vpc != "" && of != vpc {
			continue
		}
		rows := translate.Service(translate.ServiceInputs{Service: s, Slices: w.s.slicesOf(s.Namespace, s.Name), Vpc: of, Addresses: addresses})
		w.m.add(translate.ServiceOwner(s.Namespace, s.Name), rows)
		f := frontOf(rows, p)
		f.object, f.service, f.namespace, f.vpc = Object{Kind: "Service", Namespace: s.Namespace, Name: s.Name}, s, s.Namespace, of
		fronts = append(fronts, f)
	}
	return fronts
}

// forwardsInside returns the OvnDnatRules of a custom VPC that have a packet's destination: the load balancers of the VPC's subnets serve them.
func (w *walk) forwardsInside(vpc string, p packet) []front {
	var fronts []front
	for _, o := range w.s.ExternalRules {
		n, is := natOf(o)
		if !is || n.in.Kind != translate.KindOvnDnatRule || n.in.Vpc != vpc || !n.in.Inside || !n.applied() {
			continue
		}
		f := frontOf(translate.OvnNAT(n.in), p)
		if f.ports != "" {
			f.object, f.vpc = *n.object(), vpc
			fronts = append(fronts, f)
		}
	}
	return fronts
}

// Behind returns the addresses of pods to which an OvnFip or OvnDnatRule forwards packets for external addresses.
func Behind(rule client.Object, external []netip.Addr) []netip.Addr {
	var inside []netip.Addr
	if n, is := natOf(rule); is && n.in.Kind != translate.KindOvnSnatRule {
		for _, pair := range n.in.Pairs {
			if slices.Contains(external, pair.External) && pair.Internal.IsSingleIP() {
				inside = append(inside, pair.Internal.Addr())
			}
		}
	}
	return inside
}

// within reports whether one of several prefixes contains an address.
func within(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}
