// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/endpoints"
	"github.com/kiln-net/kiln/internal/svc"
)

// pool is one port of a Service in one family, with its fronts and endpoints.
type pool struct {
	port   string // its name
	proto  string // tcp, udp or sctp
	family family
	fronts []front
	// slots are the endpoints, this node's first. An endpoint keeps its slot if possible, so that few elements change.
	slots []netip.AddrPort
	local int // number of slots of this node
	// internalLocal and externalLocal restrict clients inside, or outside, to this node's endpoints.
	internalLocal, externalLocal bool
	peer                         string // the node whose node ports these are; empty for the Service's own fronts
	affinity                     int32  // how long a client keeps its endpoint, in seconds; 0 for no affinity
}

// front is an address and a port of a Service. A front without an address is a node port, at every address of the node.
type front struct {
	address  netip.Addr
	port     uint16
	external bool // for clients outside
	// guard restricts the clients; nil admits all.
	guard *guard
}

// given reports whether the API server assigned the front to this Service exclusively: a ClusterIP or a node port.
func (f front) given() bool { return !f.external || !f.address.IsValid() }

// place identifies a front among the fronts of all Services. Only one Service can have it.
type place struct {
	family family
	proto  string
	front  netip.AddrPort
}

func (p *pool) place(f front) place {
	return place{p.family, p.proto, netip.AddrPortFrom(f.address, f.port)}
}

// node reports whether the place is a node port.
func (at place) node() bool { return !at.front.Addr().IsValid() }

// key returns the place as a key of the table's sets and maps.
func (at place) key() string {
	key := fmt.Sprintf("%s . %d", at.proto, at.front.Port())
	if !at.node() {
		key = at.front.Addr().String() + " . " + key
	}
	return key
}

// served reports whether the node serves a Service. Services of custom VPCs are served within their VPC, because the addresses of their
// endpoints are not valid on the node.
func served(s *corev1.Service) bool {
	return svc.Vpc(s) == v1.DefaultVpc && s.Spec.Type != corev1.ServiceTypeExternalName && len(s.Spec.ClusterIPs) > 0 &&
		s.Spec.ClusterIPs[0] != corev1.ClusterIPNone
}

// poolsOf returns the desired pools of a Service on a node. before are its present pools, so that endpoints keep their slots. addressesOf
// returns another node's addresses.
func poolsOf(s *corev1.Service, of []*discoveryv1.EndpointSlice, node string, before []pool, addressesOf func(node string) []netip.Addr) []pool {
	if !served(s) {
		return nil
	}
	var pools []pool
	old, index := slotsByPool(before), endpoints.ByPort(of)
	fronts := make([][]front, len(families))
	for i, f := range families {
		fronts[i] = frontsOf(s, f)
	}
	for i := range s.Spec.Ports {
		port := &s.Spec.Ports[i]
		for i, f := range families {
			p := pool{
				port: port.Name, proto: protocolOf(port.Protocol), family: f, fronts: frontsAt(fronts[i], s, port, f), affinity: affinityOf(s),
				internalLocal: s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
				externalLocal: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
			}
			if len(p.fronts) == 0 {
				continue
			}
			at := index[endpoints.KeyOf(port.Name, port.Protocol, f.addresses)]
			here, all := p.endpoints(at, node)
			p.slots, p.local = arrange(old[p.key()], here, all)
			pools = append(pools, p)
			if p.externalLocal && port.NodePort != 0 {
				pools = append(pools, p.peers(at, port, node, old, addressesOf)...)
			}
		}
	}
	return pools
}

// poolKey identifies a pool among the pools of its Service.
type poolKey struct {
	port, proto, peer string
	v6                bool
}

func (p *pool) key() poolKey { return poolKey{p.port, p.proto, p.peer, p.family.v6} }

// slotsByPool returns the slots of pools by key.
func slotsByPool(pools []pool) map[poolKey][]netip.AddrPort {
	slots := make(map[poolKey][]netip.AddrPort, len(pools))
	for i := range pools {
		slots[pools[i].key()] = pools[i].slots
	}
	return slots
}

// peers returns pools for the node ports of other nodes, which this node serves to itself if the policy is Local. Otherwise the endpoint
// would see this node's address as the client and reply directly to this node, which has no connection to the endpoint. So this node
// chooses among the endpoints of the other node itself.
func (p *pool) peers(of []endpoints.Port, port *corev1.ServicePort, node string, old map[poolKey][]netip.AddrPort, addressesOf func(string) []netip.Addr) []pool {
	served := p.byNode(of)
	delete(served, node)
	var pools []pool
	for _, peer := range slices.Sorted(maps.Keys(served)) {
		o := pool{port: p.port, proto: p.proto, family: p.family, affinity: p.affinity, peer: peer}
		for _, address := range addressesOf(peer) {
			if address.Is6() == p.family.v6 {
				o.fronts = append(o.fronts, front{address: address, port: uint16(port.NodePort)}) //nolint:gosec // the API server takes 1 to 65535
			}
		}
		if len(o.fronts) > 0 {
			o.slots, o.local = arrange(old[o.key()], nil, served[peer])
			pools = append(pools, o)
		}
	}
	return pools
}

