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
	// indexEipAddress finds OvnEips by AddressesOfEip.
	indexEipAddress = "lookup.eipAddress"
)

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

// Claim returns the claim of a rule by a spec that translates in. eip is its OvnEip; nil if that does not exist. A pod that was created again in another VPC takes no address
// from the rules there, or from those that it leaves.
func (r *NATRule) Claim(spec NATSpec, in Inside, eip *kubeovnv1.OvnEip) validation.ExternalClaim {
	claim := validation.ExternalClaim{
		Kind: r.Kind, Name: r.GetName(), Created: r.GetCreationTimestamp().Time, Last: spec.Last && in.Vpc == r.Vpc(), Eip: spec.Eip, Vpc: in.Vpc,
	}
	if r.GetAnnotations()[kubeovnv1.EgressOfRule] != "" {
		claim.EgressOf = r.GetAnnotations()[kubeovnv1.PodOfRule]
	}
	if eip != nil {
		claim.Subnet = ExternalOfEip(eip)
		for _, address := range ipfamily.ValidAddrs(eip.Status.V4IP, eip.Status.V6IP) {
			claim.Families = append(claim.Families, ipfamily.Of(address))
		}
	}
	switch {
	case spec.Protocol != "":
		claim.Fronts = []validation.Front{{Protocol: spec.Protocol, Port: spec.ExternalPort}}
		for _, internal := range in.Internal {
			claim.Ports = append(claim.Ports, validation.InternalPort{Protocol: spec.Protocol, AddrPort: netip.AddrPortFrom(internal.Addr(), spec.InternalPort)})
		}
	default:
		claim.Whole, claim.Sources = r.Kind == "OvnFip", in.Internal
	}
	return claim
}

// InsideTexts returns the sources and the ports of pods that a claim translates, as in the keys of rules. It returns ports only if the VPC has several external subnets: in one, any
// number of rules can lead to a port.
func InsideTexts(claim validation.ExternalClaim) []string {
	var texts []string
	for _, source := range claim.Sources {
		texts = append(texts, SourceText(source))
	}
	if len(claim.Exits) > 0 {
		for _, port := range claim.Ports {
			texts = append(texts, PortText(string(port.Protocol), port.Addr().String(), port.Port()))
		}
	}
	return texts
}

// ExternalClaims returns the claims that may exclude a claim: of Services to its OvnEip, of rules that name it, and of rules that translate the same sources or ports of pods.
func (n *Networks) ExternalClaims(ctx context.Context, of validation.ExternalClaim, insideKeys []string) ([]validation.ExternalClaim, error) {
	keys := append([]string{"eip/" + of.Eip}, insideKeys...)
	u := use{vpc: of.Vpc, whole: of.Whole, eips: []string{of.Eip}, fronts: of.Fronts, inside: InsideTexts(of)}
	for _, text := range u.inside {
		keys = append(keys, InsideKey(of.Vpc, text))
	}
	rules, err := n.natRules(ctx, kubeovnv1.NATKinds, func(o client.Object) bool { return compatible(o, u) }, keys)
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
			eip, err := n.eip(ctx, spec.Eip)
			if err != nil {
				return nil, err
			}
			claims = append(claims, rule.Claim(spec, in, eip))
		}
	}
	routers, err := n.routerClaims(ctx, of.Eip)
	return slices.Concat(claims, routers, n.ServiceClaims.Of(of.Eip)), err
}

// Translated reports whether a rule other than this one translates a source or a port of a pod (SourceText, PortText) of a VPC in one of these external subnets.
func (n *Networks) Translated(ctx context.Context, than *NATRule, vpc, inside string, subnets []string) (bool, error) {
	if len(subnets) == 0 {
		return false, nil
	}
	rules, err := n.NATRulesBy(ctx, InsideKey(vpc, inside))
	if err != nil {
		return false, err
	}
	for _, rule := range rules {
		for _, spec := range rule.Specs {
			if !spec.Last || rule.Kind == than.Kind && rule.GetName() == than.GetName() {
				continue
			}
			eip, err := n.eip(ctx, spec.Eip)
			if err != nil || eip != nil && slices.Contains(subnets, ExternalOfEip(eip)) {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// eip returns an OvnEip; nil if it does not exist.
func (n *Networks) eip(ctx context.Context, name string) (*kubeovnv1.OvnEip, error) {
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, n.reader, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get OvnEip %s: %w", name, err)
	}
	return eip, nil
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

// InsideKey is the key of InsideKeys for a source or a port of a pod in a VPC.
func InsideKey(vpc, text string) string { return "at/" + vpc + "/" + text }

// SourceText is a prefix as in the status of a rule: without a length if it is one address.
func SourceText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// PortText is a port of a pod in the form `tcp/ADDRESS:PORT`.
func PortText(protocol, address string, port uint16) string {
	return strings.ToLower(protocol) + "/" + net.JoinHostPort(address, strconv.Itoa(int(port)))
}
