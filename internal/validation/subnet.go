// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"cmp"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Bounds of MTUs, in bytes (RFC 791, section 3.2; RFC 8200, section 5).
const (
	minIPv4MTU = 68
	minIPv6MTU = 1280
	maxMTU     = 65535
)

// Network has the addresses of a subnet, parsed from its spec. It converts to ipam.Subnet.
type Network struct {
	// CIDRs, one per family, in the order written.
	CIDRs []netip.Prefix
	// Gateways, one per CIDR, in the order of CIDRs. The default is the first address of the CIDR.
	Gateways []netip.Addr
	// Exclude may extend beyond CIDRs, where it has no effect.
	Exclude []ipfamily.Range
	// OwnPorts is the number of ports of the subnet's switch without an address of their own.
	OwnPorts int
}

// Contains reports whether an address is in one of the CIDRs.
func (n Network) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(n.CIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(a) })
}

// Assignable reports whether a port may have an address: it is in one of the CIDRs, and no gateway.
func (n Network) Assignable(a netip.Addr) bool {
	return n.Contains(a) && !slices.Contains(n.Gateways, a)
}

// Subnet checks a subnet without its surroundings and parses its addresses. The Network of a subnet without a cidrBlock is
// empty; only an underlay network may omit it.
func Subnet(name string, spec *kubeovnv1.SubnetSpec) (Network, *Problem) {
	if p := subnetFields(name, spec); p != nil {
		return Network{}, p
	}
	var n Network
	var p *Problem
	if n.CIDRs, p = subnetCIDRs(spec); p != nil {
		return Network{}, p
	}
	if n.Gateways, p = gateways(spec.Gateway, n.CIDRs); p != nil {
		return Network{}, p
	}
	var err error
	if n.Exclude, err = ipfamily.ParseRanges(spec.ExcludeIPs); err != nil {
		return Network{}, Problemf(ReasonExcludeInvalid, "excludeIps: %v: write addresses, or ranges like 10.16.0.10..10.16.0.20", err)
	}
	if p = egress(spec, n.CIDRs); p != nil {
		return Network{}, p
	}
	if p = mtu(spec.MTU, n.CIDRs); p != nil {
		return Network{}, p
	}
	return n, nil
}

// mtu checks the MTU of pods; 0 means the cluster's default.
func mtu(bytes uint32, cidrs []netip.Prefix) *Problem {
	ipv6 := slices.ContainsFunc(cidrs, func(cidr netip.Prefix) bool { return cidr.Addr().Is6() })
	switch {
	case bytes == 0:
	case ipv6 && bytes < minIPv6MTU:
		return Problemf(ReasonFieldInvalid, "mtu %d is too small for IPv6: make it %d or more, or leave it out", bytes, minIPv6MTU)
	case bytes < minIPv4MTU || bytes > maxMTU:
		return Problemf(ReasonFieldInvalid, "mtu %d: must be from %d to %d; leave it out for the cluster's", bytes, minIPv4MTU, maxMTU)
	}
	return nil
}

func subnetFields(name string, spec *kubeovnv1.SubnetSpec) *Problem {
	if spec.Default && name != kubeovnv1.DefaultSubnet {
		return Problemf(ReasonFieldInvalid, "default is true: only subnet %s can be the default one; set it to false", kubeovnv1.DefaultSubnet)
	}
	if spec.Vpc == name {
		return Problemf(ReasonNameConflict, "subnet %s has the name of its VPC, and a switch and a router cannot share one: rename it", name)
	}
	if spec.Vlan != "" && name == kubeovnv1.JoinSubnet {
		return Problemf(ReasonFieldInvalid, "vlan: subnet %s connects the nodes with the overlay: remove it, and create another subnet", name)
	}
	if spec.LogicalGateway && spec.U2OInterconnection {
		return Problemf(ReasonFieldInvalid, "logicalGateway and u2oInterconnection: with a logical gateway the subnet is connected already: set one of them")
	}
	switch spec.GatewayType {
	case "", kubeovnv1.GatewayDistributed, kubeovnv1.GatewayCentralized:
	default:
		return Problemf(ReasonFieldInvalid, "gatewayType %q: must be %s or %s", spec.GatewayType, kubeovnv1.GatewayDistributed, kubeovnv1.GatewayCentralized)
	}
	for _, selectors := range []struct {
		field string
		list  []metav1.LabelSelector
	}{{"namespaceSelectors", spec.NamespaceSelectors}, {"gatewayNodeSelectors", spec.GatewayNodeSelectors}} {
		for i := range selectors.list {
			if _, err := metav1.LabelSelectorAsSelector(&selectors.list[i]); err != nil {
				return Problemf(ReasonFieldInvalid, "%s[%d]: %v", selectors.field, i, err)
			}
		}
	}
	return nil
}

