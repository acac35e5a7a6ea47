// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Restore fills an empty allocator with every address in use: what ports in the northbound database hold, then what pods and nodes
// were told, then what IP objects record. The first of them that names an address has it; the port or pod that comes too late is logged,
// and its reconciler finds out what to do. Call it once the cache has synced, and before anything is allocated.
func Restore(ctx context.Context, reader client.Reader, engine *northbound.Engine, allocator *ipam.Allocator) error {
	s := restoration{reader: reader, allocator: allocator}
	if err := s.read(ctx); err != nil {
		return err
	}
	claims := [][]claim{
		s.portClaims(portLeases(engine, translate.KindPod)), nodePortClaims(portLeases(engine, translate.KindNode)),
		s.podClaims(), s.nodeClaims(), s.recordClaims(),
	}
	s.setSubnets(claims)
	logger := log.FromContext(ctx)
	for _, source := range claims {
		for _, c := range source {
			if _, held := allocator.Lookup(c.port); held {
				continue
			}
			if err := allocator.Restore(c.port, c.lease); err != nil {
				logger.Error(err, "cannot keep a lease from before the start", "port", c.port, "from", c.from)
			}
		}
	}
	return nil
}

// claim is a lease from before the start, and where it was found.
type claim struct {
	port  string
	lease ipam.Lease
	from  string
}

type restoration struct {
	reader    client.Reader
	allocator *ipam.Allocator
	subnets   kubeovnv1.SubnetList
	ips       kubeovnv1.IPList
	pods      map[types.NamespacedName]*corev1.Pod
	nodes     map[string]*corev1.Node
}

