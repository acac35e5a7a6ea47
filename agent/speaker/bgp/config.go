// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bgp runs the BGP sessions of one node: the peers of a Config, and the prefixes that are announced to them. It wraps GoBGP.
package bgp

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Config is the wanted state of the sessions of one node.
type Config struct {
	ASN      uint32
	RouterID netip.Addr
	// Addresses of the node, at most one per family: the next hops of routes of another family than their session.
	Addresses []netip.Addr
	Peers     []Peer
}

// Peer is a router with which the node has a session.
type Peer struct {
	v1alpha1.SpeakerPeer
	Address netip.Addr
	// Source is the address of the node's side; the zero Addr if the kernel chooses it.
	Source netip.Addr
	// Password is not logged.
	Password string
	// Problem is the reason why the node cannot have the session; empty if it can.
	Problem string
	// Waits is true for a Problem that only a new pod or the kubelet can end: the existing session of the peer continues.
	Waits bool
}

// Node is what the sessions of a node depend on.
type Node struct {
	*corev1.Node
	// Interfaces are all addresses of its interfaces.
	Interfaces []netip.Addr
	// Password returns the password in a Secret.
	Password func(v1alpha1.SecretKey) (string, error)
}

// maxPassword is the limit of TCP_MD5SIG (tcp(7)), in bytes.
const maxPassword = 80

// ConfigOf returns the sessions of a node; nil if it has none.
func ConfigOf(spec *v1alpha1.Speaker, node Node) *Config {
	if spec == nil || node.Node == nil || !selects(spec.Selector(), node.Labels) {
		return nil
	}
	c := &Config{ASN: uint32(spec.ASN)} //nolint:gosec // the API server limits it to 32 bits
	for _, a := range node.Status.Addresses {
		address, err := netip.ParseAddr(a.Address)
		if err != nil || a.Type != corev1.NodeInternalIP || ofFamily(c.Addresses, address.Unmap().Is4()).IsValid() {
			continue
		}
		c.Addresses = append(c.Addresses, address.Unmap())
	}
	c.RouterID = routerID(node.Name, c.Addresses)
	seen := map[netip.Addr]bool{}
	for _, s := range spec.Peers {
		if !selects(s.NodeSelector, node.Labels) {
			continue
		}
		p := peerOf(s, node)
		if p.Problem == "" && len(p.families(c.Addresses)) == 0 {
			p.Problem = "the node has no InternalIP of the families of the peer's routes"
		}
		if !seen[p.Address] { // the API server denies other spellings of an address
			seen[p.Address] = true
			c.Peers = append(c.Peers, p)
		}
	}
	return c
}

func selects(selector, of map[string]string) bool {
	return labels.SelectorFromSet(selector).Matches(labels.Set(of))
}

func peerOf(spec v1alpha1.SpeakerPeer, node Node) Peer {
	p := Peer{SpeakerPeer: spec}
	var err error
	if p.Address, err = netip.ParseAddr(spec.Address); err != nil {
		p.Problem = "its address is invalid"
		return p
	}
	p.Address = p.Address.Unmap()
	if len(spec.SourceAddresses) > 0 {
		if p.Source = sourceOf(spec.SourceAddresses, node.Interfaces, p.Address.Is4()); !p.Source.IsValid() {
			p.Problem = "no address of the node is in sourceAddresses"
			return p
		}
	}
	if spec.Password != nil {
		switch p.Password, err = node.Password(*spec.Password); {
		case err != nil:
			p.Problem, p.Waits = err.Error(), true
		case p.Password == "" || len(p.Password) > maxPassword:
			p.Problem = fmt.Sprintf("the password in Secret %s must have 1 to %d bytes", spec.Password.Name, maxPassword)
		}
	}
	return p
}

// sourceOf returns the first address of the node in one of the CIDRs.
func sourceOf(cidrs []string, addresses []netip.Addr, is4 bool) netip.Addr {
	for _, c := range cidrs {
		prefix, err := netip.ParsePrefix(c)
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if a.Is4() == is4 && prefix.Contains(a) {
				return a
			}
		}
	}
	return netip.Addr{}
}

