// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/svc"

	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/agent/sandbox"
)

// resolverConfig lists the DNS resolvers of the node: the kubelet copies its own list to a pod with dnsPolicy Default, such as the
// agent's.
const resolverConfig = "/etc/resolv.conf"

// apiServer is the Service of the API server, in the namespace default.
const apiServer = "kubernetes"

// reserved holds the addresses that the node must reach elsewhere than in a pod, each with a description.
type reserved struct {
	addresses map[netip.Addr]string
	networks  map[netip.Prefix]string
	// chosen are the external IPs and load balancer addresses of Services, and the addresses of other nodes. Users and kubelets choose them, so they
	// are reserved only against pods without routes: otherwise a Service or a node could stop the probes of a running pod.
	chosen map[netip.Addr]string
}

func (r *reserved) add(addresses []netip.Addr, description string) {
	for _, a := range addresses {
		r.addresses[a] = description
	}
}

// against returns the description of a reserved address; "" if the address is not reserved against the pod. connected means that the pod
// has routes to the address already.
func (r *reserved) against(address netip.Addr, connected bool) string {
	if description := r.addresses[address]; description != "" {
		return description
	}
	if description := r.chosen[address]; description != "" && !connected {
		return description
	}
	var found []string // sorted, so that the description of an address in several networks does not change
	for network, description := range r.networks {
		if network.Contains(address) {
			found = append(found, description)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return slices.Min(found)
}

// reserved reads the reserved addresses from caches and from the kernel.
func (p *Controller) reserved(ctx context.Context) (*reserved, error) {
	r := &reserved{addresses: map[netip.Addr]string{}, networks: map[netip.Prefix]string{}, chosen: map[netip.Addr]string{}}
	for _, read := range []func(context.Context, *reserved) error{p.readServices, p.readNodes, p.readAPIServer} {
		if err := read(ctx, r); err != nil {
			return nil, err
		}
	}
	if content, err := os.ReadFile(resolverConfig); err == nil {
		r.add(resolversIn(string(content)), "a DNS resolver of the node")
	}
	return r, readConnected(r)
}

func (p *Controller) readServices(ctx context.Context, r *reserved) error {
	cidrs, err := p.Services.List(ctx)
	if err != nil {
		return err
	}
	for _, cidr := range cidrs {
		r.networks[cidr] = fmt.Sprintf("in %s, a CIDR of Services", cidr)
	}
	var list corev1.ServiceList
	if err := p.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	for i := range list.Items {
		s := &list.Items[i]
		r.add(svc.ClusterIPs(s), fmt.Sprintf("an address of Service %s/%s", s.Namespace, s.Name))
		for _, address := range externalAddresses(s) {
			r.chosen[address] = fmt.Sprintf("an external address of Service %s/%s", s.Namespace, s.Name)
		}
	}
	return nil
}

// readNodes reads the addresses of nodes from the IP objects of their ports, the only ones in the cache. A Node object would change with
// every status update.
func (p *Controller) readNodes(ctx context.Context, r *reserved) error {
	var list v1.IPList
	if err := p.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list IP objects of nodes: %w", err)
	}
	for i := range list.Items {
		ip := &list.Items[i]
		for _, address := range k8s.AddressesOfNode(ip) {
			if description := "an address of node " + k8s.NodeOf(ip); k8s.NodeOf(ip) == p.Node {
				r.addresses[address] = description
			} else {
				r.chosen[address] = description
			}
		}
	}
	return nil
}

func (p *Controller) readAPIServer(ctx context.Context, r *reserved) error {
	const description = "an address of the API server"
	if address, err := netip.ParseAddr(p.APIServer); err == nil {
		r.add([]netip.Addr{address.Unmap()}, description)
	}
	var list discoveryv1.EndpointSliceList
	err := p.Client.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault),
		client.MatchingLabels{discoveryv1.LabelServiceName: apiServer}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("list endpoints of the API server: %w", err)
	}
	for i := range list.Items {
		r.add(apiServerAddresses(&list.Items[i]), description)
	}
	return nil
}

// readConnected reads the networks that are directly connected to the node, other than by Kiln's interfaces.
func readConnected(r *reserved) error {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	routes, err := netlinksafe.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for i := range routes {
		if !host.IsConnected(&routes[i]) {
			continue
		}
		link, err := netlink.LinkByIndex(routes[i].LinkIndex)
		if err != nil {
			continue // the link was deleted, and its routes too
		}
		name := link.Attrs().Name
		if name == host.JoinInterface || sandbox.Named(name) {
			continue
		}
		if network, err := netip.ParsePrefix(routes[i].Dst.String()); err == nil {
			r.networks[network] = fmt.Sprintf("in %s, a network connected to the node by interface %s", network, name)
		}
	}
	return nil
}

// resolversIn returns the addresses of name servers in a resolv.conf(5).
func resolversIn(content string) []netip.Addr {
	var out []netip.Addr
	for line := range strings.Lines(content) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if address, err := netip.ParseAddr(fields[1]); err == nil {
			out = append(out, address.Unmap().WithZone(""))
		}
	}
	return out
}

// serviceAddresses returns every address of a Service.
func serviceAddresses(s *corev1.Service) []netip.Addr {
	return append(svc.ClusterIPs(s), externalAddresses(s)...)
}

// externalAddresses returns the external IPs of a Service and the addresses of its load balancer, also if Kiln does not serve that one.
func externalAddresses(s *corev1.Service) []netip.Addr {
	out := parse(s.Spec.ExternalIPs...)
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		out = append(out, parse(ingress.IP)...)
	}
	return out
}

// apiServerAddresses returns the addresses of an EndpointSlice of the API server; nil for other EndpointSlices.
func apiServerAddresses(s *discoveryv1.EndpointSlice) []netip.Addr {
	if s.Namespace != metav1.NamespaceDefault || s.Labels[discoveryv1.LabelServiceName] != apiServer {
		return nil
	}
	var out []netip.Addr
	for _, e := range s.Endpoints {
		out = append(out, parse(e.Addresses...)...)
	}
	return out
}

func parse(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			out = append(out, address.Unmap())
		}
	}
	return out
}
