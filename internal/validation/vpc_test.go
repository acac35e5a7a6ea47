// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestVpc(t *testing.T) {
	route := func(policy kubeovnv1.RoutePolicy, cidr, hop string) kubeovnv1.VpcSpec {
		return kubeovnv1.VpcSpec{StaticRoutes: []*kubeovnv1.StaticRoute{{Policy: policy, CIDR: cidr, NextHopIP: hop}}}
	}
	policy := func(priority int, match string, action kubeovnv1.PolicyRouteAction, hop string) kubeovnv1.VpcSpec {
		return kubeovnv1.VpcSpec{PolicyRoutes: []*kubeovnv1.PolicyRoute{{Priority: priority, Match: match, Action: action, NextHopIP: hop}}}
	}
	peering := func(remote, local string) kubeovnv1.VpcSpec {
		return kubeovnv1.VpcSpec{VpcPeerings: []*kubeovnv1.VpcPeering{{RemoteVpc: remote, LocalConnectIP: local}}}
	}
	const source = "ip4.src == 10.0.0.0/8"
	tests := []struct {
		name            string
		spec            kubeovnv1.VpcSpec
		reason, message string
	}{
		{name: "nothing"},
		{name: "a route by destination", spec: route("", "0.0.0.0/0", "10.0.0.1")},
		{name: "a route by source, of one address", spec: route("policySrc", "10.0.1.1", "10.0.0.1")},
		{name: "a policy that reroutes to two", spec: policy(32767, source, "reroute", "10.0.0.1, 10.0.0.2")},
		{name: "a dual-stack peering", spec: peering("other", "169.254.0.1/30,fd00::1/126")},
		{name: "another route policy", spec: route("dst", "0.0.0.0/0", "10.0.0.1"), reason: ReasonRouteInvalid, message: "must be policyDst or policySrc"},
		{name: "a wrong CIDR", spec: route("", "10.0.0.0/33", "10.0.0.1"), reason: ReasonRouteInvalid, message: "staticRoutes[0]: cidr"},
		{name: "no next hop", spec: route("", "10.0.0.0/8", ""), reason: ReasonRouteInvalid, message: "nextHopIP"},
		{name: "a next hop of another family", spec: route("", "10.0.0.0/8", "fd00::1"), reason: ReasonRouteInvalid, message: "of two families"},
		{name: "another ECMP mode", spec: kubeovnv1.VpcSpec{StaticRoutes: []*kubeovnv1.StaticRoute{
			{CIDR: "10.0.0.0/8", NextHopIP: "10.0.0.1", ECMPMode: "fair"}}}, reason: ReasonRouteInvalid, message: "must be empty or ecmp_symmetric_reply"},
		{name: "a priority too great", spec: policy(32768, source, "drop", ""), reason: ReasonRouteInvalid, message: "from 0 to 32767"},
		{name: "another action", spec: policy(1, source, "deny", ""), reason: ReasonRouteInvalid, message: "must be allow, drop or reroute"},
		{name: "reroute to nowhere", spec: policy(1, source, "reroute", ""), reason: ReasonRouteInvalid, message: "nextHopIP of action reroute"},
		{name: "a match that OVN cannot read", spec: policy(1, "ip4.src = 10.0.0.1", "drop", ""), reason: ReasonRouteInvalid, message: "policyRoutes[0]: match: at character"},
		{name: "no match", spec: policy(1, "", "drop", ""), reason: ReasonRouteInvalid, message: "policyRoutes[0]: match: at its end"},
		{name: "a match that ends ours", spec: policy(1, "ip4) || (ip4", "drop", ""), reason: ReasonRouteInvalid, message: "policyRoutes[0]: match"},
		{name: "a peering with itself", spec: peering("v", "169.254.0.1/30"), reason: ReasonPeeringInvalid, message: "must be another VPC"},
		{name: "a peering without prefix length", spec: peering("other", "169.254.0.1"), reason: ReasonPeeringInvalid, message: "with its prefix length"},
		{name: "a peering without address", spec: peering("other", ""), reason: ReasonPeeringInvalid, message: "localConnectIP is empty"},
		{name: "a peering with two of a family", spec: peering("other", "169.254.0.1/30,169.254.1.1/30"), reason: ReasonPeeringInvalid, message: "two addresses of one family"},
		{name: "a peering at a network's address", spec: peering("other", "169.254.0.0/30"), reason: ReasonPeeringInvalid, message: "no address that a port can have"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, problems := Vpc("v", &tt.spec)
			expect(t, Joined(problems), tt.reason, tt.message)
		})
	}
}

