// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"strconv"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/agent/speaker/bgp"
)

// Labels of Kube-OVN's metrics.
var (
	peerUp          = prometheus.NewDesc("kube_ovn_speaker_bgp_peer_up", "1 if the BGP session is established.", []string{"node", "peer", "peer_asn"}, nil)
	peerState       = prometheus.NewDesc("kube_ovn_speaker_bgp_peer_session_state", "State of the BGP session: 1 idle, 2 connect, 3 active, 4 opensent, 5 openconfirm, 6 established.", []string{"node", "peer", "peer_asn"}, nil)
	peerFlaps       = prometheus.NewDesc("kube_ovn_speaker_bgp_peer_flap_count", "Ends of the BGP session.", []string{"node", "peer", "peer_asn"}, nil)
	peerQueue       = prometheus.NewDesc("kube_ovn_speaker_bgp_peer_out_queue", "BGP messages that wait to be sent.", []string{"node", "peer", "peer_asn"}, nil)
	peerReceived    = prometheus.NewDesc("kube_ovn_speaker_bgp_peer_received_messages", "BGP messages received.", []string{"node", "peer", "type"}, nil)
	peerSent        = prometheus.NewDesc("kube_ovn_speaker_bgp_peer_sent_messages", "BGP messages sent.", []string{"node", "peer", "type"}, nil)
	bfdReceived     = prometheus.NewDesc("kube_ovn_speaker_bfd_server_received_packets", "BFD packets received.", []string{"node"}, nil)
	bfdDropped      = prometheus.NewDesc("kube_ovn_speaker_bfd_server_received_drop", "BFD packets dropped.", []string{"node"}, nil)
	bfdErrors       = prometheus.NewDesc("kube_ovn_speaker_bfd_server_received_error", "Failed reads of BFD packets.", []string{"node"}, nil)
	bfdInvalid      = prometheus.NewDesc("kube_ovn_speaker_bfd_server_invalid_packet", "Invalid BFD packets received.", []string{"node"}, nil)
	bfdUnknown      = prometheus.NewDesc("kube_ovn_speaker_bfd_server_unknown_peer", "BFD packets received from addresses that are no peers.", []string{"node"}, nil)
	bfdUp           = prometheus.NewDesc("kube_ovn_speaker_bfd_peer_up", "1 if the BFD session is up.", []string{"node", "peer"}, nil)
	bfdState        = prometheus.NewDesc("kube_ovn_speaker_bfd_peer_session_state", "State of the BFD session: 1 up, 2 down, 3 administratively down, 4 init.", []string{"node", "peer"}, nil)
	bfdRemote       = prometheus.NewDesc("kube_ovn_speaker_bfd_peer_remote_session_state", "State of the BFD session that the peer reports.", []string{"node", "peer"}, nil)
	bfdFailures     = prometheus.NewDesc("kube_ovn_speaker_bfd_peer_failure_transitions", "Failures of the BFD session.", []string{"node", "peer"}, nil)
	bfdPeerSent     = prometheus.NewDesc("kube_ovn_speaker_bfd_peer_transmitted_packets", "BFD packets sent to the peer.", []string{"node", "peer"}, nil)
	bfdPeerReceived = prometheus.NewDesc("kube_ovn_speaker_bfd_peer_received_packets", "BFD packets received from the peer.", []string{"node", "peer"}, nil)
	peerAnnounced   = prometheus.NewDesc("kiln_speaker_announced_routes", "Routes announced in the BGP session.", []string{"node", "peer", "family"}, nil)
	peerRoutes      = prometheus.NewDesc("kiln_speaker_received_routes", "Routes of the peer, which are ignored.", []string{"node", "peer", "family"}, nil)
	announcedPrefix = prometheus.NewDesc("kiln_speaker_prefixes", "Prefixes that the node announces.", []string{"node", "family"}, nil)
	refusedObjects  = prometheus.NewDesc("kiln_speaker_refused_objects", "Objects whose annotation bgp has no effect.", []string{"node"}, nil)
	excessObjects   = prometheus.NewDesc("kiln_speaker_objects_beyond_limit", "Pods and Services that are not announced because of maxPrefixesPerNamespace.", []string{"node", "namespace"}, nil)
	allDescriptions = []*prometheus.Desc{peerUp, peerState, peerFlaps, peerQueue, peerReceived, peerSent, bfdReceived, bfdDropped, bfdErrors, bfdInvalid, bfdUnknown, bfdUp, bfdState, bfdRemote, bfdFailures, bfdPeerSent, bfdPeerReceived, peerAnnounced, peerRoutes, announcedPrefix, refusedObjects, excessObjects}
)

