// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/agent/speaker/bfd"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestTheSessionsOfANode(t *testing.T) {
	if c := ConfigOf(nil, testNode(nil)); c != nil {
		t.Errorf("without a spec: %+v", c)
	}
	if c := ConfigOf(&v1alpha1.Speaker{ASN: 1, NodeSelector: map[string]string{"rack": "b"}}, testNode(nil)); c != nil {
		t.Errorf("on a node that is not selected: %+v", c)
	}
	secret := &v1alpha1.SecretKey{Name: "s"}
	for name, test := range map[string]struct {
		peer    v1alpha1.SpeakerPeer
		none    bool
		source  string
		problem string
	}{
		"any node":                    {peer: v1alpha1.SpeakerPeer{Address: "192.0.2.9"}},
		"the node's rack":             {peer: v1alpha1.SpeakerPeer{Address: "192.0.2.9", NodeSelector: map[string]string{"rack": "a"}}},
		"another rack":                {peer: v1alpha1.SpeakerPeer{Address: "192.0.2.9", NodeSelector: map[string]string{"rack": "b"}}, none: true},
		"a source of the family":      {peer: v1alpha1.SpeakerPeer{Address: "2001:db8::9", SourceAddresses: []string{"192.0.2.0/24", "2001:db8::/64"}}, source: node6},
		"no source":                   {peer: v1alpha1.SpeakerPeer{Address: "192.0.2.9", SourceAddresses: []string{"198.51.100.0/24"}}, problem: "no address of the node is in sourceAddresses"},
		"a password":                  {peer: v1alpha1.SpeakerPeer{Address: "192.0.2.9", Password: secret}},
		"a Secret that is missing":    {peer: v1alpha1.SpeakerPeer{Address: "192.0.2.9", Password: &v1alpha1.SecretKey{Name: "other"}}, problem: "the Secret other does not exist"},
		"a password that is empty":    {peer: v1alpha1.SpeakerPeer{Address: "192.0.2.9", Password: &v1alpha1.SecretKey{Name: "empty"}}, problem: "the password in Secret empty must have 1 to 80 bytes"},
		"a password that is too long": {peer: v1alpha1.SpeakerPeer{Address: "192.0.2.9", Password: &v1alpha1.SecretKey{Name: "long"}}, problem: "the password in Secret long must have 1 to 80 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			node := testNode(map[string]string{"s": "secret", "empty": "", "long": strings.Repeat("x", 81)})
			c := ConfigOf(&v1alpha1.Speaker{ASN: 65001, Peers: []v1alpha1.SpeakerPeer{test.peer}}, node)
			if c == nil || c.ASN != 65001 || c.RouterID.String() != node4 || len(c.Addresses) != 2 {
				t.Fatalf("the sessions are %+v", c)
			}
			if test.none {
				if len(c.Peers) != 0 {
					t.Errorf("the peers are %+v", c.Peers)
				}
				return
			}
			source := ""
			if p := c.Peers[0]; p.Source.IsValid() {
				source = p.Source.String()
			}
			if p := c.Peers[0]; source != test.source || p.Problem != test.problem {
				t.Errorf("source %q, want %q; problem %q, want %q", source, test.source, p.Problem, test.problem)
			}
		})
	}
}

func TestAPeerIsConfiguredOnce(t *testing.T) {
	c := with(v1alpha1.SpeakerPeer{Address: "2001:db8::9", ASN: 1}, v1alpha1.SpeakerPeer{Address: "2001:DB8:0::9", ASN: 2}, v1alpha1.SpeakerPeer{Address: "192.0.2.9"})
	if len(c.Peers) != 2 || c.Peers[0].ASN != 1 {
		t.Errorf("the peers are %+v", c.Peers)
	}
}

func TestAPeerWithoutAFamilyHasNoSession(t *testing.T) {
	node := testNode(nil)
	node.Status.Addresses = node.Status.Addresses[:1] // IPv4
	for _, test := range []struct {
		families []v1alpha1.RouteFamily
		problem  string
	}{
		{[]v1alpha1.RouteFamily{v1alpha1.RoutesIPv6}, "the node has no InternalIP of the families of the peer's routes"},
		{[]v1alpha1.RouteFamily{v1alpha1.RoutesIPv4, v1alpha1.RoutesIPv6}, ""},
	} {
		c := ConfigOf(&v1alpha1.Speaker{ASN: 65001, Peers: []v1alpha1.SpeakerPeer{{Address: router4, Families: test.families}}}, node)
		if got := c.Peers[0].Problem; got != test.problem {
			t.Errorf("%v: the problem is %q, want %q", test.families, got, test.problem)
		}
	}
}

func TestDefaultsOfASession(t *testing.T) {
	p := Peer{SpeakerPeer: v1alpha1.SpeakerPeer{ASN: 65002}, Address: netip.MustParseAddr(router4)}
	s := p.session(&Config{}, true)
	if c := s.Timers.Config; c.HoldTime != 90 || c.KeepaliveInterval != 30 || c.ConnectRetry != 10 || s.Transport.RemotePort != 179 || s.Transport.PassiveMode {
		t.Errorf("the defaults are %+v, %+v", c, s.Transport)
	}
	if s.EbgpMultihop != nil || s.Bfd != nil || s.GracefulRestart != nil || s.AfiSafis[0].PrefixLimits.MaxPrefixes != v1alpha1.DefaultMaxReceived {
		t.Errorf("features that are off by default: %+v", s)
	}
	p.BFD, p.MultihopTTL, p.HoldTime = &v1alpha1.BFD{}, 4, &metav1.Duration{Duration: 3 * time.Second}
	s = p.session(&Config{}, false)
	c := Config{Peers: []Peer{p, {Address: netip.MustParseAddr(router6)}}}
	if s.Bfd != nil || s.EbgpMultihop.MultihopTtl != 4 || s.Timers.Config.KeepaliveInterval != 1 {
		t.Errorf("the session is %+v", s)
	}
	if b := c.bfd(); len(b) != 1 || b[p.Address] != (bfd.Config{MinTransmit: 300 * time.Millisecond, MinReceive: 300 * time.Millisecond, Multiplier: 3}) {
		t.Errorf("BFD is %+v", b)
	}
}

func TestRouterIDs(t *testing.T) {
	v6 := []netip.Addr{netip.MustParseAddr(node6)}
	a, b := routerID("a", v6), routerID("b", v6)
	if !a.Is4() || a == b || a.As4()[0] == 0 || a != routerID("a", v6) {
		t.Errorf("identifiers of nodes without IPv4: %s and %s", a, b)
	}
}
