// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"net/netip"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

// maxPolicyPriority is OVN's greatest priority of a router policy (ovn-nb(5), Logical_Router_Policy).
const maxPolicyPriority = 32767

// Vpc checks a VPC by itself.
func Vpc(name string, spec *kubeovnv1.VpcSpec) *Problem {
	for i, route := range spec.StaticRoutes {
		if err := staticRoute(route); err != nil {
			return problem(ReasonRouteInvalid, "staticRoutes[%d]: %v", i, err)
		}
	}
	for i, route := range spec.PolicyRoutes {
		if err := policyRoute(route); err != nil {
			return problem(ReasonRouteInvalid, "policyRoutes[%d]: %v", i, err)
		}
	}
	for i, peering := range spec.VpcPeerings {
		if err := vpcPeering(name, peering); err != nil {
			return problem(ReasonPeeringInvalid, "vpcPeerings[%d]: %v", i, err)
		}
	}
	return nil
}

func staticRoute(r *kubeovnv1.StaticRoute) error {
	switch r.Policy {
	case "", kubeovnv1.RouteByDestination, kubeovnv1.RouteBySource:
	default:
		return fmt.Errorf("policy %q: must be %s or %s", r.Policy, kubeovnv1.RouteByDestination, kubeovnv1.RouteBySource)
	}
	if !isAddrOrCIDR(r.CIDR) {
		return fmt.Errorf("cidr %q: must be a CIDR or an address", r.CIDR)
	}
	if _, err := ipfamily.ParseAddr(r.NextHopIP); err != nil {
		return fmt.Errorf("nextHopIP: %w", err)
	}
	return nil
}

func policyRoute(r *kubeovnv1.PolicyRoute) error {
	if r.Priority < 0 || r.Priority > maxPolicyPriority {
		return fmt.Errorf("priority %d: must be from 0 to %d", r.Priority, maxPolicyPriority)
	}
	switch r.Action {
	case kubeovnv1.PolicyRouteAllow, kubeovnv1.PolicyRouteDrop:
		return nil
	case kubeovnv1.PolicyRouteReroute:
	default:
		return fmt.Errorf("action %q: must be %s, %s or %s", r.Action,
			kubeovnv1.PolicyRouteAllow, kubeovnv1.PolicyRouteDrop, kubeovnv1.PolicyRouteReroute)
	}
	for hop := range strings.SplitSeq(r.NextHopIP, ",") {
		if _, err := ipfamily.ParseAddr(hop); err != nil {
			return fmt.Errorf("nextHopIP of action %s: %w", r.Action, err)
		}
	}
	return nil
}

func vpcPeering(vpc string, p *kubeovnv1.VpcPeering) error {
	if p.RemoteVpc == "" || p.RemoteVpc == vpc {
		return fmt.Errorf("remoteVpc %q: must be another VPC", p.RemoteVpc)
	}
	if p.LocalConnectIP == "" {
		return fmt.Errorf("localConnectIP is empty: write an address with its prefix length, like 169.254.0.1/30")
	}
	for s := range strings.SplitSeq(p.LocalConnectIP, ",") {
		if _, err := netip.ParsePrefix(strings.TrimSpace(s)); err != nil {
			return fmt.Errorf("localConnectIP %q: write an address with its prefix length, like 169.254.0.1/30", s)
		}
	}
	return nil
}

func isAddrOrCIDR(s string) bool {
	if strings.Contains(s, "/") {
		_, err := ipfamily.ParseCIDR(s)
		return err == nil
	}
	_, err := ipfamily.ParseAddr(s)
	return err == nil
}
