// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Indexes of the cache that Networks looks up.
const (
	// indexAddresses finds subnets, IP objects of nodes and EgressAddresses by the keys of keysOf for their addresses.
	indexAddresses = "lookup.addresses"
	// indexVpc finds subnets by their VPC, in their current and in their applied spec.
	indexVpc = "lookup.vpc"
	// indexVlan finds subnets by VlansOf.
	indexVlan = "lookup.vlan"
	// indexValidVpc finds subnets by the VPC in their last valid specs.
	indexValidVpc = "lookup.validVpc"
	// indexSource finds subnets by the addresses in gatewayNode of their last valid specs.
	indexSource = "lookup.source"
	// indexPortNames finds subnets and VPCs by the port names that they need.
	indexPortNames = "lookup.portNames"
	// indexPeers finds VPCs by their peers in the vpcPeerings of their current and their applied spec.
	indexPeers = "lookup.peers"
	// indexExternal finds VPCs by ExternalOf.
	indexExternal = "lookup.external"
	// indexDefaultSubnet finds VPCs by their defaultSubnet.
	indexDefaultSubnet = "lookup.defaultSubnet"
)

// Networks looks up in the cache which objects use an address or a port name. The cost of a lookup depends on the number of
// results, not on the number of subnets and nodes.
type Networks struct {
	ServiceClaims ServiceClaims

	reader client.Reader
}

// NewNetworks adds its indexes to the cache. Call it once per cache, before the cache starts.
func NewNetworks(ctx context.Context, indexer client.FieldIndexer, reader client.Reader) (*Networks, error) {
	for _, index := range []struct {
		object client.Object
		name   string
		keys   client.IndexerFunc
	}{
		{&kubeovnv1.Subnet{}, indexAddresses, subnetAddresses},
		{&kubeovnv1.Subnet{}, indexVpc, vpcsOf},
		{&kubeovnv1.Subnet{}, indexVlan, func(o client.Object) []string { return VlansOf(o.(*kubeovnv1.Subnet)) }},
		{&kubeovnv1.Subnet{}, indexValidVpc, validVpc},
		{&kubeovnv1.Subnet{}, indexSource, sourcesOf},
		{&kubeovnv1.Subnet{}, indexPortNames, subnetPortNames},
		{&kubeovnv1.Vpc{}, indexPortNames, vpcPortNames},
		{&kubeovnv1.Vpc{}, indexPeers, peersOf},
		{&kubeovnv1.Vpc{}, indexExternal, func(o client.Object) []string { return ExternalOf(o.(*kubeovnv1.Vpc)) }},
		{&kubeovnv1.Vpc{}, indexDefaultSubnet, func(o client.Object) []string { return []string{o.(*kubeovnv1.Vpc).Spec.DefaultSubnet} }},
		{&kubeovnv1.RouterLBRule{}, indexEip, func(o client.Object) []string { return EipsOf(o.(*kubeovnv1.RouterLBRule)) }},
		{&kubeovnv1.OvnEip{}, indexAbsent, AbsentNodes},
		{&kubeovnv1.OvnEip{}, indexEipAddress, AddressesOfEip},
		{&kubeovnv1.IP{}, indexAddresses, nodeAddresses},
		{&kubeovnv1.EgressAddress{}, indexAddresses, egressAddresses},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.keys); err != nil {
			return nil, fmt.Errorf("index %T by %s: %w", index.object, index.name, err)
		}
	}
	for _, kind := range kubeovnv1.NATKinds {
		if err := indexer.IndexField(ctx, kind.Object.(client.Object), indexInside, natKeys); err != nil {
			return nil, fmt.Errorf("index %s by %s: %w", kind.Kind, indexInside, err)
		}
	}
	return &Networks{reader: reader}, nil
}

// VpcOf returns the name of the VPC that a subnet belongs to.
func VpcOf(s *kubeovnv1.Subnet) string { return cmp.Or(s.Spec.Vpc, kubeovnv1.DefaultVpc) }

func vpcsOf(o client.Object) []string {
	s := o.(*kubeovnv1.Subnet)
	vpcs := []string{VpcOf(s), VpcOf(k8s.Applied(s))}
	return slices.Compact(vpcs)
}

// SubnetsOf returns the subnets whose current or applied spec names a VPC, unsorted. They belong to the cache and must not be changed.
func (n *Networks) SubnetsOf(ctx context.Context, vpc string) ([]kubeovnv1.Subnet, error) {
	var list kubeovnv1.SubnetList
	if err := n.reader.List(ctx, &list, client.MatchingFields{indexVpc: vpc}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list subnets of VPC %s: %w", vpc, err)
	}
	return list.Items, nil
}

