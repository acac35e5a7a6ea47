// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// ipTypeVip is the value of ipType for the name of a Vip.
const ipTypeVip = "vip"

// NAT is the parsed spec of an OvnFip, an OvnSnatRule or an OvnDnatRule.
type NAT struct {
	Eip string
	// The translated addresses: the addresses of an IP, of a Vip or of a subnet, or Internal in Vpc.
	IP, Vip, Subnet string
	Vpc             string
	// Internal are single addresses, unless the rule translates sources only; at most one per family.
	Internal []netip.Prefix
	// Distributed makes the pod's node translate.
	Distributed bool
	// Protocol and ports of an OvnDnatRule.
	Protocol                   corev1.Protocol
	ExternalPort, InternalPort uint16
}

// OvnFip parses the spec of an OvnFip.
func OvnFip(spec *kubeovnv1.OvnFipSpec) (NAT, *Problem) {
	nat, problem := natOf(spec.OvnEip, spec.IPType, spec.IPName, spec.Vpc, spec.V4IP, spec.V6IP)
	if problem != nil {
		return nat, problem
	}
	switch spec.Type {
	case "", kubeovnv1.OvnFipCentralized:
	case kubeovnv1.OvnFipDistributed:
		if nat.Distributed = true; nat.IP == "" {
			return nat, Invalid("type %s needs ipName with the name of a pod's IP: the node of the pod translates", spec.Type)
		}
	default:
		return nat, Invalid("type %q: must be %s or %s", spec.Type, kubeovnv1.OvnFipCentralized, kubeovnv1.OvnFipDistributed)
	}
	return nat, nil
}

// OvnSnatRule parses the spec of an OvnSnatRule. Of vpcSubnet, ipName and the CIDRs, the first one that is set applies.
func OvnSnatRule(spec *kubeovnv1.OvnSnatRuleSpec) (NAT, *Problem) {
	nat := NAT{Eip: spec.OvnEip, Subnet: spec.VpcSubnet}
	switch {
	case nat.Eip == "":
		return nat, noEip()
	case nat.Subnet != "":
		return nat, nil
	case spec.IPName != "":
		nat.IP = spec.IPName
		return nat, nil
	case spec.V4IPCIDR == "" && spec.V6IPCIDR == "":
		return nat, Invalid("there is nothing to translate: set vpcSubnet, ipName, or vpc with v4IpCidr or v6IpCidr")
	case spec.Vpc == "":
		return nat, Invalid("vpc is empty: name the VPC of v4IpCidr and v6IpCidr")
	}
	nat.Vpc = spec.Vpc
	for _, part := range []struct {
		field, text string
		family      ipfamily.Family
	}{{"v4IpCidr", spec.V4IPCIDR, ipfamily.IPv4}, {"v6IpCidr", spec.V6IPCIDR, ipfamily.IPv6}} {
		if part.text == "" {
			continue
		}
		prefix, err := addrOrCIDR(part.text)
		if err != nil || ipfamily.Of(prefix.Addr()) != part.family {
			return nat, Invalid("%s: %q is not an %s address or CIDR", part.field, part.text, part.family)
		}
		nat.Internal = append(nat.Internal, prefix.Masked())
	}
	return nat, nil
}

// OvnDnatRule parses the spec of an OvnDnatRule.
func OvnDnatRule(spec *kubeovnv1.OvnDnatRuleSpec) (NAT, *Problem) {
	nat, problem := natOf(spec.OvnEip, spec.IPType, spec.IPName, spec.Vpc, spec.V4IP, spec.V6IP)
	if problem != nil {
		return nat, problem
	}
	protocols := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	if nat.Protocol = corev1.Protocol(strings.ToUpper(spec.Protocol)); !slices.Contains(protocols, nat.Protocol) {
		return nat, Invalid("protocol %q: must be tcp, udp or sctp", spec.Protocol)
	}
	var err error
	if nat.ExternalPort, err = port(spec.ExternalPort); err != nil {
		return nat, Invalid("externalPort: %v", err)
	}
	if nat.InternalPort, err = port(spec.InternalPort); err != nil {
		return nat, Invalid("internalPort: %v", err)
	}
	return nat, nil
}

func noEip() *Problem {
	return Invalid("ovnEip is empty: name the OvnEip with the external addresses")
}