// collectionTimeout bounds a collection.
const collectionTimeout = 3 * time.Second

// collector collects the figures of the sessions when they are requested.
type collector struct {
	node       string
	reconciler *Reconciler
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range allDescriptions {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectionTimeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{c.node}, labels...)...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{c.node}, labels...)...)
	}
	ipv4, ipv6, refused, excess := c.reconciler.counts()
	gauge(announcedPrefix, float64(ipv4), "ipv4")
	gauge(announcedPrefix, float64(ipv6), "ipv6")
	gauge(refusedObjects, float64(refused))
	for namespace, n := range excess {
		gauge(excessObjects, float64(n), namespace)
	}
	state, err := c.reconciler.Server.State(ctx)
	if err != nil {
		c.reconciler.Log.Error(err, "cannot read the sessions for metrics")
		return
	}
	if b := state.BFD; b != nil {
		counter(bfdReceived, b.ReceivedPacket)
		counter(bfdDropped, b.ReceivedDrop)
		counter(bfdErrors, b.ReceivedError)
		counter(bfdInvalid, b.InvalidPacket)
		counter(bfdUnknown, b.UnknownPeer)
	}
	for _, p := range state.Peers {
		collectPeer(p, gauge, counter)
	}
}

// collectPeer collects the figures of one session.
func collectPeer(p bgp.PeerState, gauge func(*prometheus.Desc, float64, ...string), counter func(*prometheus.Desc, uint64, ...string)) {
	peer, asn := p.Address.String(), strconv.FormatUint(uint64(p.ASN), 10)
	gauge(peerUp, number(p.Established), peer, asn)
	if p.Live == nil {
		gauge(peerState, float64(api.PeerState_SESSION_STATE_IDLE), peer, asn)
		return
	}
	s := p.Live.State
	gauge(peerState, float64(s.SessionState), peer, asn)
	counter(peerFlaps, uint64(s.Flops), peer, asn)
	gauge(peerQueue, float64(s.OutQ), peer, asn)
	for desc, m := range map[*prometheus.Desc]*api.Message{peerReceived: s.GetMessages().GetReceived(), peerSent: s.GetMessages().GetSent()} {
		for kind, n := range messages(m) {
			counter(desc, n, peer, kind)
		}
	}
	for family, n := range p.Announced {
		gauge(peerAnnounced, float64(n), peer, family)
	}
	for family, n := range p.Received {
		gauge(peerRoutes, float64(n), peer, family)
	}
	if b := s.BfdState; p.BFD != "" {
		gauge(bfdUp, number(b.GetSessionState() == api.BfdSessionState_BFD_SESSION_STATE_UP), peer)
		gauge(bfdState, float64(b.GetSessionState()), peer)
		gauge(bfdRemote, float64(b.GetRemoteSessionState()), peer)
		counter(bfdFailures, b.GetFailureTransitions(), peer)
		counter(bfdPeerSent, b.GetBfdAsync().GetTransmittedPackets(), peer)
		counter(bfdPeerReceived, b.GetBfdAsync().GetReceivedPackets(), peer)
	}
}

// messages returns counters by the label type.
func messages(m *api.Message) map[string]uint64 {
	return map[string]uint64{
		"open": m.GetOpen(), "update": m.GetUpdate(), "keepalive": m.GetKeepalive(), "notification": m.GetNotification(), "refresh": m.GetRefresh(),
		"withdraw_update": m.GetWithdrawUpdate(), "withdraw_prefix": m.GetWithdrawPrefix(), "discarded": m.GetDiscarded(), "total": m.GetTotal(),
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
