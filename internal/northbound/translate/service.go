// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/endpoints"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// MaxAffinitySeconds is the longest affinity_timeout that OVN takes (ovn-nb(5), Load_Balancer); Kubernetes allows a day.
const MaxAffinitySeconds = 65535

// labelHeadless is on Services that none serves.
const labelHeadless = corev1.IsHeadlessService

// HairpinSources are what a pod sees as the client when a Service leads it to itself: one address per family, the same for all
// Services, so that policies can let it in.
var HairpinSources = []netip.Addr{netip.MustParseAddr("169.254.107.105"), netip.MustParseAddr("fd00:6b69:6c6e::1")}

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
	// Taken are the fronts that another Service of the VPC has: this one is not reached there.
	Taken []Front
}

// Front is where a Service is reached.
type Front struct {
	Protocol corev1.Protocol
	Address  netip.AddrPort
}

// Service returns one load balancer per protocol of the Service, in the load balancer group of its VPC. Each of its addresses and
// ports is a VIP; one without endpoints answers with a TCP reset or ICMP unreachable. Headless and ExternalName Services have none.
//
// From inside the cluster an external address leads to all endpoints, whatever externalTrafficPolicy says: that is about clients
// outside, and the nodes' part, as are NodePorts.
func Service(in ServiceInputs) []desired.Row {
	vips := addresses(in)
	if len(vips) == 0 {
		return nil
	}
	index, taken := endpoints.ByPort(in.Slices), map[Front]bool{}
	for _, front := range in.Taken {
		taken[front] = true
	}
	var rows []desired.Row
	for _, p := range protocols {
		backends := map[string]string{}
		for _, port := range in.Service.Spec.Ports {
			if cmp.Or(port.Protocol, corev1.ProtocolTCP) != p.of {
				continue
			}
			for _, vip := range vips {
				front := Front{Protocol: p.of, Address: netip.AddrPortFrom(vip, uint16(port.Port))} //nolint:gosec // the API server takes 1 to 65535
				if !taken[front] {
					backends[front.Address.String()] = join(endpointsOf(index, vip, port.Name, p.of))
				}
			}
		}
		if len(backends) > 0 {
			rows = append(rows, loadBalancer(in, p.key, backends))
		}
	}
	return rows
}

func loadBalancer(in ServiceInputs, protocol string, backends map[string]string) desired.Row {
	return balancer(in.Service.Namespace+"/"+in.Service.Name+"/"+protocol, protocol, in.Vpc, backends, affinity(Affinity(in.Service)))
}

// affinity is for how many seconds OVN keeps a client with an endpoint; 0 for not at all.
func affinity(seconds int32, sticky bool) int32 {
	if !sticky {
		return 0
	}
	return min(seconds, MaxAffinitySeconds)
}

// balancer is a load balancer of a VPC, by the name of its protocol.
func balancer(name, protocol, vpc string, backends map[string]string, affinity int32) desired.Row {
	lb := &nb.LoadBalancer{
		Name:     name,
		Protocol: &protocol,
		Options:  map[string]string{"reject": "true", "hairpin_snat_ip": HairpinSources[0].String() + " " + HairpinSources[1].String()},
		Vips:     backends,
	}
	if protocol == nb.LoadBalancerProtocolUDP {
		// A client that goes on from one port would stay with an endpoint that is gone. A connection of TCP ends by itself, and may
		// go on while its endpoint terminates.
		lb.Options["ct_flush"] = "true"
	}
	if affinity > 0 { // no selection_fields: by the client's address alone, it would have the same endpoint after that time as well
		lb.Options["affinity_timeout"] = strconv.Itoa(int(affinity))
	}
	return desired.Row{
		Key:     protocol,
		Model:   lb,
		Members: []desired.Set{desired.GroupLoadBalancers(ServicesRef(vpc))},
	}
}

// LabelProxyName says that another program than the nodes' proxy serves a Service, and ProxyOfVPCs that this is because its endpoints are
// in a custom VPC: their addresses mean something else on nodes.
const (
	LabelProxyName = "service.kubernetes.io/service-proxy-name"
	ProxyOfVPCs    = "kiln-vpc"
)

// Unserved reports whether a Service is served by nobody, or by another proxy: it is headless, ExternalName or labelled so. In a custom VPC
// there is no other proxy: the label keeps the nodes' one from a Service that is not theirs.
func Unserved(s *corev1.Service, vpc string) bool {
	_, headless := s.Labels[labelHeadless]
	proxy, others := s.Labels[LabelProxyName]
	return s.Spec.Type == corev1.ServiceTypeExternalName || slices.Contains(s.Spec.ClusterIPs, corev1.ClusterIPNone) ||
		headless || others && proxy != ProxyOfVPCs && vpc == kubeovnv1.DefaultVpc
}

// addresses are those that the VPC's load balancers serve a Service at.
func addresses(in ServiceInputs) []netip.Addr {
	s := in.Service
	if Unserved(s, in.Vpc) {
		return nil
	}
	var texts []string
	if !OfRouterLBRule(s) { // the rule's own load balancers serve them
		texts = slices.Clone(s.Spec.ExternalIPs)
	}
	if !Local(s) {
		texts = append(texts, s.Spec.ClusterIPs...)
	}
	if len(s.Spec.LoadBalancerSourceRanges) == 0 { // OVN cannot tell clients apart; where they are told apart, nodes do it
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

// OfRouterLBRule reports whether a Service stands for a RouterLBRule: nodes serve the rule's addresses by it.
func OfRouterLBRule(s *corev1.Service) bool {
	rule := metav1.GetControllerOf(s)
	return rule != nil && rule.Kind == KindRouterLBRule && rule.APIVersion == kubeovnv1.GroupVersion.String()
}

// Local reports whether the ClusterIPs of a Service lead to endpoints of the client's node only. OVN 25.03 cannot say so: the nodes
// serve them.
func Local(s *corev1.Service) bool {
	return s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
}

// Affinity is how long, in seconds, a client is to stay with an endpoint.
func Affinity(s *corev1.Service) (seconds int32, sticky bool) {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0, false
	}
	seconds = corev1.DefaultClientIPServiceAffinitySeconds
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return seconds, true
}
