// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/endpoints"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// labelHeadless marks Services that have no load balancer.
const labelHeadless = corev1.IsHeadlessService

// HairpinSources are the client addresses that a pod sees when a Service sends its connection back to itself: one address per
// family, the same for all Services, so that policies can allow them.
var HairpinSources = []netip.Addr{netip.MustParseAddr("169.254.107.105"), netip.MustParseAddr("fd00:6b69:6c6e::1")}

// protocols lists the protocols that OVN can balance, with the keys of their rows.
var protocols = []struct {
	of  corev1.Protocol
	key string
}{
	{corev1.ProtocolTCP, nb.LoadBalancerProtocolTCP},
	{corev1.ProtocolUDP, nb.LoadBalancerProtocolUDP},
	{corev1.ProtocolSCTP, nb.LoadBalancerProtocolSCTP},
}

// ServiceInputs are the inputs of Service.
type ServiceInputs struct {
	Service *corev1.Service
	// Slices are the EndpointSlices of the Service, in any order.
	Slices []*discoveryv1.EndpointSlice
	// Vpc is the VPC whose pods can reach the Service.
	Vpc string
	// Before are the Service's load balancers in the database, for session affinity.
	Before []*nb.LoadBalancer
	// Taken are the Service's fronts that conflict with another Service of the VPC, or with another user of the OvnEip. They are skipped.
	Taken []Front
	// Eip is the OvnEip with these addresses, if the router of the VPC serves the Service to clients outside.
	Eip       string
	Addresses []netip.Addr
}

// Front is a virtual address and port of a Service.
type Front struct {
	Protocol corev1.Protocol
	Address  netip.AddrPort
}

// Service returns one load balancer per protocol of the Service, in the load balancer group of its VPC. Each pair of address
// and port is a VIP; a VIP without endpoints answers with a TCP reset or ICMP unreachable. Headless and ExternalName Services
// have no load balancer. The addresses of an OvnEip have load balancers of their own, which the router of the VPC has, too: with the ClusterIPs
// there, hosts of the external network could reach these.
//
// From inside the cluster an external address leads to all endpoints, whatever externalTrafficPolicy is. That field applies to
// clients outside the cluster, which the nodes serve, as they serve NodePorts.
func Service(in ServiceInputs) []desired.Row {
	if Unserved(in.Service, in.Vpc) {
		return nil
	}
	vips, index, taken := addresses(in), endpoints.ByPort(in.Slices), map[Front]bool{}
	for _, front := range in.Taken {
		taken[front] = true
	}
	vips = slices.DeleteFunc(vips, func(a netip.Addr) bool { return slices.Contains(in.Addresses, a) })
	sticky := in.Service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
	var rows []desired.Row
	for _, p := range protocols {
		before := backendsBefore(in.Before, p.key)
		backends := func(vips []netip.Addr) map[string]string {
			all := map[string]string{}
			for _, port := range in.Service.Spec.Ports {
				if cmp.Or(port.Protocol, corev1.ProtocolTCP) != p.of {
					continue
				}
				for _, vip := range vips {
					front := Front{Protocol: p.of, Address: netip.AddrPortFrom(vip, uint16(port.Port))} //nolint:gosec // the API server takes 1 to 65535
					if !taken[front] {
						all[front.Address.String()] = list(endpointsOf(index, vip, port.Name, p.of), sticky, before[front.Address.String()])
					}
				}
			}
			return all
		}
		name := in.Service.Namespace + "/" + in.Service.Name + "/"
		if inside := backends(vips); len(inside) > 0 {
			rows = append(rows, balancer(name+p.key, p.key, in.Vpc, inside, sticky))
		}
		if outside := backends(in.Addresses); len(outside) > 0 {
			row := balancer(name+prefixExternal+p.key, p.key, in.Vpc, outside, sticky)
			row.Key = prefixExternal + p.key
			row.Model.(*nb.LoadBalancer).ExternalIDs = map[string]string{idVpc: in.Vpc, idEip: in.Eip}
			row.Members = append(row.Members, desired.RouterLoadBalancers(RouterRef(in.Vpc)))
			rows = append(rows, row)
		}
	}
	return rows
}

// prefixExternal begins the keys of a Service's load balancers with the addresses of an OvnEip.
const prefixExternal = "external/"

// ServiceExternal is the use of an OvnEip by a Service.
type ServiceExternal struct {
	Eip, Vpc string
	// Fronts are sorted.
	Fronts []Front
}

// ServiceExternalOf reads the use of an OvnEip from the load balancers of a Service in the database; the zero value without one.
func ServiceExternalOf(rows []*nb.LoadBalancer) ServiceExternal {
	var e ServiceExternal
	for _, lb := range rows {
		if lb.ExternalIDs[idEip] == "" || lb.Protocol == nil {
			continue
		}
		e.Eip, e.Vpc = lb.ExternalIDs[idEip], lb.ExternalIDs[idVpc]
		for text := range lb.Vips {
			if at, err := netip.ParseAddrPort(text); err == nil {
				e.Fronts = append(e.Fronts, Front{Protocol: corev1.Protocol(strings.ToUpper(*lb.Protocol)), Address: at})
			}
		}
	}
	slices.SortFunc(e.Fronts, func(a, b Front) int { return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), a.Address.Compare(b.Address)) })
	return e
}