// VlansOf returns the Vlans that a subnet uses: of its spec, and of its last valid spec, which stays applied while the current one is not valid.
func VlansOf(s *kubeovnv1.Subnet) []string {
	vlans := []string{s.Spec.Vlan}
	if s.Status.ValidatedSpec != nil {
		vlans = append(vlans, s.Status.ValidatedSpec.Vlan)
	}
	slices.Sort(vlans)
	return slices.DeleteFunc(slices.Compact(vlans), func(vlan string) bool { return vlan == "" })
}

// EipsOf returns the OvnEips that a RouterLBRule uses: of its spec, and of its last valid spec, which stays served while the current one is not valid.
func EipsOf(rule *kubeovnv1.RouterLBRule) []string {
	eips := []string{rule.Spec.OvnEip}
	if rule.Status.ValidatedSpec != nil {
		eips = append(eips, rule.Status.ValidatedSpec.OvnEip)
	}
	slices.Sort(eips)
	return slices.DeleteFunc(slices.Compact(eips), func(eip string) bool { return eip == "" })
}

// ViewRouterRule is the part of a RouterLBRule on which other users of its OvnEip depend.
func ViewRouterRule(rule *kubeovnv1.RouterLBRule) string {
	return fmt.Sprint(rule.Generation, EipsOf(rule))
}

// SubnetsOfVlan returns the subnets that use a Vlan, unsorted. They belong to the cache and must not be changed.
func (n *Networks) SubnetsOfVlan(ctx context.Context, vlan string) ([]kubeovnv1.Subnet, error) {
	var list kubeovnv1.SubnetList
	if err := n.reader.List(ctx, &list, client.MatchingFields{indexVlan: vlan}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list subnets of Vlan %s: %w", vlan, err)
	}
	return list.Items, nil
}

// ValidSubnetsOf returns the subnets whose last valid specs are of a VPC, with these specs, unsorted. They must not be changed.
func (n *Networks) ValidSubnetsOf(ctx context.Context, vpc string) ([]*kubeovnv1.Subnet, error) {
	var list kubeovnv1.SubnetList
	if err := n.reader.List(ctx, &list, client.MatchingFields{indexValidVpc: vpc}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list valid subnets of VPC %s: %w", vpc, err)
	}
	subnets := make([]*kubeovnv1.Subnet, 0, len(list.Items))
	for i := range list.Items {
		if valid := k8s.WithValidSpec(&list.Items[i]); valid != nil {
			subnets = append(subnets, valid)
		}
	}
	return subnets, nil
}

// SharedAmong returns the first of the addresses that is one of the vips in a subnet's spec; false if none is. Pods share these, and no object
// gets one as its own.
func SharedAmong(spec *kubeovnv1.SubnetSpec, addresses []netip.Addr) (netip.Addr, bool) {
	if len(addresses) == 0 {
		return netip.Addr{}, false
	}
	for _, written := range spec.Vips {
		if vip, err := ipfamily.ParseAddr(written); err == nil && slices.Contains(addresses, vip) {
			return vip, true
		}
	}
	return netip.Addr{}, false
}

func validVpc(o client.Object) []string {
	if valid := k8s.WithValidSpec(o.(*kubeovnv1.Subnet)); valid != nil {
		return []string{VpcOf(valid)}
	}
	return nil
}

// PeersOf returns the sorted names of the VPCs that list this one in their vpcPeerings.
func (n *Networks) PeersOf(ctx context.Context, vpc string) ([]string, error) {
	return n.vpcs(ctx, client.MatchingFields{indexPeers: vpc})
}

// VpcsWithDefault returns the sorted names of the VPCs whose defaultSubnet is this one.
func (n *Networks) VpcsWithDefault(ctx context.Context, subnet string) ([]string, error) {
	return n.vpcs(ctx, client.MatchingFields{indexDefaultSubnet: subnet})
}

