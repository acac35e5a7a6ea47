// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	gobgp "github.com/osrg/gobgp/v4/pkg/server"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/agent/speaker/routes"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// Addresses on the loopback interface: of the node, and of a router.
const (
	node4, node6     = "192.0.2.1", "2001:db8::1"
	router4, router6 = "192.0.2.2", "2001:db8::2"
)

func TestMain(m *testing.M) {
	if !nodetest.Inside() {
		code, err := nodetest.Enter()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}
	if err := errors.Join(nodetest.Mount(), addAddresses()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	const why = "GoBGP waits five seconds after the end of a session"
	os.Exit(eventually.Main(m, eventually.Allowed{
		"TestRoutesOfARouterAreIgnored": {Why: why, Base: 12 * time.Second}, "TestARouterKeepsRoutesDuringARestart": {Why: why, Base: 12 * time.Second},
		"TestHostileRoutersHarmNoOtherSession": {Why: why, Base: 15 * time.Second},
	}))
}

func addAddresses() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	errs := []error{netlink.LinkSetUp(lo)}
	for _, a := range []string{node4 + "/32", node6 + "/128", router4 + "/32", router6 + "/128"} {
		address, err := netlink.ParseAddr(a)
		if err == nil {
			err = netlink.AddrAdd(lo, address)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// router is a real BGP router, GoBGP in another server.
type router struct {
	*testing.T
	server *gobgp.BgpServer
	port   int32
}

// routerPort is the port of the next router, and nodePort that of the next node with passive sessions.
var routerPort, nodePort int32 = 1790, 2790

// newRouter starts a router that listens on both of its addresses, with one session for each of its peers.
func newRouter(t *testing.T, asn uint32, peers ...*api.Peer) *router {
	t.Helper()
	routerPort++
	r := &router{T: t, server: gobgp.NewBgpServer(gobgp.LoggerOption(slog.New(slog.DiscardHandler), nil)), port: routerPort}
	go r.server.Serve()
	t.Cleanup(r.server.Stop)
	must.Succeed(t, r.server.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{
		Asn: asn, RouterId: router4, ListenPort: r.port, ListenAddresses: []string{router4, router6},
	}}))
	for _, p := range peers {
		must.Succeed(t, r.server.AddPeer(t.Context(), &api.AddPeerRequest{Peer: p}))
	}
	return r
}

// session returns the router's side of a session with the node.
func session(node string, asn uint32, change ...func(*api.Peer)) *api.Peer {
	p := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: node, PeerAsn: asn},
		Transport: &api.Transport{PassiveMode: true, LocalAddress: router4},
		Timers:    &api.Timers{Config: &api.TimersConfig{HoldTime: 9, ConnectRetry: 1, IdleHoldTimeAfterReset: 1}},
		AfiSafis:  []*api.AfiSafi{family(true), family(false)},
	}
	if netip.MustParseAddr(node).Is6() {
		p.Transport.LocalAddress = router6
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func family(is4 bool) *api.AfiSafi {
	return &api.AfiSafi{Config: &api.AfiSafiConfig{Family: familyOf(is4), Enabled: true}}
}

// routes returns the routes of the router as "prefix via next hop", with further attributes.
func (r *router) routes() string {
	var all []string
	for _, f := range []packet.Family{packet.RF_IPv4_UC, packet.RF_IPv6_UC} {
		err := r.server.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: f}, func(p packet.NLRI, paths []*apiutil.Path) {
			for _, path := range paths {
				text := fmt.Sprintf("%s via %s", p, nextHop(path))
				for _, a := range path.Attrs {
					switch a := a.(type) {
					case *packet.PathAttributeCommunities:
						text += fmt.Sprintf(" communities %d", a.Value)
					case *packet.PathAttributeLocalPref:
						text += fmt.Sprintf(" preference %d", a.Value)
					case *packet.PathAttributeMultiExitDisc:
						text += fmt.Sprintf(" MED %d", a.Value)
					}
				}
				if path.Stale {
					text += " stale"
				}
				all = append(all, text)
			}
		})
		must.Succeed(r.T, err)
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

// has waits until the router has these routes.
func (r *router) has(want ...string) {
	r.Helper()
	slices.Sort(want)
	eventually.Wait{}.Empty(r.T, func() string {
		if got := r.routes(); got != fmt.Sprint(want) {
			return fmt.Sprintf("the router has %s, want %s", got, want)
		}
		return ""
	})
}

// prefers waits until the router has this number of routes to each of two prefixes, and the best one has this MED.
func (r *router) prefers(med uint32, paths int) {
	r.Helper()
	eventually.Wait{}.Empty(r.T, func() string {
		found := 0
		for _, f := range []packet.Family{packet.RF_IPv4_UC, packet.RF_IPv6_UC} {
			must.Succeed(r.T, r.server.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: f}, func(_ packet.NLRI, all []*apiutil.Path) {
				for _, path := range all {
					for _, a := range path.Attrs {
						if a, ok := a.(*packet.PathAttributeMultiExitDisc); ok && path.Best && a.Value == med && len(all) == paths {
							found++
						}
					}
				}
			}))
		}
		if found != 2 {
			return fmt.Sprintf("the router prefers the MED %d of %d routes to %d prefixes of 2: %s", med, paths, found, r.routes())
		}
		return ""
	})
}