// backendsBefore returns the endpoints, by front, of the load balancers of a protocol in the database.
func backendsBefore(before []*nb.LoadBalancer, protocol string) map[string]string {
	all := map[string]string{}
	for _, lb := range before {
		if lb.Protocol != nil && *lb.Protocol == protocol {
			maps.Copy(all, lb.Vips)
		}
	}
	return all
}

// list returns endpoints as in Load_Balancer.vips. With session affinity an endpoint keeps its place in the list before: Open vSwitch
// chooses a place by the client's address, so clients of endpoints that stay do not move.
func list(of []netip.AddrPort, sticky bool, before string) string {
	if !sticky || before == "" {
		return join(of)
	}
	wanted := map[netip.AddrPort]bool{}
	for _, e := range of {
		wanted[e] = true
	}
	var old []netip.AddrPort
	for text := range strings.SplitSeq(before, ",") {
		e, _ := netip.ParseAddrPort(text) // an entry that is not an endpoint stays the zero value, which is not wanted
		old = append(old, e)
	}
	places := make([]netip.AddrPort, len(wanted))
	endpoints.Fill(places, old, 0, wanted)
	return text(places)
}

// stickyBy are the fields by which a load balancer with session affinity chooses an endpoint.
var stickyBy = []nb.LoadBalancerSelectionFields{nb.LoadBalancerSelectionFieldsIPSrc, nb.LoadBalancerSelectionFieldsIpv6Src}

// balancer is a load balancer of a VPC. Its key is its protocol.
func balancer(name, protocol, vpc string, backends map[string]string, sticky bool) desired.Row {
	lb := &nb.LoadBalancer{
		Name:     name,
		Protocol: &protocol,
		Options:  map[string]string{"reject": "true", "hairpin_snat_ip": HairpinSources[0].String() + " " + HairpinSources[1].String()},
		Vips:     backends,
	}
	if protocol == nb.LoadBalancerProtocolUDP {
		// A client that keeps using one source port would stay with a deleted endpoint. TCP connections end by themselves, and
		// may continue while their endpoint terminates.
		lb.Options["ct_flush"] = "true"
	}
	if sticky { // affinity_timeout would drop the first packet of each client, and its retransmissions
		lb.SelectionFields = stickyBy
	}
	return desired.Row{
		Key:     protocol,
		Model:   lb,
		Members: []desired.Set{desired.GroupLoadBalancers(ServicesRef(vpc))},
	}
}

// LabelProxyName names the proxy that serves a Service instead of the nodes' default one. ProxyOfVPCs is its value for a
// Service whose endpoints are in a custom VPC: on nodes their addresses have another meaning.
const (
	LabelProxyName = "service.kubernetes.io/service-proxy-name"
	ProxyOfVPCs    = "kiln-vpc"
)

// Unserved reports whether a Service gets no load balancer: it is headless or ExternalName, or its label names another proxy.
// In a custom VPC the label is ignored: there is no other proxy, and the label keeps the nodes' proxy from serving the Service.
func Unserved(s *corev1.Service, vpc string) bool {
	_, headless := s.Labels[labelHeadless]
	proxy, others := s.Labels[LabelProxyName]
	return s.Spec.Type == corev1.ServiceTypeExternalName || slices.Contains(s.Spec.ClusterIPs, corev1.ClusterIPNone) ||
		headless || others && proxy != ProxyOfVPCs && vpc == kubeovnv1.DefaultVpc
}

// addresses returns the virtual addresses at which the VPC's load balancers serve a Service.
func addresses(in ServiceInputs) []netip.Addr {
	s := in.Service
	var texts []string
	if !kubeovnv1.OfRouterLBRule(s) { // the rule's own load balancers serve them
		texts = slices.Clone(s.Spec.ExternalIPs)
	}
	if !Local(s) {
		texts = append(texts, s.Spec.ClusterIPs...)
	}
	if len(s.Spec.LoadBalancerSourceRanges) == 0 { // OVN cannot filter clients by address; nodes serve a Service with source ranges
		for _, ingress := range s.Status.LoadBalancer.Ingress {
			if ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP {
				texts = append(texts, ingress.IP)
			}
		}
	}
	var out []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && !seen[a.Unmap()] {
			seen[a.Unmap()] = true
			out = append(out, a.Unmap())
		}
	}
	return out
}

// Local reports whether the ClusterIPs of a Service lead only to endpoints on the client's node. OVN 25.03 does not support
// this, so nodes serve them.
func Local(s *corev1.Service) bool {
	return s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
}
