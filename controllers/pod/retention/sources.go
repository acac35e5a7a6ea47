// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/ippools"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// portClaims yields the allocations of ports. Ports of deleted pods count, because their addresses are in use until the ports are removed. A
// port is skipped if its pod's successor has published addresses: these have precedence.
func (s *restoration) portClaims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for _, c := range s.ports {
			pod := s.pods[c.owner]
			superseded := pod != nil && kubeovnv1.IsPublished(pod) && string(pod.UID) != c.uid
			if !superseded && !yield(c) {
				return
			}
		}
		for _, c := range s.nodePorts {
			if !yield(c) {
				return
			}
		}
		for _, t := range s.transits {
			allocation := ipam.Allocation{Subnet: kubeovnv1.JoinSubnet, Addresses: t.Addresses, MAC: t.MAC}
			if !yield(claim{port: translate.TransitPort(t.Vpc), allocation: allocation, from: "northbound port"}) {
				return
			}
		}
		for _, e := range s.egresses {
			mac := ipfamily.MAC(e.Addresses[0], 0)
			allocation := ipam.Allocation{Subnet: kubeovnv1.JoinSubnet, Addresses: e.Addresses, MAC: mac[:]}
			if !yield(claim{port: translate.EgressPort(e.Name), allocation: allocation, from: "northbound port"}) {
				return
			}
		}
	}
}

// podClaims yields the allocations in the annotations of pods without an allocation, so a normal restart parses no annotations. It skips allocations of
// the nodes' subnet, and of the addresses of a Vip that the pod does not name: no pod can have them.
func (s *restoration) podClaims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for _, pod := range s.pods {
			if !allocations.OnPodNetwork(pod) || !kubeovnv1.IsPublished(pod) {
				continue
			}
			port := kubeovnv1.PortOf(pod, kubeovnv1.ProviderOVN)
			c, ok := s.annotated(port.Name, pod.Annotations)
			if !ok || allocations.OfNode(c.allocation) || s.ofAnotherVip(c.allocation, strings.TrimSpace(pod.Annotations[kubeovnv1.AnnotationVip.Key()])) {
				continue
			}
			if c.asked, c.owner = true, port.Key(); !yield(c) {
				return
			}
		}
	}
}

// nodeClaims returns the allocations in the annotations of nodes.
func (s *restoration) nodeClaims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for i := range s.nodes {
			c, ok := s.annotated(translate.NodePort(s.nodes[i].Name), s.nodes[i].Annotations)
			if ok && allocations.OfNode(c.allocation) && !yield(c) {
				return
			}
		}
	}
}

// querierClaims yields the source addresses of subnets' multicast group queries.
func (s *restoration) querierClaims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for i := range s.subnets.Items {
			subnet := &s.subnets.Items[i]
			address, err := ipfamily.ParseAddr(subnet.Status.McastQuerierIP)
			mac, macErr := net.ParseMAC(subnet.Status.McastQuerierMAC)
			if err != nil || macErr != nil {
				continue
			}
			allocation := ipam.Allocation{Subnet: subnet.Name, Addresses: []netip.Addr{address}, MAC: mac}
			if !yield(claim{port: translate.QuerierHolder(subnet.Name), allocation: allocation, from: "status"}) {
				return
			}
		}
	}
}

// interconnectionClaims yields the addresses of routers in interconnected underlay subnets.
func (s *restoration) interconnectionClaims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for i := range s.subnets.Items {
			subnet := &s.subnets.Items[i]
			addresses, err := ipfamily.ParseAddrs(subnet.Status.U2OInterconnectionIP)
			mac, macErr := net.ParseMAC(subnet.Status.U2OInterconnectionMAC)
			if err != nil || macErr != nil || len(addresses) == 0 {
				continue
			}
			allocation := ipam.Allocation{Subnet: subnet.Name, Addresses: addresses, MAC: mac}
			if !yield(claim{port: translate.InterconnectionHolder(subnet.Name), allocation: allocation, from: "status"}) {
				return
			}
		}
	}
}

// transitClaims yields the gateway router addresses in the status of VPCs. Their MAC addresses are the ones that the allocator derived.
func (s *restoration) transitClaims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for i := range s.vpcs.Items {
			vpc := &s.vpcs.Items[i]
			port := translate.TransitPort(vpc.Name)
			if vpc.Status.Transit == nil || s.held(port) {
				continue
			}
			allocation := ipam.Allocation{Subnet: kubeovnv1.JoinSubnet, Addresses: ipfamily.ValidAddrs(vpc.Status.Transit.Addresses...)}
			if len(allocation.Addresses) == 0 {
				continue
			}
			mac := ipfamily.MAC(allocation.Addresses[0], 0)
			allocation.MAC = mac[:]
			if !yield(claim{port: port, allocation: allocation, from: "status"}) {
				return
			}
		}
	}
}

// annotated returns the claim in annotations; false if there is none, or the port already has an allocation.
func (s *restoration) annotated(port string, annotations map[string]string) (claim, bool) {
	if s.held(port) {
		return claim{}, false
	}
	network, err := kubeovnv1.ParsePodNetwork(annotations)
	if err != nil || len(network.Addresses) == 0 {
		return claim{}, false
	}
	allocation := ipam.Allocation{Subnet: network.LogicalSwitch, Addresses: network.Addresses, MAC: network.MAC}
	return claim{port: port, allocation: allocation, from: "annotations"}, true
}

// ofAnotherVip reports whether an allocation contains an address of a Vip of its subnet, other than the Vip with the given name.
func (s *restoration) ofAnotherVip(allocation ipam.Allocation, name string) bool {
	for i := range s.vips.Items {
		vip := &s.vips.Items[i]
		if vip.Name != name && address.VipSubnet(vip) == allocation.Subnet &&
			slices.ContainsFunc(address.VipAddresses(vip), func(a netip.Addr) bool { return slices.Contains(allocation.Addresses, a) }) {
			return true
		}
	}
	return false
}

// setPools sets the pools of all subnets in the allocator.
func (s *restoration) setPools(list []kubeovnv1.IPPool) {
	bySubnet := map[string][]*kubeovnv1.IPPool{}
	for i := range list {
		bySubnet[list[i].Spec.Subnet] = append(bySubnet[list[i].Spec.Subnet], &list[i])
	}
	for i := range s.subnets.Items {
		subnet := &s.subnets.Items[i]
		pools := bySubnet[subnet.Name]
		if len(pools) == 0 {
			continue
		}
		ippools.Sort(pools)
		inForce, _ := ippools.Divide(subnet, pools)
		divided := make([]ipam.Pool, 0, len(inForce))
		for _, p := range inForce {
			divided = append(divided, ipam.Pool(p))
		}
		if err := s.allocator.SetPools(subnet.Name, divided); err != nil {
			s.log.Error(err, "cannot set addresses apart", "subnet", subnet.Name)
		}
	}
}