func ofFamily(addresses []netip.Addr, is4 bool) netip.Addr {
	for _, a := range addresses {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}

// routerID returns the BGP identifier: the IPv4 address of the node or, if it has none, a hash of its name (RFC 6286 requires only that no other
// router of the autonomous system has it).
func routerID(node string, addresses []netip.Addr) netip.Addr {
	if a := ofFamily(addresses, true); a.IsValid() {
		return a
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(node)) // never fails
	var id [4]byte
	binary.BigEndian.PutUint32(id[:], h.Sum32())
	id[0] |= 1 // no identifier is 0
	return netip.AddrFrom4(id)
}

// families returns the families of the routes that a peer gets.
func (p Peer) families(node []netip.Addr) []*api.Family {
	var families []*api.Family
	for _, is4 := range []bool{true, false} {
		own := p.Address.Is4() == is4
		wanted := len(p.Families) == 0 && (own || p.extended())
		for _, f := range p.Families {
			wanted = wanted || is4 == (f == v1alpha1.RoutesIPv4)
		}
		// Routes of the other family need a next hop.
		if wanted && (own || is4 && p.extended() || ofFamily(node, is4).IsValid()) {
			families = append(families, familyOf(is4))
		}
	}
	return families
}

func (p Peer) extended() bool { return p.ExtendedNextHop == v1alpha1.ExtendedNextHopEnabled }

func familyOf(is4 bool) *api.Family {
	if is4 {
		return &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	}
	return &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
}

// Times without a field.
const (
	// idleAfterReset is the pause in seconds after a session ended by BFD or by a NOTIFICATION.
	idleAfterReset = 5
	// deferral is how long a restarted speaker waits in seconds for the routes of peers, which it ignores, before it announces its own.
	deferral = 1
)

// session returns the peer in GoBGP's form. restarted is true for the sessions with which a process begins.
func (p Peer) session(c *Config, restarted bool) *api.Peer {
	hold := seconds(p.HoldTime, v1alpha1.DefaultHoldTime)
	session := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: p.Address.String(), PeerAsn: uint32(p.ASN), AuthPassword: p.Password}, //nolint:gosec // limited by the API
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: hold, KeepaliveInterval: max(hold/3, 1), ConnectRetry: seconds(p.ConnectRetry, v1alpha1.DefaultConnectRetry),
			IdleHoldTimeAfterReset: idleAfterReset,
		}},
		Transport: &api.Transport{
			PassiveMode: p.Connection == v1alpha1.ConnectionPassive,
			RemotePort:  uint32(cmp.Or(p.Port, v1alpha1.DefaultBGPPort)), //nolint:gosec // limited by the API
		},
	}
	if p.Source.IsValid() {
		session.Transport.LocalAddress = p.Source.String()
	}
	if p.MultihopTTL > v1alpha1.DefaultMultihopTTL {
		session.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(p.MultihopTTL)}
	}
	if r := p.GracefulRestart; r != nil {
		session.GracefulRestart = &api.GracefulRestart{
			Enabled: true, RestartTime: uint32(seconds(r.RestartTime, v1alpha1.DefaultRestartTime)), DeferralTime: deferral, //nolint:gosec // limited by the API
			LocalRestarting: restarted,
		}
	}
	for _, f := range p.families(c.Addresses) {
		session.AfiSafis = append(session.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: f, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: p.GracefulRestart != nil}},
			PrefixLimits:      &api.PrefixLimit{Family: f, MaxPrefixes: uint32(cmp.Or(p.MaxReceived, v1alpha1.DefaultMaxReceived))}, //nolint:gosec // limited by the API
		})
	}
	return session
}

func seconds(d *metav1.Duration, otherwise time.Duration) uint64 {
	if d != nil {
		otherwise = d.Duration
	}
	return uint64(otherwise.Seconds())
}
