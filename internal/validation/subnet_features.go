// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/validation/match"
)

// Features are the fields of a subnet's spec besides its addresses, parsed.
type Features struct {
	// AllowSubnets may exchange traffic with a private subnet.
	AllowSubnets []netip.Prefix
	// DHCPOptions are the user's, by family ("IPv4"), in OVN's form.
	DHCPOptions map[string]map[string]string
	// RouterAdvertisements are the user's, in OVN's form.
	RouterAdvertisements map[string]string
	// Vips are the addresses that several ports share.
	Vips []netip.Addr
	// Interconnection has the addresses that the router must have in an interconnected underlay subnet, at most one per family.
	Interconnection []netip.Addr
}

// SubnetFeatures checks the fields that Subnet does not check. network is the result of Subnet.
func SubnetFeatures(spec *kubeovnv1.SubnetSpec, network Network) (Features, *Problem) {
	var f Features
	for i, written := range spec.AllowSubnets {
		cidr, err := ipfamily.ParseCIDR(written)
		if err != nil {
			return f, Problemf(ReasonACLInvalid, "allowSubnets[%d]: %v: write one like 10.17.0.0/16", i, err)
		}
		f.AllowSubnets = append(f.AllowSubnets, cidr)
	}
	for i := range spec.ACLs {
		if err := acl(&spec.ACLs[i]); err != nil {
			return f, Problemf(ReasonACLInvalid, "acls[%d]: %v", i, err)
		}
	}
	if problem := podLimits(spec.PodLimits); problem != nil {
		return f, problem
	}
	f.DHCPOptions = map[string]map[string]string{}
	for _, options := range []struct{ field, family, text string }{
		{"dhcpV4Options", "IPv4", spec.DHCPV4Options}, {"dhcpV6Options", "IPv6", spec.DHCPV6Options},
	} {
		read, err := DHCPOptions(options.family, options.text)
		if err != nil {
			return f, Problemf(ReasonDHCPInvalid, "%s: %v", options.field, err)
		}
		f.DHCPOptions[options.family] = read
	}
	var err error
	if f.RouterAdvertisements, err = RouterAdvertisements(spec.IPv6RAConfigs); err != nil {
		return f, Problemf(ReasonRAInvalid, "ipv6RAConfigs: %v", err)
	}
	if f.Vips, err = vips(spec.Vips, network); err != nil {
		return f, Problemf(ReasonVipsInvalid, "vips: %v", err)
	}
	if f.Interconnection, err = interconnection(spec, network, f.Vips); err != nil {
		return f, Problemf(ReasonFieldInvalid, "u2oInterconnectionIP: %v", err)
	}
	return f, nil
}

// interconnection returns the addresses of u2oInterconnectionIP.
func interconnection(spec *kubeovnv1.SubnetSpec, network Network, shared []netip.Addr) ([]netip.Addr, error) {
	if !spec.U2OInterconnection || spec.U2OInterconnectionIP == "" {
		return nil, nil
	}
	list, err := ipfamily.ParseAddrs(spec.U2OInterconnectionIP)
	if err != nil {
		return nil, err
	}
	for _, addr := range list {
		switch cidr, inside := overlapping(netip.PrefixFrom(addr, addr.BitLen()), network.CIDRs); {
		case !inside:
			return nil, fmt.Errorf("%s is outside of %s: write one inside", addr, ipfamily.Join(network.CIDRs))
		case slices.Contains(network.Gateways, addr):
			return nil, fmt.Errorf("%s is the gateway, a router of the physical network: write another one", addr)
		case slices.Contains(shared, addr):
			return nil, fmt.Errorf("%s is one of vips: write another one", addr)
		case addr == cidr.Masked().Addr() || addr.Is4() && addr == netipx.PrefixLastIP(cidr):
			return nil, fmt.Errorf("%s is the first or the last address of %s, which no host can have: write another one", addr, cidr)
		}
	}
	return list, nil
}

// acl checks one rule.
func acl(rule *kubeovnv1.ACL) error {
	if !slices.Contains([]string{kubeovnv1.ACLFromPort, kubeovnv1.ACLToPort}, rule.Direction) {
		return fmt.Errorf("direction %q: must be %s or %s", rule.Direction, kubeovnv1.ACLFromPort, kubeovnv1.ACLToPort)
	}
	if actions := []string{"allow", "allow-related", "allow-stateless", "drop", "reject", "pass"}; !slices.Contains(actions, rule.Action) {
		return fmt.Errorf("action %q: must be one of %s", rule.Action, strings.Join(actions, ", "))
	}
	if rule.Priority < 0 || rule.Priority > maxACLPriority {
		return fmt.Errorf("priority %d: must be from 0 to %d", rule.Priority, maxACLPriority)
	}
	read, err := match.Parse(rule.Match)
	if err != nil {
		return fmt.Errorf("match %q is wrong %w", rule.Match, err)
	}
	if rule.Direction == kubeovnv1.ACLFromPort && read.Uses("outport") {
		return fmt.Errorf("match %q looks at outport, which is not known yet in direction %s: take direction %s", rule.Match,
			kubeovnv1.ACLFromPort, kubeovnv1.ACLToPort)
	}
	return nil
}

// maxACLPriority is OVN's greatest priority of an ACL (ovn-nb(5), ACL).
const maxACLPriority = 32767

func vips(written []string, network Network) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, s := range written {
		addr, err := ipfamily.ParseAddr(s)
		inside := slices.ContainsFunc(network.CIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(addr) })
		switch {
		case err != nil:
			return nil, err
		case !inside:
			return nil, fmt.Errorf("%s is outside of %s: write one inside", addr, ipfamily.Join(network.CIDRs))
		case slices.Contains(network.Gateways, addr):
			return nil, fmt.Errorf("%s is the gateway: write another one", addr)
		case !slices.Contains(list, addr):
			list = append(list, addr)
		}
	}
	return list, nil
}

// podLimits checks the limits of a subnet's pods.
func podLimits(l *kubeovnv1.PodLimits) *Problem {
	if l == nil {
		return nil
	}
	for _, limit := range []struct {
		field string
		bits  kubeovnv1.Bits
	}{{"ingressRate", l.IngressRate}, {"egressRate", l.EgressRate}, {"ingressBurst", l.IngressBurst}, {"egressBurst", l.EgressBurst}} {
		if _, err := limit.bits.Parse(); err != nil {
			return Problemf(ReasonFieldInvalid, "podLimits.%s: %q %v: write a number of bits such as 10M", limit.field, limit.bits, err)
		}
	}
	if l.IngressBurst != "" && l.IngressRate == "" || l.EgressBurst != "" && l.EgressRate == "" {
		return Problemf(ReasonFieldInvalid, "podLimits: a burst needs the rate of its direction: set ingressRate with ingressBurst, and egressRate with egressBurst")
	}
	return nil
}
