// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// ReasonNoAddress is the event of a node that finds the join subnet full.
const ReasonNoAddress = "AddressNotAllocated"

// lease is the node's address on the join subnet: the one it has as far as that fits the subnet. The error is ErrWaiting when the
// subnet is full; an address that becomes free wakes the node.
func (r *Reconciler) lease(node *corev1.Node, join joinSubnet) (ipam.Lease, error) {
	port := translate.NodePort(node.Name)
	held, _ := r.Allocator.Lookup(port)
	request := ipam.Request{Subnet: kubeovnv1.JoinSubnet, Addresses: within(held.Addresses, join.cidrs), MAC: held.MAC}
	for _, cidr := range join.cidrs {
		request.Families = append(request.Families, ipfamily.Of(cidr.Addr()))
	}
	if len(request.Addresses) < len(held.Addresses) {
		r.Allocator.Release(port)
	}
	lease, err := r.Allocator.Allocate(port, request)
	if errors.Is(err, ipam.ErrExhausted) {
		// An address that became free after the first try has woken nobody.
		r.hungry.add(node.Name)
		lease, err = r.Allocator.Allocate(port, request)
	}
	if errors.Is(err, ipam.ErrExhausted) {
		k8s.Warn(r.Recorder, node, ReasonNoAddress, fmt.Sprintf(
			"subnet %s has no free address: widen its cidrBlock, or remove nodes that are gone", kubeovnv1.JoinSubnet))
		return ipam.Lease{}, fmt.Errorf("%w: %w", northbound.ErrWaiting, err)
	}
	if err != nil {
		return ipam.Lease{}, err
	}
	r.hungry.remove(node.Name)
	return lease, nil
}

// within keeps the addresses that are in one of the CIDRs.
func within(addrs []netip.Addr, cidrs []netip.Prefix) []netip.Addr {
	var in []netip.Addr
	for _, a := range addrs {
		if slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) }) {
			in = append(in, a)
		}
	}
	return in
}

// hungry is a set of nodes that wait for a free address.
type hungry struct {
	mu    sync.Mutex
	nodes map[string]struct{}
}

func (h *hungry) add(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.nodes == nil {
		h.nodes = map[string]struct{}{}
	}
	h.nodes[node] = struct{}{}
}

func (h *hungry) remove(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.nodes, node)
}

// source enqueues the hungry nodes when the use of the join subnet changes.
func (h *hungry) source(allocator *ipam.Allocator) source.Source {
	return source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		allocator.Notify(func(subnet string) {
			if subnet != kubeovnv1.JoinSubnet {
				return
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			for node := range h.nodes {
				q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
			}
		})
		return nil
	})
}
