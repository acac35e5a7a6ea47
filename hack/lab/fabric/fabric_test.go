// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/kiln-net/kiln/hack/lab/topology"
)

// maxLinkName is IFNAMSIZ without the terminating zero, netdevice(7).
const maxLinkName = 15

func TestEveryCableOfTheLargestLabHasNamesOfItsOwnThatTheKernelTakes(t *testing.T) {
	top, err := topology.New(topology.MaxControlPlanes, topology.MaxWorkers)
	if err != nil {
		t.Fatal(err)
	}
	cables := worldCables()
	for _, n := range top.Nodes() {
		cables = append(cables, nodeCables(n, false)...)
	}
	ports, ends, hardware := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, c := range cables {
		if len(c.port) > maxLinkName || len(c.link) > maxLinkName || len(c.bridge) > maxLinkName {
			t.Errorf("a name of %+v is too long for an interface", c)
		}
		if ports[c.port] || ends[c.netns+"/"+c.link] {
			t.Errorf("two cables are called %s or end at %s of %q", c.port, c.link, c.netns)
		}
		if mac := c.hardwareAddr().String(); hardware[mac] {
			t.Errorf("%s has another's hardware address, %s", c.port, mac)
		} else {
			hardware[mac] = true
		}
		ports[c.port], ends[c.netns+"/"+c.link] = true, true
	}
}

func TestOnlyManagementLeadsOutOfANode(t *testing.T) {
	top, err := topology.New(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range nodeCables(top.Nodes()[0], false) {
		wantAddresses, wantGateways := 2, 0
		switch c.link {
		case "eth0":
			wantGateways = 2
		case "eth2":
			wantAddresses = 0
		}
		if len(c.addresses) != wantAddresses || len(c.gateways) != wantGateways {
			t.Errorf("%s has addresses %v and gateways %v", c.link, c.addresses, c.gateways)
		}
	}
}

func TestTheSwitchHasTrunksToNodesAndAccessPortsForOthers(t *testing.T) {
	top, err := topology.New(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"c1.eth2": nil, "w1.eth2": nil, "trunk": {"trunks=30,40"}}
	for _, v := range topology.VLANs {
		access := []string{"vlan_mode=access", fmt.Sprintf("tag=%d", v.Tag)}
		want["router."+v.Name], want[v.HostName()] = access, access
	}
	if got := SwitchPorts(top); !reflect.DeepEqual(got, want) {
		t.Errorf("several interfaces: %v, want %v", got, want)
	}
	top.SingleNIC = true
	delete(want, "c1.eth2")
	delete(want, "w1.eth2")
	if got := SwitchPorts(top); !reflect.DeepEqual(got, want) {
		t.Errorf("one interface: %v, want %v", got, want)
	}
}
