// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/underlay"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// externalIDs returns external_ids of Open_vSwitch.
func externalIDs(n *agenttest.Node) map[string]string {
	var rows []vswitch.OpenvSwitch
	must.Succeed(n.TB, n.OVS.List(n.Context(), &rows))
	return rows[0].ExternalIDs
}

// answers writes a result, like `kiln ovs`.
func answers(n *agenttest.Node, provider string, result providerbridge.Result) {
	var rows []vswitch.OpenvSwitch
	must.Succeed(n.TB, n.OVS.List(n.Context(), &rows))
	row, key := &rows[0], providerbridge.ResultKey(provider)
	operations, err := n.OVS.Where(row).Mutate(row,
		model.Mutation{Field: &row.ExternalIDs, Mutator: ovsdb.MutateOperationDelete, Value: []string{key}},
		model.Mutation{Field: &row.ExternalIDs, Mutator: ovsdb.MutateOperationInsert, Value: map[string]string{key: result.Format()}})
	must.Succeed(n.TB, err)
	_, err = n.OVS.Transact(n.Context(), operations...)
	must.Succeed(n.TB, err)
}

// reported returns what the Node says about a provider network.
func reported(n *agenttest.Node, provider string) (ready, mtu, cause string) {
	node := &corev1.Node{}
	must.Succeed(n.TB, n.API.Get(n.Context(), client.ObjectKey{Name: agenttest.NodeName}, node))
	return node.Labels[v1.ProviderKey(provider, v1.ProviderReady)], node.Labels[v1.ProviderKey(provider, v1.ProviderMTU)],
		node.Annotations[v1.ProviderKey(provider, v1.ProviderError)]
}