// natOf parses the fields that an OvnFip and an OvnDnatRule share.
func natOf(eip, ipType, ipName, vpc, v4, v6 string) (NAT, *Problem) {
	nat := NAT{Eip: eip}
	switch {
	case eip == "":
		return nat, noEip()
	case ipType != "" && ipType != ipTypeVip && ipType != "ip":
		return nat, Invalid("ipType %q: must be empty, ip or vip", ipType)
	case ipName != "" && ipType == ipTypeVip:
		nat.Vip = ipName
		return nat, nil
	case ipName != "":
		nat.IP = ipName
		return nat, nil
	case v4 == "" && v6 == "":
		return nat, Invalid("there is nothing to translate: set ipName, or vpc with v4Ip or v6Ip")
	case vpc == "":
		return nat, Invalid("vpc is empty: name the VPC of v4Ip and v6Ip")
	}
	nat.Vpc = vpc
	for _, part := range []struct {
		field, text string
		family      ipfamily.Family
	}{{"v4Ip", v4, ipfamily.IPv4}, {"v6Ip", v6, ipfamily.IPv6}} {
		if part.text == "" {
			continue
		}
		address, err := ipfamily.ParseAddr(part.text)
		if err != nil || ipfamily.Of(address) != part.family || unreachable(address) {
			return nat, Invalid("%s: %q is not an %s address of a pod", part.field, part.text, part.family)
		}
		nat.Internal = append(nat.Internal, netip.PrefixFrom(address, address.BitLen()))
	}
	return nat, nil
}

