// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/kiln-net/kiln/internal/node/bgpstate"
)

func TestTheStateOfASpeaker(t *testing.T) {
	var out bytes.Buffer
	err := writeBGP(&out, bgpstate.State{
		Node: "worker-1",
		Peers: []bgpstate.Peer{
			{
				Address: netip.MustParseAddr("192.0.2.254"), ASN: 64513, Established: true, Session: "established", BFD: "up",
				Announced: map[string]uint64{"ipv6": 1, "ipv4": 2}, Received: map[string]uint64{"ipv4": 0},
				AnnouncedRoutes: []bgpstate.Route{{Prefix: "10.1.0.0/24", NextHop: "192.0.2.1"}},
			},
			{Address: netip.MustParseAddr("2001:db8::1"), ASN: 64514, Session: "idle", Message: "closed\x1b[31m"},
		},
		Prefixes: []bgpstate.Prefix{{Prefix: "10.1.0.0/24", Object: "Subnet web"}},
		Refused:  []bgpstate.Refusal{{Object: "Service shop/web", Reason: "it is in VPC red"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `node worker-1
  PEER         AS     SESSION      BFD  ANNOUNCED       RECEIVED  MESSAGE
  192.0.2.254  64513  established  up   ipv4 2, ipv6 1  ipv4 0    
  2001:db8::1  64514  idle         -    -               -         closed?[31m
  to 192.0.2.254  10.1.0.0/24       via 192.0.2.1
  announced       10.1.0.0/24       Subnet web
  refused         Service shop/web  it is in VPC red
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestBGPWithoutASpeaker(t *testing.T) {
	w := newWorld(t)
	if _, err := w.ko("bgp"); err == nil || err.Error() != "no pod of kube-ovn-speaker runs: set spec.speaker of the OVNCluster, and label nodes with ovn.kubernetes.io/bgp=true" {
		t.Errorf("the error is %v", err)
	}
}
