// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"net"
	"net/netip"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// TestSharedAddressesLeaveThroughTheNodeThatSends sends packets from addresses that pods of two nodes share. No pod announces them: the node's
// policy does not depend on the virtual port.
func TestSharedAddressesLeaveThroughTheNodeThatSends(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	shared := []netip.Addr{netip.MustParseAddr("10.16.1.200"), netip.MustParseAddr("fd00:16::200")}
	nodes := []string{"n1", "n2"}
	var chassis []*nbtest.Chassis
	for i, node := range nodes {
		name := "on-" + node
		e.apply(pod(name), podOf(translate.PodInputs{Name: name, Node: node, Subnet: "s1"}, i))
		chassis = append(chassis, northd.Chassis(node, map[string]string{name + ".ns": name, "node-" + node: ""}))
	}
	e.apply(translate.VipOwner("shared"), translate.Vip(translate.VipInputs{
		Name: "shared", Subnet: "s1", Vpc: kubeovnv1.DefaultVpc, Addresses: shared, Parents: []string{"on-n1.ns", "on-n2.ns"},
	}))
	router, err := net.ParseMAC(gatewayMAC(server, "s1"))
	if err != nil {
		t.Fatal(err)
	}
	outside := []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1")}
	for i, node := range nodes {
		chassis[i].Sync()
		for family, address := range shared {
			payload := []byte("from " + node + " by " + address.String())
			chassis[i].Send("on-"+node+".ns", nbtest.Datagram{
				SrcMAC: net.HardwareAddr{2, 1, 0, 0, 0, byte(2 + i)}, DstMAC: router, Payload: payload,
				Src: netip.AddrPortFrom(address, 4000), Dst: netip.AddrPortFrom(outside[family], 53),
			}.Frames()...)
			chassis[i].Receives("node-"+node, payload)
		}
	}
}
