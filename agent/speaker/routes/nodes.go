// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kiln-net/kiln/internal/gateway"
)

// nodeState is the state of a node.
type nodeState struct {
	// fitness for traffic of pods of other nodes; a lower value is fitter.
	fitness gateway.State
	// network is false while the node's agent reports its network as unavailable.
	network   bool
	labels    map[string]string
	addresses []netip.Addr
}

// SetNode updates a node.
func (t *Table) SetNode(n *corev1.Node) {
	t.setNode(n.Name, nodeState{
		fitness: gateway.StateOf(n, gateway.NoLease), network: gateway.HasNetwork(n), labels: n.Labels, addresses: addressesOf(n),
	})
}

// DeleteNode removes a node.
func (t *Table) DeleteNode(name string) {
	t.setNode(name, nodeState{fitness: gateway.Down})
	delete(t.nodes, name)
}

func (t *Table) setNode(name string, next nodeState) {
	before, found := t.nodes[name]
	t.nodes[name] = next
	t.judged = t.judged && found && before.fitness == next.fitness && before.network == next.network && maps.Equal(before.labels, next.labels)
	t.reserve(aNode, before.addresses, next.addresses)
}

// judge computes what this node may announce. Without a network it announces nothing. The prefixes that all nodes serve are announced by the fittest
// nodes with a speaker: if all are cordoned, or none is ready, they stay announced, because a node that may work is better than none. The pods and
// endpoints of the node stay announced as long as they run, because no other node has them.
func (t *Table) judge() {
	if t.judged {
		return
	}
	t.judged = true
	own, found := t.nodes[t.node]
	network, transit := found && own.network, found && own.network
	selector := labels.SelectorFromSet(t.settings.Nodes)
	for _, n := range t.nodes {
		transit = transit && (n.fitness >= own.fitness || !selector.Matches(labels.Set(n.labels)))
	}
	for prefix, c := range t.counts {
		if c.own > 0 && network != t.network || c.shared > 0 && transit != t.transit {
			t.changed[prefix] = true
		}
	}
	t.network, t.transit = network, transit
}

func addressesOf(n *corev1.Node) []netip.Addr {
	var addresses []netip.Addr
	for _, a := range n.Status.Addresses {
		if parsed, err := netip.ParseAddr(a.Address); err == nil {
			addresses = append(addresses, parsed.Unmap())
		}
	}
	return addresses
}

// holder has addresses that Services and EgressAddresses may not announce: routers must not get another route to them.
type holder string

// Holders.
const (
	aNode     holder = "a node"
	aPeer     holder = "a peer of the speaker"
	anEgress  holder = "an EgressAddress"
	apiServer holder = "the API server"
)

// reservation is an address of a holder.
type reservation struct {
	holder
	netip.Addr
}

// reserve replaces the addresses of an object.
func (t *Table) reserve(by holder, before, next []netip.Addr) {
	if slices.Equal(before, next) {
		return
	}
	for _, a := range next {
		t.reserved[reservation{by, a}]++
	}
	for _, a := range before {
		r := reservation{by, a}
		if t.reserved[r]--; t.reserved[r] == 0 {
			delete(t.reserved, r)
		}
	}
	t.offerServices()
	t.offerEgresses()
}

// SetAPIServer sets the address under which this process connects to the API server.
func (t *Table) SetAPIServer(a netip.Addr) {
	t.reserve(apiServer, nil, []netip.Addr{a})
}