func TestProviderNetworksAreRequestedAndReported(t *testing.T) {
	n := agenttest.Serving(t)
	pn := &v1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}, Spec: v1.ProviderNetworkSpec{
		DefaultInterface: "eth1", CustomInterfaces: []v1.CustomInterface{{Interface: "eth2", Nodes: []string{agenttest.NodeName}}},
	}}
	other := &v1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net2"}, Spec: v1.ProviderNetworkSpec{
		DefaultInterface: "eth1", ExcludeNodes: []string{agenttest.NodeName},
	}}
	must.Succeed(t, n.API.Create(t.Context(), pn))
	must.Succeed(t, n.API.Create(t.Context(), other))
	var request providerbridge.Request
	n.Eventually("the bridge is requested", func() bool {
		requests, _ := providerbridge.Requests(externalIDs(n))
		request = requests["net1"]
		return len(requests) == 1 && request.Interface == "eth2" && strings.HasPrefix(request.Attempt, string(pn.UID))
	})
	n.Eventually("the node waits", func() bool {
		_, _, cause := reported(n, "net1")
		return strings.HasPrefix(cause, "Waiting: ")
	})
	if request.Turn || request.NodeInterface != "" {
		t.Errorf("the interface may move: %+v", request)
	}
	n.Eventually("the node gets its turn", func() bool {
		must.Succeed(t, n.API.Get(t.Context(), client.ObjectKeyFromObject(pn), pn))
		pn.Spec.NodeInterface = v1.NodeInterfaceStatic
		return n.API.Update(t.Context(), pn) == nil
	})
	pn.Status.Turn = &v1.ProviderNetworkTurn{Node: agenttest.NodeName, Generation: pn.Generation - 1} // of another specification
	must.Succeed(t, n.API.Status().Update(t.Context(), pn))
	n.Eventually("the consent is requested", func() bool {
		requests, _ := providerbridge.Requests(externalIDs(n))
		request = requests["net1"]
		return request.NodeInterface == providerbridge.NodeInterfaceStatic && !request.Turn
	})
	pn.Status.Turn.Generation = pn.Generation
	must.Succeed(t, n.API.Status().Update(t.Context(), pn))
	n.Eventually("the turn is passed on", func() bool {
		requests, _ := providerbridge.Requests(externalIDs(n))
		request = requests["net1"]
		return request.Turn
	})
	answers(n, "net1", providerbridge.Result{
		State: providerbridge.StateFailed, Reason: providerbridge.ReasonNoInterface, Message: "no eth2", Interface: "eth2", Attempt: request.Attempt,
	})
	n.Eventually("the cause is reported", func() bool {
		_, _, cause := reported(n, "net1")
		return cause == "InterfaceNotFound: no eth2"
	})

	pod := n.CreatePod("office")
	subnet := &v1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: v1.SubnetSpec{CIDRBlock: "10.30.0.0/24", Gateway: "10.30.0.254", Vlan: "v"}}
	n.Create(subnet)
	n.WriteNetwork(pod, officeNetwork(pod))
	c := n.Sandbox(pod, agenttest.NewID())
	if _, err := c.Add(); err == nil || !strings.Contains(err.Error(), "ProviderNetwork net1 is not ready on this node") {
		t.Errorf("ADD without a bridge: %v", err)
	}
	// The other end of this veth is the physical network, on which a host has the pod's address.
	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth2"}, PeerName: "phys"}))
	uplink, err := netlink.LinkByName("eth2")
	must.Succeed(t, err)
	must.Succeed(t, netlink.LinkSetUp(uplink))
	t.Cleanup(func() { _ = netlink.LinkDel(uplink) })
	physical := n.Beyond("phys", func(link netlink.Link) error {
		return agenttest.AddAddresses(link, netip.MustParsePrefix("10.30.0.10/24"), netip.MustParsePrefix("fd00:30::10/64"))
	})
	neighbours := &underlay.Neighbours{}
	for _, address := range []string{"10.30.0.10", "fd00:30::10"} {
		n.Eventually("the host with "+address+" is found", func() bool { // IPv6 addresses are tentative for a moment
			holder, _, err := neighbours.Find(n.Context(), underlay.Look{Interface: "eth2", Addresses: []netip.Addr{netip.MustParseAddr(address)}})
			return err == nil && holder != nil && holder.Address.String() == address
		})
	}
	answers(n, "net1", providerbridge.Result{State: providerbridge.StateReady, Interface: "eth2", Attempt: request.Attempt, MTU: 1480, Moved: 2})
	n.Eventually("the move is an event of the node", func() bool {
		var events corev1.EventList
		must.Succeed(t, n.API.List(t.Context(), &events))
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "InterfaceMoved" && strings.Contains(e.Message, "bridge br-net1 has taken over 2 addresses of interface eth2")
		})
	})
	n.Eventually("the node is ready", func() bool {
		ready, mtu, cause := reported(n, "net1")
		return ready == "true" && mtu == "1480" && cause == ""
	})
	answers(n, "net1", providerbridge.Result{
		State: providerbridge.StateReady, Interface: "eth2", Attempt: request.Attempt, MTU: 1480, Moved: 2, Message: "eth2 has got fd00::1",
	})
	n.Eventually("an address that the network does not reach is reported", func() bool {
		ready, _, cause := reported(n, "net1")
		return ready == "true" && cause == "AddressNotReached: eth2 has got fd00::1"
	})
	answers(n, "net1", providerbridge.Result{State: providerbridge.StateReady, Interface: "eth2", Attempt: request.Attempt, MTU: 1480, Moved: 2})
	n.Eventually("the address is no longer there", func() bool {
		ready, _, cause := reported(n, "net1")
		return ready == "true" && cause == ""
	})
	if _, err := c.Add(); err == nil || !strings.Contains(err.Error(), "has address 10.30.0.10: add it to excludeIps of subnet office") {
		t.Errorf("ADD with the address of another host: %v", err)
	}
	address := func(change func(netlink.Link, *netlink.Addr) error, ip net.IP) {
		must.Succeed(t, physical.Do(func(ns.NetNS) error {
			link, err := netlink.LinkByName("phys")
			if err != nil {
				return err
			}
			return change(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}})
		}))
	}
	silent := func() string {
		node := &corev1.Node{}
		must.Succeed(t, n.API.Get(n.Context(), client.ObjectKey{Name: agenttest.NodeName}, node))
		return node.Annotations[v1.ProviderKey("net1", v1.ProviderSilentGateways)]
	}
	address(netlink.AddrDel, net.IPv4(10, 30, 0, 10))
	if _, err := c.Add(); err == nil || !strings.Contains(err.Error(), "GatewayNotAnswering: gateway 10.30.0.254 of subnet office") {
		t.Errorf("ADD without a gateway: %v", err)
	}
	n.Eventually("the gateway is reported", func() bool { return silent() == "office/10.30.0.254" })
	n.Change("office", func(s *v1.SubnetSpec) { s.DisableGatewayCheck = true })
	n.Eventually("a pod starts without the check", func() bool {
		_, err := c.Add()
		return err == nil
	})
	c.MustDel()
	n.Change("office", func(s *v1.SubnetSpec) { s.DisableGatewayCheck = false })
	address(netlink.AddrAdd, net.IPv4(10, 30, 0, 254))
	n.Eventually("a pod starts with a gateway that answers, and it is no longer reported", func() bool {
		_, err := c.Add()
		return err == nil && silent() == ""
	})
	c.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil && link.Attrs().MTU != 1480 {
			t.Errorf("the MTU of an underlay pod is %d, want the interface's", link.Attrs().MTU)
		}
		return err
	})
	followsTheOverlay(n, c, subnet)
	c.MustDel()

	must.Succeed(t, n.API.Delete(t.Context(), pn))
	n.Eventually("the request and the reports are removed", func() bool {
		requests, _ := providerbridge.Requests(externalIDs(n))
		ready, mtu, cause := reported(n, "net1")
		return len(requests) == 0 && ready+mtu+cause == ""
	})
}

// officeNetwork is the network of a pod in the underlay subnet office.
func officeNetwork(pod *corev1.Pod) v1.PodNetwork {
	return v1.PodNetwork{
		UID: pod.UID, Allocated: true, Routed: true, ProviderNetwork: "net1", LogicalSwitch: "office", LogicalRouter: v1.DefaultVpc,
		Addresses: []netip.Addr{netip.MustParseAddr("10.30.0.10")}, MAC: net.HardwareAddr{2, 0, 0, 0x30, 0, 10},
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.30.0.0/24")}, Gateways: []netip.Addr{netip.MustParseAddr("10.30.0.254")},
	}
}
