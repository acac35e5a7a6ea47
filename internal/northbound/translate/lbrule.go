// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"maps"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kiln-net/kiln/internal/endpoints"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// healthCheck are the interval and timeout in seconds, and the number of answers that change an endpoint's state (ovn-nb(5),
// Load_Balancer_Health_Check). They are Kube-OVN's, so that migrated rules behave the same.
var healthCheck = map[string]string{"interval": "5", "timeout": "20", "success_count": "3", "failure_count": "3"}

// LBRuleInputs are the inputs of LBRule.
type LBRuleInputs struct {
	// Kind is KindSwitchLBRule or KindRouterLBRule.
	Kind string
	Name string
	// Vpc is the VPC whose pods can reach the rule's addresses.
	Vpc string
	// VIPs has at most one address per family.
	VIPs  []netip.Addr
	Ports []LBRulePort
	// Endpoints are fixed endpoints; if there are none, Slices list the endpoints.
	Endpoints []netip.Addr
	Slices    []*discoveryv1.EndpointSlice
	// OnRouter makes the router of the VPC serve clients outside.
	OnRouter bool
	// Sticky keeps a client at an endpoint.
	Sticky bool
	// Before are the rule's load balancers in the database, for Sticky.
	Before []*nb.LoadBalancer
	// Monitors are the health monitors of endpoints, by address. An endpoint without a monitor is assumed healthy.
	Monitors map[netip.Addr]Monitor
}

// LBRulePort is a port of a rule.
type LBRulePort struct {
	Name         string // as in the slices
	Protocol     corev1.Protocol
	Port, Target uint16
}

// Monitor describes how OVN checks an endpoint: its logical port, and a source address in the port's subnet that nothing else
// uses.
type Monitor struct {
	Port   string
	Source netip.Addr
}

// Monitored reports whether OVN can check endpoints with this protocol (ovn-sb(5), Service_Monitor).
func Monitored(p corev1.Protocol) bool { return p != corev1.ProtocolSCTP }

// LBRulePrefix is the prefix of the names of objects generated for rules of a kind, as in Kube-OVN.
func LBRulePrefix(kind string) string {
	if kind == KindRouterLBRule {
		return "rlr-"
	}
	return "slr-"
}

// LBRuleRef is the load balancer of a rule for a protocol.
func LBRuleRef(kind, name string, p corev1.Protocol) desired.Ref {
	return desired.Ref{Owner: LBRuleOwner(kind, name), Key: strings.ToLower(string(p))}
}

// LBRule returns one load balancer per protocol of a rule, in the load balancer group of its VPC, and a health check for each
// VIP that has an endpoint with a monitor.
func LBRule(in LBRuleInputs) []desired.Row {
	var rows []desired.Row
	for _, p := range protocols {
		backends, mappings, before := map[string]string{}, map[string]string{}, backendsBefore(in.Before, p.key)
		var checks []desired.Row
		for _, port := range in.Ports {
			if port.Protocol != p.of {
				continue
			}
			for _, vip := range in.VIPs {
				front := netip.AddrPortFrom(vip, port.Port).String()
				of := in.EndpointsOf(vip, port)
				backends[front] = list(of, in.Sticky, before[front])
				if Monitored(p.of) && in.mapPorts(of, mappings) {
					checks = append(checks, in.check(p.key, front))
				}
			}
		}
		if len(backends) == 0 {
			continue
		}
		row := balancer(LBRulePrefix(in.Kind)+in.Name+"/"+p.key, p.key, in.Vpc, backends, in.Sticky)
		if in.OnRouter {
			row.Members = append(row.Members, desired.RouterLoadBalancers(RouterRef(in.Vpc)))
		}
		if len(mappings) > 0 {
			row.Model.(*nb.LoadBalancer).IPPortMappings = mappings
		}
		rows = append(append(rows, row), checks...)
	}
	return rows
}

// EndpointsOf returns the endpoints of a port in the family of a VIP.
func (in *LBRuleInputs) EndpointsOf(vip netip.Addr, port LBRulePort) []netip.AddrPort {
	if len(in.Endpoints) == 0 {
		return endpointsOf(endpoints.ByPort(in.Slices), vip, port.Name, port.Protocol)
	}
	var of []netip.AddrPort
	for _, a := range in.Endpoints {
		if a.Is4() == vip.Is4() {
			of = append(of, netip.AddrPortFrom(a, port.Target))
		}
	}
	return of
}

// mapPorts adds the monitors of endpoints to mappings, in the form of Load_Balancer.ip_port_mappings. It reports whether any
// endpoint has one.
func (in *LBRuleInputs) mapPorts(endpoints []netip.AddrPort, mappings map[string]string) (checked bool) {
	for _, e := range endpoints {
		if m, ok := in.Monitors[e.Addr()]; ok {
			mappings[bracketed(e.Addr())] = m.Port + ":" + bracketed(m.Source)
			checked = true
		}
	}
	return checked
}

func (in *LBRuleInputs) check(protocol, front string) desired.Row {
	parent := desired.HealthChecks(desired.Ref{Owner: LBRuleOwner(in.Kind, in.Name), Key: protocol})
	return desired.Row{
		Key:    "health/" + protocol + "/" + front,
		Model:  &nb.LoadBalancerHealthCheck{Vip: front, Options: maps.Clone(healthCheck)},
		Parent: &parent,
	}
}

// bracketed returns an address in the form of the load balancer columns: IPv6 in brackets.
func bracketed(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}