func TestValidPartsAreReadNextToInvalidOnes(t *testing.T) {
	r, problems := Vpc("v", &kubeovnv1.VpcSpec{
		StaticRoutes: []*kubeovnv1.StaticRoute{
			{CIDR: "all", NextHopIP: "10.0.0.1"},
			{CIDR: "10.9.0.9/16", NextHopIP: "10.0.0.1", RouteTable: "t", ECMPMode: "ecmp_symmetric_reply", BFDID: "b"},
			{CIDR: "10.9.0.0/16", NextHopIP: "10.0.0.2", RouteTable: "t"},
			{CIDR: "10.9.0.0/16", NextHopIP: "10.0.0.1", RouteTable: "t"},
			{CIDR: "10.9.0.0/16", NextHopIP: "10.0.0.1"},
		},
		PolicyRoutes: []*kubeovnv1.PolicyRoute{
			{Priority: 1, Match: "ip4", Action: "drop"},
			{Priority: 1, Match: " ip4 ", Action: "allow"},
			{Priority: 2, Match: "ip4", Action: "reroute", NextHopIP: "fd00::1, 10.0.0.1,10.0.0.1"},
		},
		VpcPeerings: []*kubeovnv1.VpcPeering{
			{RemoteVpc: "a", LocalConnectIP: "169.254.0.1/30"},
			{RemoteVpc: "a", LocalConnectIP: "169.254.1.1/30"},
			{RemoteVpc: "b", LocalConnectIP: "169.254.0.2/24"},
			{RemoteVpc: "c", LocalConnectIP: "169.254.2.1/30,fd00::1/64"},
		},
	})
	if got, want := fmt.Sprint(r), "{"+
		"[{1 10.9.0.0/16 false 10.0.0.1 t true true} {2 10.9.0.0/16 false 10.0.0.2 t false false} {4 10.9.0.0/16 false 10.0.0.1  false false}] "+
		"[{0 1 ip4 drop []} {2 2 ip4 reroute [fd00::1 10.0.0.1]}] "+
		"[{0 a [169.254.0.1/30]} {3 c [169.254.2.1/30 fd00::1/64]}]}"; got != want {
		t.Errorf("read\n%s, want\n%s", got, want)
	}
	message := Joined(problems).Message
	for _, part := range []string{
		"staticRoutes[0]: cidr", "staticRoutes[3]: the route to 10.9.0.0/16 by 10.0.0.1 is in staticRoutes[1]",
		`policyRoutes[1]: priority 1 and match "ip4" are also in policyRoutes[0]`,
		"vpcPeerings[1]: VPC a is the remoteVpc of vpcPeerings[0]", "vpcPeerings[2]: localConnectIP 169.254.0.2/24 overlaps with 169.254.0.1/30 of vpcPeerings[0]",
	} {
		if !strings.Contains(message, part) {
			t.Errorf("%q is not in %q", part, message)
		}
	}
}

