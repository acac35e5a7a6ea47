// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Restore fills the allocator before any allocation. It restores allocations in use (see the function Restore), and then the allocations that IP
// objects retain for absent pods or for no pod. live reads from the API server, because the cache has no IP objects yet, except on a
// standby that takes over.
func (k *Keeper) Restore(ctx context.Context, live client.Reader) error {
	rules := claimRules{reader: k.Client, live: live, chooser: k.Addresses}
	if err := restore(ctx, k.Client, k.Northbound, k.Allocator, &rules); err != nil {
		return err
	}
	return k.restoreRetained(ctx, live)
}

// Restore fills an empty allocator with every address in use: from ports in the northbound database, then from annotations of pods and
// nodes. The first claim of an address wins; a later one is logged, and the reconciler of its port or pod resolves the conflict. Call it
// once the caches of pods, nodes and subnets have synced, and before any allocation.
//
// IP objects restore no allocation. They record allocations afterwards, so a pod with an IP object, but with neither a port nor annotations, uses
// no address (docs/decisions/2026-11-21-start.md). They only prove claims, see claimRules.
func Restore(ctx context.Context, reader client.Reader, engine *northbound.Engine, allocator *ipam.Allocator) error {
	return restore(ctx, reader, engine, allocator, nil)
}

// restore is Restore with rules for the claims of pods; nil allows all of them.
func restore(ctx context.Context, reader client.Reader, engine *northbound.Engine, allocator *ipam.Allocator, rules *claimRules) error {
	s := restoration{allocator: allocator, log: log.FromContext(ctx), unusable: map[string]bool{}}
	if err := s.read(ctx, reader); err != nil {
		return err
	}
	s.readPorts(engine)
	s.setSubnets()
	s.setPools(s.pools.Items)
	s.keepAll(s.portClaims())
	pods, err := s.granted(ctx, s.podClaims(), rules)
	if err != nil {
		return err
	}
	s.keepAll(slices.Values(pods))
	nodes, err := s.provenFirst(ctx, s.nodeClaims(), rules)
	if err != nil {
		return err
	}
	s.keepAll(slices.Values(nodes))
	s.keepAll(s.querierClaims())
	s.keepAll(s.interconnectionClaims())
	s.keepAll(s.transitClaims())
	return nil
}

// claim is an allocation that existed before the start, and its source.
type claim struct {
	port       string
	owner      types.NamespacedName // of the port; empty unless it is a pod's
	uid        string               // of the pod that the port was made for
	allocation ipam.Allocation
	from       string
	// asked applies the rules of a pod's own request to the claim: the gateway's address and addresses outside the subnet are refused. A
	// user with write access to a pod's annotations could have forged such a claim.
	asked bool
}

type restoration struct {
	allocator *ipam.Allocator
	log       logr.Logger
	subnets   kubeovnv1.SubnetList
	pools     kubeovnv1.IPPoolList
	pods      map[types.NamespacedName]*corev1.Pod
	nodes     []corev1.Node
	ports     []claim // of pods
	nodePorts []claim
	transits  []translate.TransitAllocation
	egresses  []translate.EgressAllocation
	vpcs      kubeovnv1.VpcList
	vips      kubeovnv1.VipList
	eips      kubeovnv1.OvnEipList
	unusable  map[string]bool // subnets with unusable specs: claims in them cannot be checked
}

func (s *restoration) read(ctx context.Context, reader client.Reader) error {
	var pods corev1.PodList
	var nodes corev1.NodeList
	for _, list := range []client.ObjectList{&s.subnets, &s.pools, &s.vpcs, &s.vips, &s.eips, &pods, &nodes} {
		if err := reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	s.pods = make(map[types.NamespacedName]*corev1.Pod, len(pods.Items))
	for i := range pods.Items {
		s.pods[client.ObjectKeyFromObject(&pods.Items[i])] = &pods.Items[i]
	}
	s.nodes = nodes.Items
	return nil
}

// readPorts reads the allocations of the ports in the northbound database that pods and nodes own.
func (s *restoration) readPorts(engine *northbound.Engine) {
	for kind, claims := range map[string]*[]claim{translate.KindPod: &s.ports, translate.KindNode: &s.nodePorts} {
		northbound.Each(engine, kind, func(owner desired.Owner, row *nb.LogicalSwitchPort) {
			if p, ok := translate.ReadPortAllocation(row); ok {
				*claims = append(*claims, claim{
					port: p.Port, owner: types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}, uid: p.UID,
					allocation: ipam.Allocation{Subnet: p.Subnet, Addresses: p.Addresses, MAC: p.MAC}, from: "northbound port",
				})
			}
		})
	}
	northbound.Each(engine, translate.KindTransit, func(owner desired.Owner, row *nb.LogicalRouterPort) {
		if allocation, ok := translate.ReadTransitAllocation(owner, row); ok {
			s.transits = append(s.transits, allocation)
		}
	})
	northbound.Each(engine, translate.KindEgressAddress, func(owner desired.Owner, row *nb.LogicalRouterPort) {
		if allocation, ok := translate.ReadEgressAllocation(owner, row); ok {
			s.egresses = append(s.egresses, allocation)
		}
	})
}

