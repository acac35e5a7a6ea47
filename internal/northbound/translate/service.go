// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// maxAffinitySeconds is the longest affinity_timeout that OVN takes (ovn-nb(5), Load_Balancer); Kubernetes allows a day.
const maxAffinitySeconds = 65535

// protocols are those that OVN balances, with the keys of their rows.
var protocols = []struct {
	of  corev1.Protocol
	key string
}{
	{corev1.ProtocolTCP, nb.LoadBalancerProtocolTCP},
	{corev1.ProtocolUDP, nb.LoadBalancerProtocolUDP},
	{corev1.ProtocolSCTP, nb.LoadBalancerProtocolSCTP},
}

// ServiceInputs is what the load balancers of a Service follow from.
type ServiceInputs struct {
	Service *corev1.Service
	// Slices are the EndpointSlices of the Service, in any order.
	Slices []*discoveryv1.EndpointSlice
	// Vpc is the VPC whose pods reach the Service.
	Vpc string
}

// Service returns one load balancer per protocol of the Service, in the load balancer group of its VPC. Each ClusterIP and port
// is a VIP; one without endpoints answers with a TCP reset or ICMP unreachable. Headless and ExternalName Services have none.
func Service(in ServiceInputs) []desired.Row {
	if in.Service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	vips := clusterIPs(in.Service)
	if len(vips) == 0 {
		return nil
	}
	var rows []desired.Row
	for _, p := range protocols {
		backends := map[string]string{}
		for _, port := range in.Service.Spec.Ports {
			if cmp.Or(port.Protocol, corev1.ProtocolTCP) != p.of {
				continue
			}
			for _, vip := range vips {
				key := netip.AddrPortFrom(vip, uint16(port.Port)).String()
				backends[key] = join(endpoints(in.Slices, vip, port.Name, p.of))
			}
		}
		if len(backends) > 0 {
			rows = append(rows, loadBalancer(in, p.key, vips, backends))
		}
	}
	return rows
}

func loadBalancer(in ServiceInputs, protocol string, vips []netip.Addr, backends map[string]string) desired.Row {
	lb := &nb.LoadBalancer{
		Name:     in.Service.Namespace + "/" + in.Service.Name + "/" + protocol,
		Protocol: &protocol,
		Options:  map[string]string{"reject": "true"},
		Vips:     backends,
	}
	if timeout, sticky := affinity(in.Service); sticky {
		lb.Options["affinity_timeout"] = strconv.Itoa(int(timeout))
		lb.SelectionFields = sourceFields(vips)
	}
	return desired.Row{
		Key:     protocol,
		Model:   lb,
		Members: []desired.Set{desired.GroupLoadBalancers(ServicesRef(in.Vpc))},
	}
}

// clusterIPs returns the addresses of a Service that are served inside the cluster, none for a headless one.
func clusterIPs(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, ip := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(ip); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// affinity is how long, in seconds, a client stays with an endpoint.
func affinity(s *corev1.Service) (seconds int32, sticky bool) {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0, false
	}
	seconds = corev1.DefaultClientIPServiceAffinitySeconds
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return min(seconds, maxAffinitySeconds), true
}

// sourceFields are the fields of a packet's source address in the families of the VIPs, in the order of the database's sets.
func sourceFields(vips []netip.Addr) []string {
	var fields []string
	for _, vip := range vips {
		field := nb.LoadBalancerSelectionFieldsIPSrc
		if vip.Is6() {
			field = nb.LoadBalancerSelectionFieldsIpv6Src
		}
		fields = append(fields, field)
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

// endpoints returns where one port of a Service is served in the family of the VIP: by the ready endpoints or, when there is
// none, by those that still serve while they terminate. The slices' ports hold the resolved target ports by the name of the Service's port.
func endpoints(slicesOf []*discoveryv1.EndpointSlice, vip netip.Addr, portName string, protocol corev1.Protocol) []netip.AddrPort {
	var ready, draining []netip.AddrPort
	for _, s := range slicesOf {
		if s.AddressType != addressType(vip) {
			continue
		}
		port, ok := slicePort(s, portName, protocol)
		if !ok {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			switch {
			case deref(e.Conditions.Ready, true):
				ready = appendAddresses(ready, e.Addresses, port)
			case deref(e.Conditions.Serving, false) && deref(e.Conditions.Terminating, false):
				draining = appendAddresses(draining, e.Addresses, port)
			}
		}
	}
	if len(ready) == 0 {
		return draining
	}
	return ready
}

func addressType(a netip.Addr) discoveryv1.AddressType {
	if a.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

func slicePort(s *discoveryv1.EndpointSlice, name string, protocol corev1.Protocol) (uint16, bool) {
	for _, p := range s.Ports {
		if p.Port != nil && deref(p.Name, "") == name && deref(p.Protocol, corev1.ProtocolTCP) == protocol {
			return uint16(*p.Port), true
		}
	}
	return 0, false
}

func appendAddresses(out []netip.AddrPort, addresses []string, port uint16) []netip.AddrPort {
	for _, s := range addresses {
		if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, netip.AddrPortFrom(a, port))
		}
	}
	return out
}

// join writes endpoints in the form of Load_Balancer.vips, the same for the same set: an endpoint may be in two slices for a moment.
func join(endpoints []netip.AddrPort) string {
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	parts := make([]string, 0, len(endpoints))
	for _, e := range slices.Compact(endpoints) {
		parts = append(parts, e.String())
	}
	return strings.Join(parts, ",")
}

func deref[T any](p *T, unset T) T {
	if p == nil {
		return unset
	}
	return *p
}
