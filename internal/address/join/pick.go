// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Picker chooses the nodes that carry the traffic of objects.
type Picker struct {
	Client    client.Client
	Allocator *ipam.Allocator
	Leases    gateway.Leases
}

// Pick is a chosen pair of nodes.
type Pick struct {
	gateway.Pair

	// Hops are the addresses of the active node on the join subnet.
	Hops []netip.Addr
	// Lost: the active node of the previous pair is down. Up: the active node is up.
	Lost, Up bool
}

// Pick chooses the pair of an object among the nodes that a selector selects. It reads all nodes only if a node of the previous pair has to be replaced. kind is the key of the
// name in logs.
func (p Picker) Pick(ctx context.Context, kind, name string, before gateway.Pair, selector labels.Selector) (Pick, error) {
	known := map[string]*corev1.Node{}
	for _, name := range before.Nodes() {
		node, err := k8s.Find[corev1.Node](ctx, p.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return Pick{Pair: before}, fmt.Errorf("get node %s: %w", name, err)
		}
		if node != nil && selector.Matches(labels.Set(node.Labels)) {
			known[name] = node
		}
	}
	state := func(name string) gateway.State { return p.state(known[name]) }
	pick := Pick{Pair: before, Lost: before.Active != "" && state(before.Active) == gateway.Down}
	if !before.Fits(state) {
		var list corev1.NodeList
		if err := p.Client.List(ctx, &list, client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
			return pick, fmt.Errorf("list nodes: %w", err)
		}
		candidates := make([]gateway.Candidate, 0, len(list.Items))
		for i := range list.Items {
			node := &list.Items[i]
			known[node.Name] = node
			candidates = append(candidates, gateway.Candidate{Name: node.Name, State: p.state(node)})
		}
		pick.Pair = gateway.Pick(name, candidates, before)
		gateway.LogChoice(logr.FromContextOrDiscard(ctx), kind, name, candidates, before.Nodes(), pick.Nodes())
	}
	if node := known[pick.Active]; node != nil {
		pick.Hops = AddressesOf(p.Allocator, node)
		pick.Up = state(node.Name) != gateway.Down
	}
	return pick, nil
}

// Expect records that the nodes of a pair have to renew their Leases from now on.
func (p Picker) Expect(pair gateway.Pair) {
	for _, node := range pair.Nodes() {
		p.Leases.Expect(node)
	}
}

// state returns the state of a node. A node that does not exist, or is not connected to the join subnet yet, is down.
func (p Picker) state(node *corev1.Node) gateway.State {
	if node == nil || len(AddressesOf(p.Allocator, node)) == 0 {
		return gateway.Down
	}
	return gateway.StateOf(node, p.Leases.Of(node.Name))
}
