// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

func TestVpc(t *testing.T) { rowsOf(t, "vpc-", Vpc) }

func TestGateway(t *testing.T) { rowsOf(t, "gateway-", Gateway) }

func TestSubnet(t *testing.T) { rowsOf(t, "subnet-", Subnet) }

func TestNode(t *testing.T) {
	type input struct {
		Name, Vpc, Switch      string
		MAC                    hardwareAddr
		Addresses, InternalIPs []netip.Addr
	}
	rowsOf(t, "node-", func(in input) []desired.Row {
		return Node(NodeInputs{
			Name: in.Name, Vpc: in.Vpc, Switch: in.Switch,
			MAC: in.MAC.HardwareAddr, Addresses: in.Addresses, InternalIPs: in.InternalIPs,
		})
	})
}

func TestVpcGateway(t *testing.T) {
	type input struct {
		Vpc, Node           string
		NextHops, Addresses []netip.Addr
		MAC                 hardwareAddr
		Services, Outgoing  []netip.Prefix
		RouteTables         []string
		Routes              []StaticRoute
	}
	rowsOf(t, "transit-", func(in input) []desired.Row {
		return VpcGateway(VpcGatewayInputs{
			Vpc: in.Vpc, Node: in.Node, NextHops: in.NextHops, Addresses: in.Addresses, MAC: in.MAC.HardwareAddr,
			Services: in.Services, Outgoing: in.Outgoing, RouteTables: in.RouteTables, Routes: in.Routes,
		})
	})
}

func TestVpcGatewayLeaseIsReadBack(t *testing.T) {
	in := VpcGatewayInputs{
		Vpc: "blue", Node: "n1", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9},
		Addresses: []netip.Addr{netip.MustParseAddr("100.64.0.9"), netip.MustParseAddr("fd00:100:64::9")},
	}
	var leases []VpcGatewayLease
	for _, row := range VpcGateway(in) {
		if port, ok := row.Model.(*nb.LogicalRouterPort); ok {
			if lease, ok := ReadVpcGatewayLease(VpcGatewayOwner("blue"), port); ok {
				leases = append(leases, lease)
			}
		}
	}
	if len(leases) != 1 || leases[0].Vpc != in.Vpc || !slices.Equal(leases[0].Addresses, in.Addresses) || leases[0].MAC.String() != in.MAC.String() {
		t.Errorf("read %v of the ports of %v", leases, in)
	}
}

// TestSetNames checks the names that matches depend on: they are identifiers, and two sets never share a name.
func TestSetNames(t *testing.T) {
	identifier := regexp.MustCompile(`^[a-zA-Z_.][a-zA-Z_.0-9]*$`)
	seen := map[string]desired.Ref{}
	for _, node := range []string{"a-b", "a.b", "a", "1", "worker-with-a-very-long-name.example.com"} {
		for _, vpc := range []string{"ovn-cluster", "b", "b-a"} {
			for _, r := range []desired.Ref{NodeEgressRef(vpc, node, ipfamily.IPv4), NodeEgressRef(vpc, node, ipfamily.IPv6)} {
				name := setName(r)
				if !identifier.MatchString(name) {
					t.Errorf("set %v is named %q, which is no identifier", r, name)
				}
				if other, ok := seen[name]; ok {
					t.Errorf("sets %v and %v are both named %q", r, other, name)
				}
				seen[name] = r
			}
		}
	}
}

func TestGatewayMACIsStableAndUnicast(t *testing.T) {
	a, b := gatewayMAC(netip.MustParseAddr("10.16.0.1")), gatewayMAC(netip.MustParseAddr("fd00::1"))
	if a.String() != gatewayMAC(netip.MustParseAddr("10.16.0.1")).String() || a.String() == b.String() {
		t.Errorf("MAC addresses %s and %s do not follow from the gateways", a, b)
	}
	if a[0]&3 != 2 {
		t.Errorf("MAC address %s is not a locally administered unicast address", a)
	}
}

// TestPortNames checks that two ports between routers and switches never have the same name if taken names are known, and that
// none has the name of a pod's or a node's port.
func TestPortNames(t *testing.T) {
	for _, tt := range []struct {
		vpc, subnet      string
		taken            bool
		router, onSwitch string
	}{
		{"ovn-cluster", "ovn-default", false, "ovn-cluster-ovn-default", "ovn-default-ovn-cluster"},
		{"a", "b-c", true, "a-b-c_", "b-c-a_"},
		{"n1", "node", false, "n1-node", "node-n1_"},
		{"z.y", "x", false, "z.y-x_", "x-z.y_"},
	} {
		router, onSwitch := PortNames(tt.vpc, tt.subnet, tt.taken)
		for got, want := range map[string]string{router: tt.router, onSwitch: tt.onSwitch} {
			if hash, ok := strings.CutPrefix(got, want); !ok || strings.HasSuffix(want, "_") != (len(hash) == 8) {
				t.Errorf("a port of VPC %s and subnet %s is named %s, want %s", tt.vpc, tt.subnet, got, want)
			}
		}
	}
	one, _ := PortNames("a", "b-c", true)
	other, _ := PortNames("a-b", "c", true)
	if one == other {
		t.Errorf("two ports are named %s", one)
	}
}