func subnetCIDRs(spec *kubeovnv1.SubnetSpec) ([]netip.Prefix, *Problem) {
	cidrs, err := ipfamily.ParseCIDRs(spec.CIDRBlock)
	if err != nil {
		return nil, Problemf(ReasonCIDRInvalid, "cidrBlock: %v: write one CIDR, or one of each family with a comma between them", err)
	}
	if len(cidrs) == 0 && spec.Vlan == "" && cmp.Or(spec.Provider, kubeovnv1.ProviderOVN) == kubeovnv1.ProviderOVN {
		return nil, Problemf(ReasonCIDRInvalid, "cidrBlock is empty: write one CIDR, or one of each family with a comma between them")
	}
	for _, cidr := range cidrs {
		if special, ok := overlapping(cidr, notForPods); ok {
			return nil, Problemf(ReasonCIDRInvalid, "cidrBlock %s holds addresses of %s, which no port can have: choose another one", cidr, special)
		}
	}
	return cidrs, nil
}

// notForPods are the ranges that are not global unicast (this network, loopback, link-local, multicast and limited broadcast),
// and IPv4-mapped IPv6, which is written like IPv4 (RFC 6890, RFC 4291).
var notForPods = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::/127"),
	netip.MustParsePrefix("::ffff:0:0/96"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

func overlapping(cidr netip.Prefix, list []netip.Prefix) (netip.Prefix, bool) {
	i := slices.IndexFunc(list, cidr.Overlaps)
	if i < 0 {
		return netip.Prefix{}, false
	}
	return list[i], true
}

// gateways returns one gateway per CIDR.
func gateways(written string, cidrs []netip.Prefix) ([]netip.Addr, *Problem) {
	given, err := ipfamily.ParseAddrs(written)
	if err != nil {
		return nil, Problemf(ReasonGatewayInvalid, "gateway: %v: write one address of each CIDR, with a comma between them, or leave it out", err)
	}
	out := make([]netip.Addr, 0, len(cidrs))
	for _, cidr := range cidrs {
		i := slices.IndexFunc(given, func(a netip.Addr) bool { return a.BitLen() == cidr.Addr().BitLen() })
		if i < 0 {
			out = append(out, firstAddress(cidr))
			continue
		}
		if !cidr.Contains(given[i]) {
			return nil, Problemf(ReasonGatewayInvalid, "gateway %s is outside of %s: write an address inside, or leave it out", given[i], cidr)
		}
		if reserved(given[i], cidr) {
			return nil, Problemf(ReasonGatewayInvalid, "gateway %s is the network, broadcast or anycast address of %s: write another one, or leave it out", given[i], cidr)
		}
		out = append(out, given[i])
		given = slices.Delete(slices.Clone(given), i, i+1)
	}
	if len(cidrs) > 0 && len(given) > 0 {
		return nil, Problemf(ReasonGatewayInvalid, "gateway %s is of a family that cidrBlock %s does not have: leave it out", given[0], ipfamily.Join(cidrs))
	}
	return out, nil
}

// firstAddress returns the first address of a CIDR that a host can have: the default gateway.
func firstAddress(cidr netip.Prefix) netip.Addr {
	first := cidr.Masked().Addr()
	if reserved(first, cidr) {
		return first.Next()
	}
	return first
}

// reserved reports whether the address is the network or broadcast address (IPv4), or the subnet-router anycast address (IPv6).
// CIDRs of one and two addresses have none (RFC 3021, RFC 6164).
func reserved(addr netip.Addr, cidr netip.Prefix) bool {
	if cidr.Addr().BitLen()-cidr.Bits() < 2 {
		return false
	}
	return addr == cidr.Masked().Addr() || addr.Is4() && addr == ipfamily.LastAddr(cidr)
}
