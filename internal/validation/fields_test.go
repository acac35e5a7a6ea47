// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestFieldsWithoutEffectAreNamed(t *testing.T) {
	lb := false
	quiet := kubeovnv1.SubnetSpec{
		Default: true, Vpc: "v", Protocol: "Dual", CIDRBlock: "10.0.0.0/8", Gateway: "10.0.0.1", ExcludeIPs: []string{"10.0.0.1"}, Provider: "ovn",
		Namespaces: []string{"a"}, NamespaceSelectors: []metav1.LabelSelector{{}}, GatewayType: "distributed", NATOutgoing: true, MTU: 1400, EnableLb: &lb,
		DisableGatewayCheck: true, Private: true, ACLs: []kubeovnv1.ACL{{}}, EnableDHCP: true, EnableIPv6RA: true,
	}
	if got := append(UnbuiltSubnetFields(&quiet), IgnoredSubnetFields("web", &quiet)...); len(got) > 0 {
		t.Errorf("fields that have their effect are named: %v", got)
	}
	loud := kubeovnv1.SubnetSpec{Provider: "net.default.ovn", Vlan: "v", GatewayType: "centralized", LogicalGateway: true, NodeNetwork: "n", DisableInterConnection: true}
	if got := strings.Join(append(UnbuiltSubnetFields(&loud), IgnoredSubnetFields("web", &loud)...), " "); got != "provider vlan without cidrBlock (protocol Mac) disableInterConnection nodeNetwork" {
		t.Errorf("got %s", got)
	}
	join := kubeovnv1.SubnetSpec{ // as Kube-OVN creates it
		Vpc: "ovn-cluster", Provider: "ovn", CIDRBlock: "100.64.0.0/16", Gateway: "100.64.0.1", ExcludeIPs: []string{"100.64.0.1"}, Protocol: "IPv4",
		GatewayType: "distributed", DisableInterConnection: true,
	}
	if got := IgnoredSubnetFields(kubeovnv1.JoinSubnet, &join); len(got) > 0 {
		t.Errorf("fields of the subnet join of every installation of Kube-OVN are named: %v", got)
	}
	vpc := kubeovnv1.VpcSpec{Namespaces: []string{"a"}, DefaultSubnet: "s", BFDPort: &kubeovnv1.BFDPort{}, EnableBfd: true}
	vpc.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "10.0.0.0/8", NextHopIP: "10.1.0.1", ECMPMode: symmetricReply}}
	if got := strings.Join(IgnoredVpcFields(&vpc), ", "); got != "staticRoutes.ecmpMode, enableBfd without an external subnet" {
		t.Errorf("got %v", got)
	}
	vpc.EnableExternal, vpc.BFDPort.Enabled = true, true
	if got := strings.Join(IgnoredVpcFields(&vpc), ", "); got != "staticRoutes.ecmpMode, bfdPort (OVN runs BFD on external ports of the router only: use enableBfd)" {
		t.Errorf("got %v", got)
	}
	routes := []StaticRoute{{Index: 3, NextHop: netip.MustParseAddr("10.0.0.7")}, {Index: 5, NextHop: netip.MustParseAddr("10.0.0.8")}}
	for n, want := range []string{"", "bfdId of staticRoutes[3] (next hop 10.0.0.7 is", "bfdId of staticRoutes[3] and of 1 more (next hop 10.0.0.7 is"} {
		if got := UnmonitoredRoutes(routes[:n]); !strings.HasPrefix(got, want) || n == 0 && got != "" {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