// byNode returns the endpoints of a port by node: the node's ready endpoints or, if it has none, its serving terminating ones.
func (p *pool) byNode(of []endpoints.Port) map[string][]netip.AddrPort {
	ready, draining := map[string][]netip.AddrPort{}, map[string][]netip.AddrPort{}
	p.each(of, func(address netip.AddrPort, node string, terminates bool) {
		switch {
		case node == "":
		case terminates:
			draining[node] = append(draining[node], address)
		default:
			ready[node] = append(ready[node], address)
		}
	})
	maps.Copy(draining, ready)
	return draining
}

func protocolOf(p corev1.Protocol) string {
	switch p {
	case corev1.ProtocolUDP:
		return "udp"
	case corev1.ProtocolSCTP:
		return "sctp"
	}
	return "tcp"
}

func affinityOf(s *corev1.Service) int32 {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return *c.ClientIP.TimeoutSeconds
	}
	return corev1.DefaultClientIPServiceAffinitySeconds
}

// frontsOf returns the addresses of a Service in one family, without ports and duplicates.
func frontsOf(s *corev1.Service, f family) []front {
	var fronts []front
	seen := map[netip.Addr]bool{}
	add := func(text string, as front) {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Unmap().Is6() != f.v6 {
			return
		}
		if as.address = address.Unmap(); !seen[as.address] {
			seen[as.address] = true
			fronts = append(fronts, as)
		}
	}
	for _, ip := range s.Spec.ClusterIPs {
		add(ip, front{})
	}
	for _, ip := range s.Spec.ExternalIPs {
		add(ip, front{external: true})
	}
	guard := guardOf(s, f)
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP {
			add(ingress.IP, front{external: true, guard: guard})
		}
	}
	return fronts
}

// frontsAt returns the fronts of one port.
func frontsAt(of []front, s *corev1.Service, port *corev1.ServicePort, f family) []front {
	fronts := slices.Clone(of)
	for i := range fronts {
		fronts[i].port = uint16(port.Port) //nolint:gosec // the API server takes 1 to 65535
	}
	if port.NodePort != 0 && slices.Contains(s.Spec.IPFamilies, f.name) {
		fronts = append(fronts, front{port: uint16(port.NodePort), external: true}) //nolint:gosec // the API server takes 1 to 65535
	}
	return fronts
}

// endpoints returns the endpoints of a port, on this node and in total. They are the ready ones or, if there are none, the serving
// terminating ones. If only this node has no ready endpoint, and a Local policy restricts clients to it, its serving terminating
// endpoints are added.
func (p *pool) endpoints(of []endpoints.Port, node string) (here, all []netip.AddrPort) {
	var ready, draining, readyHere, drainingHere []netip.AddrPort
	p.each(of, func(address netip.AddrPort, on string, terminates bool) {
		switch local := on == node; {
		case terminates && local:
			drainingHere, draining = append(drainingHere, address), append(draining, address)
		case terminates:
			draining = append(draining, address)
		case local:
			readyHere, ready = append(readyHere, address), append(ready, address)
		default:
			ready = append(ready, address)
		}
	})
	if len(ready) == 0 {
		return drainingHere, draining
	}
	if len(readyHere) == 0 && (p.internalLocal || p.externalLocal) {
		return drainingHere, append(ready, drainingHere...)
	}
	return readyHere, ready
}

// each calls f for each serving endpoint of a port, with the name of its node ("" if unknown) and whether it is terminating.
func (p *pool) each(of []endpoints.Port, f func(address netip.AddrPort, node string, terminates bool)) {
	for _, at := range of {
		for i := range at.Slice.Endpoints {
			e := &at.Slice.Endpoints[i]
			node := ""
			if e.NodeName != nil {
				node = *e.NodeName
			}
			if address, serves, terminates := endpoint(e, at.Number, p.family); serves {
				f(address, node, terminates)
			}
		}
	}
}

// endpoint returns the address of an endpoint, whether it serves, and whether it is terminating.
func endpoint(e *discoveryv1.Endpoint, port uint16, f family) (address netip.AddrPort, serves, terminates bool) {
	ip, err := netip.ParseAddr(endpoints.AddressOf(e))
	if err != nil || ip.Unmap().Is6() != f.v6 || ip.Zone() != "" {
		return address, false, false
	}
	address = netip.AddrPortFrom(ip.Unmap(), port)
	state := endpoints.StateOf(e)
	return address, state != endpoints.NotServing, state == endpoints.Draining
}

// readyHere returns how many ready endpoints this node has. An endpoint with an address of each family counts once.
func readyHere(of []*discoveryv1.EndpointSlice, node string) int {
	most := 0
	for _, f := range families {
		ready := map[string]bool{}
		for _, s := range of {
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				if s.AddressType == f.addresses && e.NodeName != nil && *e.NodeName == node && endpoints.AddressOf(e) != "" &&
					endpoints.StateOf(e) == endpoints.Ready {
					ready[endpoints.AddressOf(e)] = true
				}
			}
		}
		most = max(most, len(ready))
	}
	return most
}
