// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package providerbridge is how the agent requests bridges of provider networks from `kiln ovs`, and how `kiln ovs` reports them.
//
// The agent writes one Request per provider network into external_ids of the row Open_vSwitch, under RequestKey. `kiln ovs` creates the bridge,
// moves the interface into it, and writes a Result under ResultKey; only `kiln ovs` writes results. When a request is removed, `kiln ovs`
// restores the interface, deletes the bridge, and then deletes the result: a result without a request is a removal in progress. Requests are
// stored on disk with the database, so bridges stay while the agent or the API server is not available.
package providerbridge

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Prefixes of the keys in external_ids of Open_vSwitch. The name of the provider network follows.
const (
	requestPrefix = "kiln-provider/"
	resultPrefix  = "kiln-provider-result/"
)

// PortKey is the key in external_ids of a provider network's bridge and of its uplink's port. Its value is the provider network.
const PortKey = "kiln-provider"

// MaxName is the maximum length of a provider network's name in bytes: interface names have at most 15, and the bridge's starts with br-.
const MaxName = 12

// Tunnels is the bridge that has the tunnel interface and its address in the userspace datapath, where packets leave the node only through bridges. A
// provider network with the same interface is connected with it.
const Tunnels = "br-phy"

const bridgePrefix = "br-"

// Bridge returns the name of the provider network's bridge, which is also the name of the bridge's interface.
func Bridge(provider string) string { return bridgePrefix + provider }

// Provider returns the name of the provider network that has a bridge.
func Provider(bridge string) string { return strings.TrimPrefix(bridge, bridgePrefix) }

// RequestKey returns the key of the Request for a provider network.
func RequestKey(provider string) string { return requestPrefix + provider }

// ResultKey returns the key of the Result for a provider network.
func ResultKey(provider string) string { return resultPrefix + provider }

// NodeInterface says which interfaces are moved that the node uses itself.
type NodeInterface string

// Values of NodeInterface. An empty one is NodeInterfaceRefuse.
const (
	// NodeInterfaceRefuse refuses an interface that has addresses or routes, or that a DHCP client, NetworkManager or systemd-networkd configures.
	NodeInterfaceRefuse NodeInterface = "Refuse"
	// NodeInterfaceStatic moves addresses and routes, but not of an interface that such a program configures.
	NodeInterfaceStatic NodeInterface = "Static"
	// NodeInterfaceAll moves also such an interface. These programs keep configuring it after the move, so `kiln ovs` renews the addresses of the bridge.
	NodeInterfaceAll NodeInterface = "All"
)

// Known reports whether it is one of the values above, or empty.
func (n NodeInterface) Known() bool {
	return slices.Contains([]NodeInterface{"", NodeInterfaceRefuse, NodeInterfaceStatic, NodeInterfaceAll}, n)
}

// MovesAddresses reports whether an interface with addresses or routes is moved.
func (n NodeInterface) MovesAddresses() bool {
	return n == NodeInterfaceStatic || n == NodeInterfaceAll
}

// Request is the bridge that a provider network needs on this node.
type Request struct {
	// Interface is the name of the network interface that becomes a port of the bridge.
	Interface     string        `json:"interface"`
	NodeInterface NodeInterface `json:"nodeInterface,omitempty"`
	// CreateVLAN creates the interface if it is missing and its name is that of a VLAN interface, such as eth0.10.
	CreateVLAN bool `json:"createVLAN,omitempty"`
	// Turn permits the move of an interface with addresses now. Without it, a bridge that has taken over addresses stays.
	Turn bool `json:"turn,omitempty"`
	// Attempt identifies the version of the specification (UID and generation). A move that was undone is repeated at once after Attempt, Interface or
	// NodeInterface has changed, otherwise after a pause.
	Attempt string `json:"attempt"`
	// Peers are the InternalIPs of other nodes, at most MaxPeers. Those on the interface's networks that answer before the move must answer
	// after it. A change does not cause another move.
	Peers []netip.Addr `json:"peers,omitempty"`
}

// MaxPeers bounds Request.Peers.
const MaxPeers = 8

// State of a provider network's bridge on this node.
type State string

// Values of State.
const (
	StateMoving   State = "Moving"   // the move has begun and is verified until the deadline
	StateReady    State = "Ready"    // the interface is a port of the bridge, and ovn-bridge-mappings has the bridge
	StateFailed   State = "Failed"   // nothing was moved, or everything was put back
	StateRemoving State = "Removing" // the interface is being restored
)

// Reason is the cause of StateFailed.
type Reason string