// send makes the router announce n prefixes.
func (r *router) send(n int) {
	r.Helper()
	var all []netip.Prefix
	for i := range n {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 32))
	}
	_, err := r.server.AddPath(apiutil.AddPathRequest{Paths: paths(plain(all), false)})
	must.Succeed(r.T, err)
}

// newServer returns the sessions of the node.
func newServer(t *testing.T) *Server {
	nodePort++
	s := NewServer(slog.New(slog.DiscardHandler), nodePort)
	t.Cleanup(func() { must.Succeed(t, s.Configure(t.Context(), nil)) })
	return s
}

// with returns the Config of the node with these peers.
func with(peers ...v1alpha1.SpeakerPeer) *Config {
	return ConfigOf(&v1alpha1.Speaker{ASN: 65001, Peers: peers}, testNode(nil))
}

func testNode(passwords map[string]string) Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{v1alpha1.SpeakerNodeLabel: "true", "rack": "a"}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: node4}, {Type: corev1.NodeInternalIP, Address: node6}}
	return Node{
		Node: n, Interfaces: []netip.Addr{netip.MustParseAddr(node4), netip.MustParseAddr(node6)},
		Password: func(k v1alpha1.SecretKey) (string, error) {
			if p, found := passwords[k.Name]; found {
				return p, nil
			}
			return "", fmt.Errorf("the Secret %s does not exist", k.Name)
		},
	}
}

// peer returns a peer of the spec at an address of a router.
func (r *router) peer(address string, asn int64, change ...func(*v1alpha1.SpeakerPeer)) v1alpha1.SpeakerPeer {
	p := v1alpha1.SpeakerPeer{
		Address: address, ASN: asn, Port: r.port, HoldTime: &metav1.Duration{Duration: 9 * time.Second}, ConnectRetry: &metav1.Duration{Duration: time.Second},
		SourceAddresses: []string{node4 + "/32", node6 + "/128"},
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func routesTo(texts ...string) []routes.Route { return plain(prefixes(texts...)) }

// established waits until every session of the node has this state.
func established(t *testing.T, s *Server, want bool) {
	t.Helper()
	eventually.Wait{}.Empty(t, func() string {
		state, err := s.State(t.Context())
		must.Succeed(t, err)
		for _, p := range state.Peers {
			if p.Established != want {
				return fmt.Sprintf("the session with %s is %s: %s", p.Address, p.Session, p.Message)
			}
		}
		return ""
	})
}