func (s *restoration) read(ctx context.Context) error {
	var pods corev1.PodList
	var nodes corev1.NodeList
	for _, list := range []client.ObjectList{&s.subnets, &s.ips, &pods, &nodes} {
		if err := s.reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	s.pods = make(map[types.NamespacedName]*corev1.Pod, len(pods.Items))
	for i := range pods.Items {
		s.pods[client.ObjectKeyFromObject(&pods.Items[i])] = &pods.Items[i]
	}
	s.nodes = make(map[string]*corev1.Node, len(nodes.Items))
	for i := range nodes.Items {
		s.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	return nil
}

// portLeases are the leases of the ports in the northbound database that pods or nodes own.
func portLeases(engine *northbound.Engine, kind string) []translate.PortLease {
	var leases []translate.PortLease
	for _, rows := range northbound.List[nb.LogicalSwitchPort](engine, kind) {
		for _, row := range rows {
			if lease, ok := translate.ReadPortLease(row); ok {
				leases = append(leases, lease)
			}
		}
	}
	return leases
}

// portClaims are what ports of pods hold, those of pods that are gone included: their addresses are in use until the ports are not
// there. Left out are ports of a predecessor whose successor was already told an address: that one counts.
func (s *restoration) portClaims(ports []translate.PortLease) []claim {
	var claims []claim
	for _, p := range ports {
		namespace, name, _ := translate.PodOfPort(p.Port)
		pod := s.pods[types.NamespacedName{Namespace: namespace, Name: name}]
		if pod != nil && publishedFor(pod) && string(pod.UID) != p.UID {
			continue
		}
		claims = append(claims, claimOf(p))
	}
	return claims
}

// nodePortClaims are what ports of nodes hold.
func nodePortClaims(ports []translate.PortLease) []claim {
	var claims []claim
	for _, p := range ports {
		claims = append(claims, claimOf(p))
	}
	return claims
}

func claimOf(p translate.PortLease) claim {
	return claim{p.Port, ipam.Lease{Subnet: p.Subnet, Addresses: p.Addresses, MAC: p.MAC}, "northbound port"}
}

// podClaims are what pods were told.
func (s *restoration) podClaims() []claim {
	var claims []claim
	for key, pod := range s.pods {
		if !onPodNetwork(pod) || !publishedFor(pod) {
			continue
		}
		claims = appendAnnotated(claims, translate.PodPort(key.Namespace, key.Name), pod.Annotations)
	}
	return claims
}

// nodeClaims are what nodes were told.
func (s *restoration) nodeClaims() []claim {
	var claims []claim
	for name, node := range s.nodes {
		claims = appendAnnotated(claims, translate.NodePort(name), node.Annotations)
	}
	return claims
}

func appendAnnotated(claims []claim, port string, annotations map[string]string) []claim {
	network, err := kubeovnv1.ParsePodNetwork(annotations)
	if err != nil || len(network.Addresses) == 0 {
		return claims
	}
	lease := ipam.Lease{Subnet: network.LogicalSwitch, Addresses: network.Addresses, MAC: network.MAC}
	return append(claims, claim{port, lease, "annotations"})
}

// recordClaims are what IP objects record of pods and nodes that need their addresses still.
func (s *restoration) recordClaims() []claim {
	var claims []claim
	for i := range s.ips.Items {
		ip := &s.ips.Items[i]
		if !s.needed(ip) {
			continue
		}
		addresses, err := ipfamily.ParseAddrs(ip.Spec.IPAddress)
		if err != nil || len(addresses) == 0 {
			continue
		}
		mac, err := net.ParseMAC(ip.Spec.MACAddress)
		if err != nil {
			mac = nil
		}
		claims = append(claims, claim{ip.Name, ipam.Lease{Subnet: ip.Spec.Subnet, Addresses: addresses, MAC: mac}, "IP object"})
	}
	return claims
}

// needed reports whether an IP object is of a node, or of a pod on the pod network, that exists.
func (s *restoration) needed(ip *kubeovnv1.IP) bool {
	if ip.Name == translate.NodePort(ip.Spec.NodeName) {
		return s.nodes[ip.Spec.NodeName] != nil
	}
	key := types.NamespacedName{Namespace: ip.Spec.Namespace, Name: ip.Spec.PodName}
	pod := s.pods[key]
	return pod != nil && onPodNetwork(pod) && ip.Name == translate.PodPort(key.Namespace, key.Name)
}

// setSubnets makes every subnet known. One whose spec cannot be read, until its user mends it, has just what is claimed of it.
func (s *restoration) setSubnets(claims [][]claim) {
	for i := range s.subnets.Items {
		subnet := &s.subnets.Items[i]
		if layout, err := layoutOf(subnet); err == nil && s.allocator.SetSubnet(subnet.Name, layout) == nil {
			continue
		}
		_ = s.allocator.SetSubnet(subnet.Name, claimedLayout(subnet.Name, claims)) // refused when nothing is claimed: then it is not needed
	}
}

func layoutOf(subnet *kubeovnv1.Subnet) (ipam.Subnet, error) {
	cidrs, err := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
	if err != nil {
		return ipam.Subnet{}, err
	}
	gateways, err := ipfamily.ParseAddrs(subnet.Spec.Gateway)
	if err != nil {
		return ipam.Subnet{}, err
	}
	exclude, err := ipfamily.ParseRanges(subnet.Spec.ExcludeIPs)
	if err != nil {
		return ipam.Subnet{}, err
	}
	return ipam.Subnet{CIDRs: cidrs, Gateways: gateways, Exclude: exclude}, nil
}

// claimedLayout holds one claimed address of each family. Leases outside of it are restored all the same.
func claimedLayout(subnet string, claims [][]claim) ipam.Subnet {
	var layout ipam.Subnet
	var has [2]bool
	for _, source := range claims {
		for _, c := range source {
			if c.lease.Subnet != subnet {
				continue
			}
			for _, address := range c.lease.Addresses {
				if family := ipfamily.Of(address); !has[family] {
					has[family] = true
					layout.CIDRs = append(layout.CIDRs, netip.PrefixFrom(address, address.BitLen()))
				}
			}
		}
	}
	return layout
}

// holder is the UID of the pod that the lease of that name was made for, by this process or by one before it.
func (r *Reconciler) holder(key types.NamespacedName) types.UID {
	r.adopt.Do(func() {
		for _, p := range portLeases(r.Northbound, translate.KindPod) {
			if namespace, name, ok := translate.PodOfPort(p.Port); ok {
				r.ledger.adopt(types.NamespacedName{Namespace: namespace, Name: name}, types.UID(p.UID))
			}
		}
	})
	return r.ledger.holder(key)
}