// Values of Reason.
const (
	ReasonNoInterface Reason = "InterfaceNotFound"
	// ReasonUnsuitable means that the interface is a loopback interface, a bridge, a port of another bridge or bond, or one of Kiln's own.
	ReasonUnsuitable Reason = "InterfaceUnsuitable"
	ReasonNoCarrier  Reason = "NoCarrier"
	// ReasonConflict means that another provider network or br-phy uses the interface, or another program uses the bridge's name or the
	// provider network's name in ovn-bridge-mappings.
	ReasonConflict Reason = "Conflict"
	// ReasonManaged means that another program configures the interface, and Request.NodeInterface does not permit the move.
	ReasonManaged Reason = "InterfaceManaged"
	// ReasonNamed means that routing rules or a firewall name the interface and not the bridge.
	ReasonNamed Reason = "NamedByRules"
	// ReasonUnreachable means that neither a gateway nor another node answered on the interface before the move.
	ReasonUnreachable Reason = "GatewayUnreachable"
	// ReasonRolledBack means that targets did not answer after the move, so that everything was put back.
	ReasonRolledBack Reason = "RolledBack"
	// ReasonAwaitingTurn means that an interface with addresses has to wait for Request.Turn.
	ReasonAwaitingTurn Reason = "AwaitingTurn"
	ReasonInvalid      Reason = "InvalidRequest"
	// ReasonError is any other failure, which is tried again.
	ReasonError Reason = "Error"
)

// Result is the state of a provider network's bridge on this node.
type Result struct {
	State  State  `json:"state"`
	Reason Reason `json:"reason,omitempty"`
	// Message has the cause and what to change, for users; in StateReady a warning.
	Message string `json:"message,omitempty"`
	// Interface and Attempt are copied from the request that this result answers.
	Interface string `json:"interface,omitempty"`
	Attempt   string `json:"attempt,omitempty"`
	// MTU is the interface's, in bytes. It is set in StateReady.
	MTU int `json:"mtu,omitempty"`
	// Moved is the number of addresses that the bridge took over.
	Moved int `json:"moved,omitempty"`
	// Time of the last change of State or Reason.
	Time time.Time `json:"time"`
}

// Answers reports whether the result is of this request: with another attempt or interface, it is of an older one.
func (r Result) Answers(q Request) bool { return r.Attempt == q.Attempt && r.Interface == q.Interface }

// Format returns the value of RequestKey.
func (q Request) Format() string { return format(q) }

// Format returns the value of ResultKey.
func (r Result) Format() string { return format(r) }

func format(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", value, err)) // neither type has a field that cannot be encoded
	}
	return string(text)
}

// Requests returns the requests in external_ids of Open_vSwitch, by provider network. A key or value that is malformed gives an entry in the
// second map, with the reason.
func Requests(externalIDs map[string]string) (map[string]Request, map[string]error) {
	requests, malformed := entries[Request](externalIDs, requestPrefix)
	for provider, q := range requests {
		if err := q.validate(provider); err != nil {
			malformed[provider] = err
			delete(requests, provider)
		}
	}
	return requests, malformed
}

// Results returns the results in external_ids of Open_vSwitch, by provider network. Malformed ones are left out: `kiln ovs` replaces them.
func Results(externalIDs map[string]string) map[string]Result {
	results, _ := entries[Result](externalIDs, resultPrefix)
	return results
}

// Changes returns the keys of external_ids that must be deleted, and the entries that must be inserted, so that external_ids has exactly the
// wanted requests. A changed entry is in both.
func Changes(externalIDs map[string]string, wanted map[string]Request) (remove []string, insert map[string]string) {
	insert = map[string]string{}
	for provider, q := range wanted {
		insert[RequestKey(provider)] = q.Format()
	}
	for key, value := range externalIDs {
		if !strings.HasPrefix(key, requestPrefix) {
			continue
		}
		if insert[key] == value {
			delete(insert, key)
			continue
		}
		remove = append(remove, key)
	}
	slices.Sort(remove)
	return remove, insert
}

func entries[T any](externalIDs map[string]string, prefix string) (map[string]T, map[string]error) {
	parsed, malformed := map[string]T{}, map[string]error{}
	for _, key := range slices.Sorted(maps.Keys(externalIDs)) {
		provider, found := strings.CutPrefix(key, prefix)
		if !found {
			continue
		}
		var value T
		if err := json.Unmarshal([]byte(externalIDs[key]), &value); err != nil {
			malformed[provider] = fmt.Errorf("decode external_ids:%s of Open_vSwitch: %w", key, err)
			continue
		}
		parsed[provider] = value
	}
	return parsed, malformed
}

func (q Request) validate(provider string) error {
	switch {
	case !nameOfLink(Bridge(provider)) || provider == "" || strings.ContainsAny(provider, ",:"):
		return fmt.Errorf("provider network %q: the name has more than %d bytes, or a character that interfaces cannot have", provider, MaxName)
	case !nameOfLink(q.Interface):
		return fmt.Errorf("interface %q of provider network %s is not a name of an interface", q.Interface, provider)
	case len(q.Peers) > MaxPeers:
		return fmt.Errorf("provider network %s has %d peers, more than %d", provider, len(q.Peers), MaxPeers)
	}
	return nil
}

// nameOfLink reports whether the kernel and Open vSwitch accept the name (dev_valid_name, without control characters and quotes).
func nameOfLink(name string) bool {
	if name == "" || len(name) > 15 || name == "." || name == ".." {
		return false
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c >= 0x7f || c == '/' || c == ':' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
