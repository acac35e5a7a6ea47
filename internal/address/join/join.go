// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package join allocates addresses of the join subnet for the objects that are connected to it: nodes, and the gateways of VPCs.
// Controllers share it.
package join

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Subnet is the applied join subnet.
type Subnet struct {
	CIDRs    []netip.Prefix
	Gateways []netip.Addr
}

// Read reads the last valid spec of the join subnet. It returns northbound.ErrWaiting if there is none.
func Read(ctx context.Context, reader client.Reader) (Subnet, error) {
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, reader, client.ObjectKey{Name: kubeovnv1.JoinSubnet}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return Subnet{}, fmt.Errorf("get subnet %s: %w", kubeovnv1.JoinSubnet, err)
	}
	if subnet == nil {
		return Subnet{}, fmt.Errorf("%w: subnet %s does not exist yet", northbound.ErrWaiting, kubeovnv1.JoinSubnet)
	}
	spec := k8s.ValidSpec(subnet)
	if spec == nil {
		return Subnet{}, fmt.Errorf("%w: %s", northbound.ErrWaiting, k8s.WhyNotValid("subnet "+subnet.Name, subnet.Status.Conditions, subnet.Generation))
	}
	cidrs, cidrErr := ipfamily.ParseCIDRs(spec.CIDRBlock)
	gateways, gatewayErr := ipfamily.ParseAddrs(spec.Gateway)
	if err := errors.Join(cidrErr, gatewayErr); err != nil {
		return Subnet{}, fmt.Errorf("read subnet %s: %w", kubeovnv1.JoinSubnet, err)
	}
	return Subnet{CIDRs: cidrs, Gateways: gateways}, nil
}

// Is reports whether an object is the join subnet.
func Is(o client.Object) bool { return o.GetName() == kubeovnv1.JoinSubnet }

// Full returns a message for users about a join subnet without a free address or port; err is ipam.ErrExhausted.
func Full(err error, others string) string {
	if ports := (*ipam.PortsError)(nil); errors.As(err, &ports) {
		return fmt.Sprintf("subnet %s is full: %v: remove %s", kubeovnv1.JoinSubnet, ports, others)
	}
	return fmt.Sprintf("subnet %s has no free address: widen its cidrBlock, or remove %s", kubeovnv1.JoinSubnet, others)
}

// Allocations holds the allocations of one kind of objects in the join subnet.
type Allocations struct {
	Allocator *ipam.Allocator

	// waiting has the objects without an address, by the subnet whose use blocks them.
	waiting interest.Index[string, string]
}

// ErrNameTaken is returned when a pod has a port with the object's name, and therefore the allocation of that name.
var ErrNameTaken = errors.New("a pod has a port of this name")

// Allocation returns the object's allocation: one address per family of the join subnet. It keeps the addresses of its port that are still
// in the subnet. It returns ipam.ErrExhausted when the subnet is full, and ErrNameTaken when a pod's port has the name; a freed
// address then wakes the object.
func (l *Allocations) Allocation(ctx context.Context, object, port string, subnet Subnet) (ipam.Allocation, error) {
	held, _ := l.Allocator.Lookup(port)
	if isAPods(held) {
		l.waiting.Set(object, held.Subnet) // the allocation may have been freed since the lookup, before this object was registered: look again
		if held, _ = l.Allocator.Lookup(port); isAPods(held) {
			return ipam.Allocation{}, fmt.Errorf("port %s: %w", port, ErrNameTaken)
		}
	}
	request := ipam.Request{Subnet: kubeovnv1.JoinSubnet, Addresses: within(held.Addresses, subnet.CIDRs), MAC: held.MAC}
	for _, cidr := range subnet.CIDRs {
		request.Families = append(request.Families, ipfamily.Of(cidr.Addr()))
	}
	if len(request.Addresses) < len(held.Addresses) {
		allocations.Release(logr.FromContextOrDiscard(ctx), l.Allocator, port, "an address is no longer in the join subnet")
	}
	allocation, err := l.Allocator.Allocate(port, request)
	if errors.Is(err, ipam.ErrExhausted) {
		// An address may have been freed after the first attempt, before this object was registered: retry.
		l.waiting.Set(object, kubeovnv1.JoinSubnet)
		allocation, err = l.Allocator.Allocate(port, request)
	}
	if err == nil {
		l.waiting.Set(object)
		if !slices.Equal(allocation.Addresses, held.Addresses) {
			allocations.LogGiven(logr.FromContextOrDiscard(ctx), port, allocation, allocations.SourceSubnet)
		}
	}
	return allocation, err
}

// Release frees an object's allocation after its port was removed.
func (l *Allocations) Release(ctx context.Context, object, port string) {
	l.waiting.Set(object)
	if held, _ := l.Allocator.Lookup(port); !isAPods(held) {
		allocations.Release(logr.FromContextOrDiscard(ctx), l.Allocator, port, "the object is deleted or needs none")
	}
}

// isAPods reports whether an allocation belongs to a subnet for pods.
func isAPods(allocation ipam.Allocation) bool {
	return allocation.Subnet != "" && allocation.Subnet != kubeovnv1.JoinSubnet
}

// within returns the addresses that are in one of the CIDRs.
func within(addrs []netip.Addr, cidrs []netip.Prefix) []netip.Addr {
	var in []netip.Addr
	for _, a := range addrs {
		if slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) }) {
			in = append(in, a)
		}
	}
	return in
}

// Source enqueues the objects without an address when the use of the subnet that blocks them changes.
func (l *Allocations) Source() source.Source { return reconciler.OnUse(l.Allocator, 0, l.waiting.Of) }

// AddressesOf returns a node's addresses on the join subnet, or nil before its port is applied. The annotations show when. Nodes can write
// them, so the addresses are those of the node's allocation.
func AddressesOf(allocator *ipam.Allocator, node *corev1.Node) []netip.Addr {
	if node.Annotations[kubeovnv1.AnnotationAllocated.Key()] == "" {
		return nil
	}
	allocation, _ := allocator.Lookup(kubeovnv1.NodePortName(node.Name))
	if isAPods(allocation) {
		return nil
	}
	return allocation.Addresses
}

// Published returns the annotations of a node with which the result of AddressesOf changes.
func Published(node *corev1.Node) string {
	return node.Annotations[kubeovnv1.AnnotationAllocated.Key()] + " " + node.Annotations[kubeovnv1.AnnotationIPAddress.Key()]
}
