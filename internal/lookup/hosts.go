// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
)

// serviceOfAPIServer is the API server's own Service in the namespace `default`.
const serviceOfAPIServer = "kubernetes"

// HostAPIServer is the description of the API server, also if a node has its address.
const HostAPIServer = "the API server"

// HostsIn returns the addresses in the prefixes that nodes must keep reaching through their own network. The value is the host:
// a node or the API server.
func (n *Networks) HostsIn(ctx context.Context, prefixes []netip.Prefix) (map[netip.Addr]string, error) {
	inside := func(addr netip.Addr) bool {
		return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	found := map[netip.Addr]string{}
	for _, key := range keysAround("", prefixes) {
		var list kubeovnv1.IPList
		if err := n.reader.List(ctx, &list, client.MatchingFields{indexAddresses: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list IP objects of nodes by address: %w", err)
		}
		for i := range list.Items {
			for _, addr := range k8s.AddressesOfNode(&list.Items[i]) {
				if inside(addr) {
					found[addr] = "node " + k8s.NodeOf(&list.Items[i])
				}
			}
		}
	}
	addresses, err := n.APIServers(ctx)
	if err != nil {
		return nil, err
	}
	for _, addr := range addresses {
		if inside(addr) {
			found[addr] = HostAPIServer
		}
	}
	return found, nil
}

// ReservedIn returns HostsIn with the addresses of EgressAddresses on nodes: no pod and no other object gets one.
func (n *Networks) ReservedIn(ctx context.Context, prefixes []netip.Prefix) (map[netip.Addr]string, error) {
	found, err := n.HostsIn(ctx, prefixes)
	if err != nil {
		return nil, err
	}
	list, err := n.EgressIn(ctx, prefixes)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		for _, addr := range k8s.AddressesOfEgress(e) {
			if found[addr] == "" && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) {
				found[addr] = "EgressAddress " + e.Name
			}
		}
	}
	return found, nil
}

// EgressIn returns the EgressAddresses with addresses on nodes in the prefixes. They belong to the cache and must not be changed.
func (n *Networks) EgressIn(ctx context.Context, prefixes []netip.Prefix) ([]*kubeovnv1.EgressAddress, error) {
	var found []*kubeovnv1.EgressAddress
	for _, key := range keysAround("", prefixes) {
		var list kubeovnv1.EgressAddressList
		if err := n.reader.List(ctx, &list, client.MatchingFields{indexAddresses: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list EgressAddresses by address: %w", err)
		}
		for i := range list.Items {
			inside := slices.ContainsFunc(k8s.AddressesOfEgress(&list.Items[i]), func(a netip.Addr) bool {
				return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
			})
			if inside {
				found = append(found, &list.Items[i])
			}
		}
	}
	return found, nil
}

// TranslatesTo returns the name of a subnet whose gateway nodes translate to an address, by its last valid spec; empty if there is none.
func (n *Networks) TranslatesTo(ctx context.Context, address netip.Addr) (string, error) {
	var list kubeovnv1.SubnetList
	if err := n.reader.List(ctx, &list, client.MatchingFields{indexSource: address.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list subnets by the addresses of their gateways: %w", err)
	}
	first := ""
	for i := range list.Items {
		if name := list.Items[i].Name; first == "" || name < first {
			first = name
		}
	}
	return first, nil
}

// Sources returns the addresses to which gateway nodes translate packets of a subnet, by its last valid spec.
func Sources(s *kubeovnv1.Subnet) []netip.Addr {
	valid := k8s.WithValidSpec(s)
	if valid == nil || !gateway.Centralized(valid) || !valid.Spec.NATOutgoing {
		return nil
	}
	spec, _ := gateway.Parse(&valid.Spec) // a valid spec has no error
	var addresses []netip.Addr
	for _, node := range spec.Nodes {
		addresses = append(addresses, node.EgressIPs...)
	}
	return addresses
}

func sourcesOf(o client.Object) []string {
	var texts []string
	for _, address := range Sources(o.(*kubeovnv1.Subnet)) {
		texts = append(texts, address.String())
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

func egressAddresses(o client.Object) []string {
	return keysOf("", ipfamily.Hosts(k8s.AddressesOfEgress(o.(*kubeovnv1.EgressAddress))))
}

// APIServers returns the addresses of the API servers, which are the endpoints of their Service.
func (n *Networks) APIServers(ctx context.Context) ([]netip.Addr, error) {
	var list discoveryv1.EndpointSliceList
	if err := n.reader.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault),
		client.MatchingLabels{discoveryv1.LabelServiceName: serviceOfAPIServer}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list endpoints of the API server: %w", err)
	}
	var addresses []netip.Addr
	for i := range list.Items {
		addresses = append(addresses, EndpointAddresses(&list.Items[i])...)
	}
	return addresses, nil
}

// IsOfAPIServer reports whether an EndpointSlice has addresses of the API server.
func IsOfAPIServer(slice client.Object) bool {
	return slice.GetNamespace() == metav1.NamespaceDefault && slice.GetLabels()[discoveryv1.LabelServiceName] == serviceOfAPIServer
}

// EndpointAddresses returns the IP addresses in an EndpointSlice. Host names are skipped.
func EndpointAddresses(slice *discoveryv1.EndpointSlice) []netip.Addr {
	var addrs []netip.Addr
	for _, endpoint := range slice.Endpoints {
		addrs = append(addrs, ipfamily.ValidAddrs(endpoint.Addresses...)...)
	}
	return addrs
}
