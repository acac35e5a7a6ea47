// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/leases"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// portClaims yields the leases of ports. Ports of deleted pods count, because their addresses are in use until the ports are removed. A
// port is skipped if its pod's successor has published addresses: these have precedence.
func (s *restoration) portClaims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for _, p := range s.ports {
			namespace, name, _ := translate.PodOfPort(p.Port)
			pod := s.pods[types.NamespacedName{Namespace: namespace, Name: name}]
			superseded := pod != nil && kubeovnv1.IsPublished(pod) && string(pod.UID) != p.UID
			if !superseded && !yield(claimOf(p)) {
				return
			}
		}
		for _, p := range s.nodePorts {
			if !yield(claimOf(p)) {
				return
			}
		}
		for _, t := range s.vpcGateways {
			lease := ipam.Lease{Subnet: kubeovnv1.JoinSubnet, Addresses: t.Addresses, MAC: t.MAC}
			if !yield(claim{port: translate.VpcGatewayPort(t.Vpc), lease: lease, from: "northbound port"}) {
				return
			}
		}
	}
}

func claimOf(p translate.PortLease) claim {
	return claim{port: p.Port, lease: ipam.Lease{Subnet: p.Subnet, Addresses: p.Addresses, MAC: p.MAC}, from: "northbound port"}
}

// podClaims yields the leases in the annotations of pods without a lease, so a normal restart parses no annotations. It skips leases of
// the nodes' subnet, and of the addresses of a Vip that the pod does not name: no pod can have them.
func (s *restoration) podClaims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for key, pod := range s.pods {
			if !onPodNetwork(pod) || !kubeovnv1.IsPublished(pod) {
				continue
			}
			c, ok := s.annotated(translate.PodPort(key.Namespace, kubeovnv1.PortOwner(pod)), pod.Annotations)
			if !ok || leases.OfNode(c.lease) || s.ofAnotherVip(c.lease, strings.TrimSpace(pod.Annotations[keyVip])) {
				continue
			}
			if c.asked = true; !yield(c) {
				return
			}
		}
	}
}

// nodeClaims returns the leases in the annotations of nodes.
func (s *restoration) nodeClaims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for i := range s.nodes {
			c, ok := s.annotated(translate.NodePort(s.nodes[i].Name), s.nodes[i].Annotations)
			if ok && leases.OfNode(c.lease) && !yield(c) {
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
			lease := ipam.Lease{Subnet: subnet.Name, Addresses: []netip.Addr{address}, MAC: mac}
			if !yield(claim{port: translate.QuerierHolder(subnet.Name), lease: lease, from: "status"}) {
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
			lease := ipam.Lease{Subnet: subnet.Name, Addresses: addresses, MAC: mac}
			if !yield(claim{port: translate.InterconnectionHolder(subnet.Name), lease: lease, from: "status"}) {
				return
			}
		}
	}
}

// vpcGatewayClaims yields the gateway router addresses in the status of VPCs. Their MAC addresses are the ones that the allocator derived.
func (s *restoration) vpcGatewayClaims() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for i := range s.vpcs.Items {
			vpc := &s.vpcs.Items[i]
			port := translate.VpcGatewayPort(vpc.Name)
			if vpc.Status.Transit == nil || s.held(port) {
				continue
			}
			lease := ipam.Lease{Subnet: kubeovnv1.JoinSubnet, Addresses: ipfamily.ValidAddrs(vpc.Status.Transit.Addresses...)}
			if len(lease.Addresses) == 0 {
				continue
			}
			mac := ipfamily.MAC(lease.Addresses[0], 0)
			lease.MAC = mac[:]
			if !yield(claim{port: port, lease: lease, from: "status"}) {
				return
			}
		}
	}
}

// annotated returns the claim in annotations; false if there is none, or the port already has a lease.
func (s *restoration) annotated(port string, annotations map[string]string) (claim, bool) {
	if s.held(port) {
		return claim{}, false
	}
	network, err := kubeovnv1.ParsePodNetwork(annotations)
	if err != nil || len(network.Addresses) == 0 {
		return claim{}, false
	}
	lease := ipam.Lease{Subnet: network.LogicalSwitch, Addresses: network.Addresses, MAC: network.MAC}
	return claim{port: port, lease: lease, from: "annotations"}, true
}

// ofAnotherVip reports whether a lease contains an address of a Vip of its subnet, other than the Vip with the given name.
func (s *restoration) ofAnotherVip(lease ipam.Lease, name string) bool {
	for i := range s.vips.Items {
		vip := &s.vips.Items[i]
		if vip.Name != name && vipSubnet(vip) == lease.Subnet &&
			slices.ContainsFunc(vipAddresses(vip), func(a netip.Addr) bool { return slices.Contains(lease.Addresses, a) }) {
			return true
		}
	}
	return false
}
