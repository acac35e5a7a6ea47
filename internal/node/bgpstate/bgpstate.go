// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bgpstate is the form in which kube-ovn-speaker reports its state to `kubectl ko bgp`.
package bgpstate

import "net/netip"

// State is the state of the speaker of a node.
type State struct {
	Node  string `json:"node"`
	Peers []Peer `json:"peers"`
	// Prefixes are the announced prefixes with one object of each.
	Prefixes []Prefix `json:"prefixes"`
	// Refused are the objects whose annotations have no effect.
	Refused []Refusal `json:"refused,omitempty"`
}

// Peer is the state of one session.
type Peer struct {
	Address netip.Addr `json:"address"`
	ASN     uint32     `json:"asn"`
	// Established is true if routes are exchanged.
	Established bool `json:"established"`
	// Session is the state of the session (RFC 4271, section 8.2.2), in lower case.
	Session string `json:"session"`
	// Message is the reason why the session is not established, if there is one.
	Message string `json:"message,omitempty"`
	// Announced and Received are the numbers of routes of the session, by family. Received routes are ignored.
	Announced map[string]uint64 `json:"announced,omitempty"`
	Received  map[string]uint64 `json:"received,omitempty"`
	// BFD is the state of the BFD session in lower case; empty without BFD.
	BFD string `json:"bfd,omitempty"`
	// AnnouncedRoutes and ReceivedRoutes are the routes themselves, on request, and at most MaxRoutes each.
	AnnouncedRoutes []Route `json:"announcedRoutes,omitempty"`
	ReceivedRoutes  []Route `json:"receivedRoutes,omitempty"`
}

// MaxRoutes bounds the routes of a session in a State.
const MaxRoutes = 10000

// Route is a route of one session.
type Route struct {
	Prefix  string `json:"prefix"`
	NextHop string `json:"nextHop"`
}

// Prefix is an announced prefix.
type Prefix struct {
	Prefix string `json:"prefix"`
	Object string `json:"object"`
}

// Refusal is an object whose annotation has no effect.
type Refusal struct {
	Object string `json:"object"`
	Reason string `json:"reason"`
}