// Routes share the session with a next hop. The maximum is of next hops, and invalid routes do not count. A route beyond it remains without a session.
func TestTheNumberOfMonitoredNextHopsIsLimited(t *testing.T) {
	spec := &kubeovnv1.VpcSpec{}
	add := func(cidr, hop, session string) {
		spec.StaticRoutes = append(spec.StaticRoutes, &kubeovnv1.StaticRoute{CIDR: cidr, NextHopIP: hop, BFDID: session})
	}
	add("10.9.0.0/16", "fd00::1", "invalid")
	for i := range maxMonitored {
		add(fmt.Sprintf("10.%d.0.0/16", i), fmt.Sprintf("10.0.0.%d", i), "x")
		add(fmt.Sprintf("10.%d.0.0/17", i), fmt.Sprintf("10.0.0.%d", i), "y")
	}
	add("10.200.0.0/16", "10.0.0.200", "")
	add("10.201.0.0/16", "10.0.0.0", "z")
	add("10.202.0.0/16", "10.0.0.201", "z")
	add("10.201.0.0/16", "10.0.0.0", "the same route")
	add("10.203.0.0/16", "10.0.0.1", "after the maximum")
	r, problems := Vpc("v", spec)
	if len(problems) != 3 || strings.Contains(Joined(problems).Message, "\n") || !strings.HasPrefix(problems[1].Message, "staticRoutes[131]: bfdId: next hop 10.0.0.201 is beyond 64") {
		t.Errorf("problems: %s", Joined(problems).Message)
	}
	if len(r.Routes) != 2*maxMonitored+4 {
		t.Fatalf("%d routes are valid", len(r.Routes))
	}
	for _, route := range r.Routes {
		if want := route.NextHop.String() != "10.0.0.200" && route.NextHop.String() != "10.0.0.201"; route.Monitored != want {
			t.Errorf("%s by %s is monitored: %t", route.Prefix, route.NextHop, route.Monitored)
		}
	}
}

func TestLink(t *testing.T) {
	for _, tt := range []struct{ name, local, remote, message string }{
		{name: "one network", local: "169.254.0.1/30", remote: "169.254.0.2/30"},
		{name: "one network of each family, in another order", local: "169.254.0.1/30,fd00::1/64", remote: "fd00::2/64,169.254.0.2/30"},
		{name: "two networks", local: "169.254.0.1/30", remote: "169.254.0.5/30", message: "are in two networks"},
		{name: "two lengths of prefix", local: "169.254.0.1/30", remote: "169.254.0.2/29", message: "are in two networks"},
		{name: "one address", local: "169.254.0.1/30", remote: "169.254.0.1/30", message: "is also VPC b's"},
		{name: "a family more here", local: "169.254.0.1/30,fd00::1/64", remote: "169.254.0.2/30", message: "fd00::1/64 has no counterpart"},
		{name: "a family more there", local: "169.254.0.1/30", remote: "169.254.0.2/30,fd00::1/64", message: "write one of the same families"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			read := func(vpc, remote, ip string) Peering {
				r, problems := Vpc(vpc, &kubeovnv1.VpcSpec{VpcPeerings: []*kubeovnv1.VpcPeering{{RemoteVpc: remote, LocalConnectIP: ip}}})
				if len(problems) > 0 {
					t.Fatal(problems[0].Message)
				}
				return r.Peerings[0]
			}
			reason := ""
			if tt.message != "" {
				reason = ReasonPeeringInvalid
			}
			expect(t, Link(read("a", "b", tt.local), read("b", "a", tt.remote)), reason, tt.message)
		})
	}
}

func TestSamplesOfVpcsAreRight(t *testing.T) {
	paths, err := filepath.Glob("../../config/samples/vpc*.yaml")
	if err != nil || len(paths) < 3 {
		t.Fatalf("samples %v: %v", paths, err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			var vpc kubeovnv1.Vpc
			if err := yaml.Unmarshal([]byte(document), &vpc); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if vpc.Kind != "Vpc" {
				continue
			}
			if _, problems := Vpc(vpc.Name, &vpc.Spec); len(problems) > 0 {
				t.Errorf("%s: VPC %s: %s", path, vpc.Name, Joined(problems).Message)
			}
		}
	}
}