func (s *restoration) keepAll(claims iter.Seq[claim]) {
	for c := range claims {
		s.keep(c)
	}
}

// keep restores a claim, unless its port already has an allocation.
func (s *restoration) keep(c claim) {
	if s.held(c.port) {
		return
	}
	if err := s.grant(c); err != nil {
		s.log.Error(err, "cannot restore an allocation", "port", c.port, "from", c.from)
		return
	}
	allocations.LogGiven(s.log, c.port, c.allocation, allocations.SourceRestored)
}

func (s *restoration) grant(c claim) error {
	if !c.asked || s.unusable[c.allocation.Subnet] {
		return s.allocator.Restore(c.port, c.allocation)
	}
	want := ipam.Request{Subnet: c.allocation.Subnet, Addresses: c.allocation.Addresses, MAC: c.allocation.MAC, AnyPool: true}
	for _, address := range c.allocation.Addresses {
		want.Families = append(want.Families, ipfamily.Of(address))
	}
	_, err := s.allocator.Allocate(c.port, want)
	return err
}

func (s *restoration) held(port string) bool {
	_, held := s.allocator.Lookup(port)
	return held
}

// setSubnets adds every subnet to the allocator. A subnet with an unusable spec gets a layout that covers its claims only, until its user
// corrects the spec.
func (s *restoration) setSubnets() {
	for i := range s.subnets.Items {
		subnet := &s.subnets.Items[i]
		if layout, err := layoutOf(subnet); err == nil && s.allocator.SetSubnet(subnet.Name, layout) == nil {
			continue
		}
		s.unusable[subnet.Name] = true
		_ = s.allocator.SetSubnet(subnet.Name, s.claimedLayout(subnet.Name)) // SetSubnet refuses a layout without claims: it is not needed
	}
}

// layoutOf returns the layout of a subnet's last valid spec, or of the current one if no spec was found valid yet.
func layoutOf(subnet *kubeovnv1.Subnet) (ipam.Subnet, error) {
	spec := k8s.Applied(subnet).Spec
	cidrs, err := ipfamily.ParseCIDRs(spec.CIDRBlock)
	if err != nil {
		return ipam.Subnet{}, err
	}
	gateways, err := ipfamily.ParseAddrs(spec.Gateway)
	if err != nil {
		return ipam.Subnet{}, err
	}
	exclude, err := ipfamily.ParseRanges(spec.ExcludeIPs)
	if err != nil {
		return ipam.Subnet{}, err
	}
	shared, err := ipfamily.ParseRanges(spec.Vips) // a pod never gets one of them as its own address
	if err != nil {
		return ipam.Subnet{}, err
	}
	return ipam.Subnet{CIDRs: cidrs, Gateways: gateways, Exclude: append(exclude, shared...), OwnPorts: translate.OwnPorts(spec.Vlan != "", len(shared))}, nil
}

// claimedLayout returns a layout with one claimed address of each family. Allocations outside of it are restored as well.
func (s *restoration) claimedLayout(subnet string) ipam.Subnet {
	var layout ipam.Subnet
	var has [2]bool
	for _, source := range []iter.Seq[claim]{s.portClaims(), s.podClaims(), s.nodeClaims(), s.querierClaims(), s.interconnectionClaims(), s.transitClaims()} {
		for c := range source {
			if c.allocation.Subnet != subnet {
				continue
			}
			for _, address := range c.allocation.Addresses {
				if family := ipfamily.Of(address); !has[family] {
					has[family] = true
					layout.CIDRs = append(layout.CIDRs, netip.PrefixFrom(address, address.BitLen()))
				}
			}
		}
	}
	return layout
}
