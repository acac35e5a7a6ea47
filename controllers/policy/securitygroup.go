// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
)

// groupCompiler expresses the rules of one security group in sets of pods. exists reports whether another group exists.
type groupCompiler struct {
	compiler

	exists func(group string) bool
	in     translate.SecurityGroupInputs
}

// securityGroup compiles a security group. The API server already rejects most rules that cannot be expressed. If such a rule is stored
// anyway, a drop rule matches all packets of its direction, and any other rule matches nothing.
func securityGroup(sg *kubeovnv1.SecurityGroup, exists func(group string) bool) compiled {
	c := &groupCompiler{exists: exists}
	c.Owner = translate.SecurityGroupOwner(sg.Name)
	c.in = translate.SecurityGroupInputs{Name: sg.Name, Tier: translate.TierPolicy}
	last := sg.Spec.Tier == kubeovnv1.LastSecurityGroupTier
	if last {
		c.in.Tier = translate.TierBaseline
	}
	c.in.Subjects = c.use(podset.Selector{Role: podset.Subjects, Group: sg.Name, Last: last})
	if sg.Spec.AllowSameGroupTraffic {
		c.in.Same = c.use(podset.Selector{Role: podset.Pods, Group: sg.Name})
	}
	for i := range sg.Spec.IngressRules {
		c.rule(translate.Ingress, i, &sg.Spec.IngressRules[i])
	}
	for i := range sg.Spec.EgressRules {
		c.rule(translate.Egress, i, &sg.Spec.EgressRules[i])
	}
	c.group = &c.in
	return c.compiled
}

var groupActions = map[kubeovnv1.SecurityGroupPolicy]nb.ACLAction{
	"":                           nb.ACLActionDrop,
	kubeovnv1.SecurityGroupAllow: nb.ACLActionAllowRelated,
	kubeovnv1.SecurityGroupDeny:  nb.ACLActionDrop,
	kubeovnv1.SecurityGroupDrop:  nb.ACLActionDrop,
	kubeovnv1.SecurityGroupPass:  nb.ACLActionPass,
}

func (c *groupCompiler) rule(direction translate.Direction, i int, r *kubeovnv1.SecurityGroupRule) {
	where := fmt.Sprintf("%sRules[%d]", direction, i)
	rule := translate.SecurityGroupRule{
		Key: fmt.Sprintf("%s/%d", direction, i), Direction: direction, Priority: r.Priority, Action: groupActions[r.Policy],
	}
	if rule.Action == "" || rule.Action == nb.ACLActionPass && c.in.Tier == translate.TierBaseline {
		c.problem("%s: its policy %q is none of this tier", where, r.Policy)
		return
	}
	full := rule
	err := c.fill(&full, r)
	if err == nil {
		c.in.Rules = append(c.in.Rules, full)
		if s := r.RemoteSecurityGroup; full.RemoteSet != "" && !c.exists(s) {
			c.problem("%s: SecurityGroup %s, which remoteSecurityGroup names, does not exist", where, s)
		}
		return
	}
	c.problem("%s: %v", where, err)
	if rule.Action == nb.ACLActionDrop {
		for _, rule.Family = range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			rule.Key = fmt.Sprintf("%s/%d/%s", direction, i, rule.Family)
			c.in.Rules = append(c.in.Rules, rule)
		}
	}
}

// fill reads the packet match of a rule.
func (c *groupCompiler) fill(rule *translate.SecurityGroupRule, r *kubeovnv1.SecurityGroupRule) (err error) {
	switch r.IPVersion {
	case "ipv4":
		rule.Family = ipfamily.IPv4
	case "ipv6":
		rule.Family = ipfamily.IPv6
	default:
		return fmt.Errorf("ipVersion is %q: write ipv4 or ipv6", r.IPVersion)
	}
	switch r.RemoteType {
	case kubeovnv1.RemoteAddress:
		if rule.Remote, err = prefixOf(r.RemoteAddress, rule.Family); err != nil {
			return fmt.Errorf("remoteAddress: %w", err)
		}
	case kubeovnv1.RemoteSecurityGroup:
		if r.RemoteSecurityGroup == "" {
			return fmt.Errorf("remoteSecurityGroup is empty: name a group")
		}
		if wrong := validation.IsDNS1123Subdomain(r.RemoteSecurityGroup); len(wrong) > 0 {
			return fmt.Errorf("remoteSecurityGroup %q is no name of a SecurityGroup: %s", r.RemoteSecurityGroup, wrong[0])
		}
		rule.RemoteSet = c.use(podset.Selector{Role: podset.Pods, Group: r.RemoteSecurityGroup})
	default:
		return fmt.Errorf("remoteType is %q: write address or securityGroup", r.RemoteType)
	}
	if r.LocalAddress != "" {
		if rule.Local, err = prefixOf(r.LocalAddress, rule.Family); err != nil {
			return fmt.Errorf("localAddress: %w", err)
		}
	}
	switch r.Protocol {
	case "", "all", "icmp":
		if r.PortRangeMin|r.PortRangeMax|r.SourcePortRangeMin|r.SourcePortRangeMax != 0 { // in a group of Kube-OVN, which ignores them
			return fmt.Errorf("ports need protocol tcp or udp, and it is %q: write a rule for each, or leave the ports out", cmp.Or(r.Protocol, "all"))
		}
		if r.Protocol == "icmp" {
			rule.Protocol = r.Protocol
		}
	case "tcp", "udp":
		rule.Protocol = r.Protocol
		rule.Ports = translate.PortRange{First: r.PortRangeMin, Last: r.PortRangeMax}
		rule.SourcePorts = translate.PortRange{First: r.SourcePortRangeMin, Last: r.SourcePortRangeMax}
	default:
		return fmt.Errorf("protocol %q is not all, icmp, tcp or udp", r.Protocol)
	}
	for _, p := range []translate.PortRange{rule.Ports, rule.SourcePorts} {
		if p.First > p.Last || p.First == 0 && p.Last > 0 {
			return fmt.Errorf("there are no ports %d to %d", p.First, p.Last)
		}
	}
	return nil
}

// prefixOf parses an address or a CIDR of a family.
func prefixOf(s string, family ipfamily.Family) (netip.Prefix, error) {
	prefix, err := ipfamily.ParseCIDR(s)
	if err != nil {
		address, addressErr := ipfamily.ParseAddr(s)
		if addressErr != nil {
			return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a CIDR", s)
		}
		prefix = netip.PrefixFrom(address, address.BitLen())
	}
	if ipfamily.Of(prefix.Addr()) != family {
		return netip.Prefix{}, fmt.Errorf("%s is not of family %s", s, family)
	}
	return prefix, nil
}