func (n *Networks) vpcs(ctx context.Context, which client.MatchingFields) ([]string, error) {
	var list kubeovnv1.VpcList
	if err := n.reader.List(ctx, &list, which, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list VPCs: %w", err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	slices.Sort(names)
	return names, nil
}

func peersOf(o client.Object) []string {
	vpc := o.(*kubeovnv1.Vpc)
	var names []string
	for _, p := range slices.Concat(vpc.Spec.VpcPeerings, k8s.AppliedVpc(vpc).Spec.VpcPeerings) {
		names = append(names, p.RemoteVpc)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Overlapping returns the subnets of a VPC that share addresses with any of the prefixes in their current or in their applied spec, sorted by
// name.
func (n *Networks) Overlapping(ctx context.Context, vpc string, prefixes []netip.Prefix) ([]*kubeovnv1.Subnet, error) {
	found := map[string]*kubeovnv1.Subnet{}
	for _, key := range keysAround(vpc, prefixes) {
		var list kubeovnv1.SubnetList
		if err := n.reader.List(ctx, &list, client.MatchingFields{indexAddresses: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list subnets by address: %w", err)
		}
		for i := range list.Items {
			s := &list.Items[i]
			if slices.ContainsFunc(Specs(s), func(s *kubeovnv1.Subnet) bool { return VpcOf(s) == vpc && Overlaps(s, prefixes) }) {
				found[s.Name] = s
			}
		}
	}
	subnets := make([]*kubeovnv1.Subnet, 0, len(found))
	for _, s := range found {
		subnets = append(subnets, s)
	}
	slices.SortFunc(subnets, func(a, b *kubeovnv1.Subnet) int { return cmp.Compare(a.Name, b.Name) })
	return subnets, nil
}

// AppliedAt returns the subnets whose last valid specs are of a VPC and contain an address, with these specs, sorted by name. They must not be changed.
func (n *Networks) AppliedAt(ctx context.Context, vpc string, addr netip.Addr) ([]*kubeovnv1.Subnet, error) {
	host := ipfamily.Hosts([]netip.Addr{addr})
	subnets, err := n.Overlapping(ctx, vpc, host)
	if err != nil {
		return nil, err
	}
	var found []*kubeovnv1.Subnet
	for _, s := range subnets {
		if valid := k8s.WithValidSpec(s); valid != nil && VpcOf(valid) == vpc && Overlaps(valid, host) {
			found = append(found, valid)
		}
	}
	return found, nil
}

// Specs returns a subnet with its applied spec, and with its current one if that is another one. They share memory with s.
func Specs(s *kubeovnv1.Subnet) []*kubeovnv1.Subnet {
	if applied := k8s.Applied(s); applied != s {
		return []*kubeovnv1.Subnet{applied, s}
	}
	return []*kubeovnv1.Subnet{s}
}

// Overlaps reports whether a subnet shares addresses with any of the prefixes.
func Overlaps(s *kubeovnv1.Subnet, prefixes []netip.Prefix) bool {
	own, _ := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	return slices.ContainsFunc(own, func(a netip.Prefix) bool { return slices.ContainsFunc(prefixes, a.Overlaps) })
}

func subnetAddresses(o client.Object) []string {
	var keys []string
	for _, s := range Specs(o.(*kubeovnv1.Subnet)) {
		if cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock); err == nil { // else the subnet's condition reports the error
			keys = append(keys, keysOf(VpcOf(s), cidrs)...)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func nodeAddresses(o client.Object) []string {
	return keysOf("", ipfamily.Hosts(k8s.AddressesOfNode(o.(*kubeovnv1.IP))))
}

// The address space is divided into nested blocks; the prefix of a block is this many bits longer than the prefix of the
// enclosing block. A prefix belongs to the smallest block that contains it. Prefixes that overlap with it belong to an enclosing
// block, or to a block inside of it.
var steps = map[ipfamily.Family]int{ipfamily.IPv4: 4, ipfamily.IPv6: 8}

// keysOf returns the index keys of prefixes: "at" the block that each belongs to, and "in" that block and all enclosing ones.
func keysOf(scope string, prefixes []netip.Prefix) []string {
	var keys []string
	for _, p := range prefixes {
		keys = append(keys, blockKey("at", scope, p, smallestBlock(p)))
		for bits := smallestBlock(p); bits >= 0; bits -= steps[ipfamily.Of(p.Addr())] {
			keys = append(keys, blockKey("in", scope, p, bits))
		}
	}
	return keys
}

// keysAround returns the keys under which all prefixes are indexed that may overlap with the given ones.
func keysAround(scope string, prefixes []netip.Prefix) []string {
	var keys []string
	for _, p := range prefixes {
		step := steps[ipfamily.Of(p.Addr())]
		keys = append(keys, blockKey("in", scope, p, smallestBlock(p)))
		for bits := smallestBlock(p) - step; bits >= 0; bits -= step {
			keys = append(keys, blockKey("at", scope, p, bits))
		}
	}
	return keys
}

func smallestBlock(p netip.Prefix) int { return p.Bits() - p.Bits()%steps[ipfamily.Of(p.Addr())] }

func blockKey(relation, scope string, p netip.Prefix, bits int) string {
	return relation + " " + scope + " " + netip.PrefixFrom(p.Addr(), bits).Masked().String()
}

// Precedes reports whether a takes precedence over b in a conflict: it is older or, when both were created in the same second, first by name. A Vpc
// precedes a Subnet of the same name: without the Vpc, subnets in it could not work either.
func Precedes(a, b client.Object) bool {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time),
		cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.GetUID(), b.GetUID())) < 0
}

// rank orders kinds whose objects cannot have the same name.
func rank(o client.Object) int {
	if _, ok := o.(*kubeovnv1.Vpc); ok {
		return 0
	}
	return 1
}