func port(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q: must be a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

// Front is a port of an address.
type Front struct {
	Protocol corev1.Protocol
	Port     uint16
}

func (f Front) String() string { return fmt.Sprintf("%d/%s", f.Port, f.Protocol) }

// KindService is the kind of the claims of Services. Their names have a namespace.
const KindService = "Service"

// ExternalClaim is the use of an OvnEip by a rule of any kind, by one of its specs, or by a Service.
type ExternalClaim struct {
	Kind, Name string
	Created    time.Time
	// Last: the spec is the rule's last valid one; the ports of a Service are applied.
	Last bool
	Eip  string
	// EgressOf is the owner of the port, in the form `namespace/name`, if an EgressAddress has the rule for its pods.
	EgressOf string
	// Subnet is the external subnet of the OvnEip.
	Subnet string
	Vpc    string
	// Whole: the rule translates all packets to the address.
	Whole bool
	// Fronts are the ports that the rule has, if it has not the whole address.
	Fronts []Front
	// Sources are the addresses whose packets leave with the external address.
	Sources []netip.Prefix
	// Ports are the ports of pods to which the ports of the address lead.
	Ports []InternalPort
	// Families of the OvnEip: others are not translated.
	Families []ipfamily.Family
	// Exits are the external subnets of the VPC, if it has several, in the order of its spec. Only the claim that ExternalConflict judges needs them.
	Exits []Exit
}

// InternalPort is a port of a pod.
type InternalPort struct {
	Protocol corev1.Protocol
	netip.AddrPort
}

// Exit is one of several external subnets of a VPC.
type Exit struct {
	Subnet string
	// Hops are routers in the subnet to which routes of the user lead, besides default routes.
	Hops []netip.Addr
}

func (c ExternalClaim) String() string { return c.Kind + " " + c.Name }

// precedes reports whether claim c has precedence over another one. A spec that is the last valid one has precedence over a changed or new one, so that a
// change takes no address from another rule; otherwise the older rule has it. Ties in creation time are decided by name and kind.
func (c ExternalClaim) precedes(other ExternalClaim) bool {
	switch {
	case c.Kind == other.Kind && c.Name == other.Name:
		return false
	case c.Last != other.Last:
		return c.Last
	case !c.Created.Equal(other.Created):
		return c.Created.Before(other.Created)
	case c.Name != other.Name:
		return c.Name < other.Name
	}
	return c.Kind < other.Kind
}

// ExternalConflict returns a problem if another claim with precedence excludes claim c. An OvnEip belongs to the router of one VPC, because only one may answer
// for its addresses. There an OvnFip has the whole address, and other rules share it: each has its own ports, and each source has one address in an external subnet. Connections
// from outside need answers that leave by the subnet of their rule (unanswered).
func ExternalConflict(c ExternalClaim, others []ExternalClaim) *Problem {
	for _, other := range c.preceding(others) {
		if problem := c.excludedBy(other); problem != nil {
			return problem
		}
	}
	return nil
}

// ExternalFronts returns the ports of the claim of a Service that no claim with precedence excludes, and the first problem of the others: a Service keeps its other ports.
func ExternalFronts(c ExternalClaim, others []ExternalClaim) (free []Front, problem *Problem) {
	c.Fronts = slices.Clone(c.Fronts)
	for _, other := range c.preceding(others) {
		excluded := c.excludedBy(other)
		if excluded == nil {
			continue
		}
		if problem == nil {
			problem = excluded
		}
		if other.Vpc != c.Vpc || other.Whole {
			return nil, problem
		}
		theirs := setOf(other.Fronts)
		c.Fronts = slices.DeleteFunc(c.Fronts, func(f Front) bool { return theirs[f] })
	}
	return c.Fronts, problem
}

// preceding returns the claims that have precedence over claim c, in one order, whatever the order of the cache is.
func (c ExternalClaim) preceding(others []ExternalClaim) []ExternalClaim {
	before := slices.DeleteFunc(slices.Clone(others), func(other ExternalClaim) bool { return !other.precedes(c) })
	slices.SortFunc(before, func(a, b ExternalClaim) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return before
}

// words are the field by which the user of an OvnEip names it, and what to change instead of its ports.
func (c ExternalClaim) words() (field, instead string) {
	if c.Kind == KindService {
		return "annotation " + kubeovnv1.AnnotationIPAddress.Key(), "request an address of another OvnEip"
	}
	return "ovnEip", "name another OvnEip"
}

func (c ExternalClaim) excludedBy(other ExternalClaim) *Problem {
	named := other.String()
	if other.Created.Before(c.Created) {
		named = "the older " + named
	}
	if other.Eip == c.Eip {
		field, instead := c.words()
		switch front := c.commonFront(other); {
		case other.Vpc != c.Vpc:
			return InUse("%s: %s uses OvnEip %s for VPC %s: %s", field, named, c.Eip, other.Vpc, instead)
		case other.Whole:
			return InUse("%s: %s has the addresses of OvnEip %s: %s", field, named, c.Eip, instead)
		case c.Whole:
			return InUse("%s: %s uses OvnEip %s, and an OvnFip needs the whole address: %s", field, named, c.Eip, instead)
		case front != "":
			return InUse("%s: %s has port %s of OvnEip %s: choose another port, or %s", field, named, front, c.Eip, instead)
		}
	}
	if other.Vpc != c.Vpc {
		return nil
	}
	if other.Subnet != c.Subnet {
		return c.unanswered(other, named)
	}
	for _, source := range c.Sources {
		if slices.Contains(other.Sources, source) {
			return InUse("%s of VPC %s has an address in external subnet %s by %s: delete one of the rules", text(source), c.Vpc, c.Subnet, named)
		}
	}
	return nil
}

// unanswered returns a problem if one of two claims in different external subnets of a VPC translates connections to a port or an address of a pod, and their answers leave by the
// subnet of the other claim. Both claims would have policies for the same packets; these leave by the first of the subnets, unless routes of the user lead through the second one.
func (c ExternalClaim) unanswered(other ExternalClaim, named string) *Problem {
	place := func(subnet string) int {
		return slices.IndexFunc(c.Exits, func(e Exit) bool { return e.Subnet == subnet })
	}
	at, otherAt := place(c.Subnet), place(other.Subnet)
	if at < 0 || otherAt < 0 {
		return nil // the router has no port there
	}
	first, second := other, c
	if at < otherAt {
		first, second = c, other
	}
	leave := func(a netip.Addr) bool {
		family := ipfamily.Of(a)
		return slices.Contains(first.Families, family) && slices.Contains(second.Families, family) &&
			!slices.ContainsFunc(c.Exits[max(at, otherAt)].Hops, func(hop netip.Addr) bool { return ipfamily.Of(hop) == family })
	}
	const instead = "delete one of the rules, or add a route of the VPC to a network behind the router of subnet "
	for _, p := range second.Ports {
		if slices.Contains(first.Ports, p) && leave(p.Addr()) {
			return InUse("internalPort: answers from port %d/%s of %s leave VPC %s by external subnet %s only, and %s translates this port, too: choose another internalPort, %s%s",
				p.Port(), p.Protocol, p.Addr(), c.Vpc, first.Subnet, named, instead, second.Subnet)
		}
	}
	for _, source := range second.Sources {
		if second.Whole && slices.Contains(first.Sources, source) && leave(source.Addr()) {
			return InUse("packets from %s leave VPC %s by external subnet %s only, and %s translates this address, too: %s%s",
				text(source), c.Vpc, first.Subnet, named, instead, second.Subnet)
		}
	}
	return nil
}

// SharesPort reports whether another claim has a port of this one.
func (c ExternalClaim) SharesPort(other ExternalClaim) bool { return c.commonFront(other) != "" }

// commonFront returns the first port of the claim that another one has, too. A Service can have thousands.
func (c ExternalClaim) commonFront(other ExternalClaim) string {
	has := func(f Front) bool { return slices.Contains(other.Fronts, f) }
	if len(c.Fronts) > 1 && len(other.Fronts) > 1 {
		theirs := setOf(other.Fronts)
		has = func(f Front) bool { return theirs[f] }
	}
	if i := slices.IndexFunc(c.Fronts, has); i >= 0 {
		return c.Fronts[i].String()
	}
	return ""
}

func setOf(fronts []Front) map[Front]bool {
	set := make(map[Front]bool, len(fronts))
	for _, f := range fronts {
		set[f] = true
	}
	return set
}

// text is a prefix for a message.
func text(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
