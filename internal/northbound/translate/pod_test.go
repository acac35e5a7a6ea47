// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

type podInput struct {
	Namespace, Name, Node, Subnet, Vpc string

	UID          string
	Others       []string
	Addresses    []netip.Addr
	MAC          hardwareAddr
	PortSecurity bool
	Quiet        bool
	Vips         []netip.Addr
	Shared       []netip.Addr
	NorthGateway []netip.Addr
	Unknown      bool
	DHCP         []netip.Prefix
	Policy       PodPolicy
	OwnDHCP      []PodDHCP

	Ingress, Egress Meter
}

func (in podInput) inputs() PodInputs {
	return PodInputs{
		Namespace: in.Namespace, Name: in.Name, UID: in.UID, Node: in.Node, Others: in.Others,
		Subnet: in.Subnet, Vpc: in.Vpc,
		Addresses: in.Addresses, MAC: in.MAC.HardwareAddr, PortSecurity: in.PortSecurity, Quiet: in.Quiet, DHCP: in.DHCP, OwnDHCP: in.OwnDHCP, Vips: in.Vips, Shared: in.Shared,
		NorthGateway: in.NorthGateway, Unknown: in.Unknown, Policy: in.Policy,
		Ingress: in.Ingress, Egress: in.Egress,
	}
}

func TestPod(t *testing.T) {
	rowsOf(t, "pod-", func(in podInput) []desired.Row { return Pod(in.inputs()) })
}

func TestPodAllocationIsTheAllocationOfThePort(t *testing.T) {
	in := podInput{
		Namespace: "shop", Name: "web.0", UID: "u1", Node: "n1", Subnet: "s1", Vpc: "ovn-cluster", PortSecurity: true,
		Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.2"), netip.MustParseAddr("fd00::2")},
	}
	if err := in.MAC.UnmarshalText([]byte("0a:00:00:00:00:02")); err != nil {
		t.Fatal(err)
	}
	for _, in.Quiet = range []bool{false, true} {
		got, ok := ReadPortAllocation(Pod(in.inputs())[0].Model.(*nb.LogicalSwitchPort))
		if !ok {
			t.Fatal("the port cannot be read")
		}
		want := PortAllocation{Port: "web.0.shop", Subnet: "s1", UID: "u1", Addresses: in.Addresses, MAC: in.MAC.HardwareAddr}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("allocation differs (-want +got):\n%s", diff)
		}
	}
}

func TestPortsThatHoldNoAllocation(t *testing.T) {
	for name, addresses := range map[string][]string{
		"without addresses":            nil,
		"with a MAC address alone":     {"0a:00:00:00:00:02"},
		"with an address to be chosen": {"0a:00:00:00:00:02 dynamic"},
		"of a router":                  {"router"},
	} {
		t.Run(name, func(t *testing.T) {
			if allocation, ok := ReadPortAllocation(&nb.LogicalSwitchPort{Addresses: addresses}); ok {
				t.Errorf("read %+v", allocation)
			}
		})
	}
}
