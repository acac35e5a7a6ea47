// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/iprecord"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// querier returns the source of multicast group membership queries in a subnet. It allocates an address for it on first use and retains it.
// It returns nil if the subnet does not snoop. The error is ErrWaiting while no address is free.
func (r *Reconciler) querier(ctx context.Context, s *kubeovnv1.Subnet, network validation.Network) (*translate.Querier, error) {
	if !s.Spec.EnableMulticastSnoop {
		return nil, r.releaseQuerier(ctx, s)
	}
	holder := translate.QuerierHolder(s.Name)
	allocation, held := r.Allocator.Lookup(holder)
	if held && !network.Contains(allocation.Addresses[0]) {
		allocations.Release(logr.FromContextOrDiscard(ctx), r.Allocator, holder, "the address is outside the subnet")
		held = false
	}
	if !held {
		var err error
		allocation, err = r.Allocator.Allocate(holder, querierRequest(s, network))
		switch {
		case errors.Is(err, ipam.ErrExhausted):
			return nil, fmt.Errorf("%w: the querier of multicast groups gets no address: %w", northbound.ErrWaiting, err)
		case err != nil:
			return nil, fmt.Errorf("find an address for the querier of multicast groups: %w", err)
		}
		allocations.LogGiven(logr.FromContextOrDiscard(ctx), holder, allocation, allocations.SourceSubnet)
	}
	q := &translate.Querier{Address: allocation.Addresses[0], MAC: allocation.MAC}
	return q, iprecord.Write(ctx, r.Client, iprecord.Of(translate.QuerierRecord(s.Name), allocation), iprecord.IsOfSubnet)
}

// querierRequest requests one address: IPv4 if the subnet has it, since IPv6 queries come from a link-local address.
func querierRequest(s *kubeovnv1.Subnet, network validation.Network) ipam.Request {
	request := ipam.Request{Subnet: s.Name, Families: []ipfamily.Family{ipfamily.IPv6}}
	for _, cidr := range network.CIDRs {
		if cidr.Addr().Is4() {
			request.Families = []ipfamily.Family{ipfamily.IPv4}
		}
	}
	return request
}

// subnetOfRecord enqueues the subnet that has an IP object itself.
func subnetOfRecord(_ context.Context, o client.Object) []reconcile.Request {
	if !translate.IsOwnRecord(o.GetName()) {
		return nil
	}
	requests := k8s.Requests(o.(*kubeovnv1.IP).Spec.Subnet)
	if subnet, is := strings.CutPrefix(o.GetName(), translate.QuerierRecord("")); is { // the object of a pod with that name
		requests = append(requests, k8s.Request(subnet))
	}
	return requests
}

// releaseQuerier frees the address of a subnet's querier and deletes its IP object. It is idempotent.
func (r *Reconciler) releaseQuerier(ctx context.Context, s *kubeovnv1.Subnet) error {
	if _, held := r.Allocator.Lookup(translate.QuerierHolder(s.Name)); !held && s.Status.McastQuerierIP == "" {
		return nil
	}
	if err := iprecord.Delete(ctx, r.Client, translate.QuerierRecord(s.Name), iprecord.IsOfSubnet); err != nil {
		return err
	}
	allocations.Release(logr.FromContextOrDiscard(ctx), r.Allocator, translate.QuerierHolder(s.Name), "the subnet does not snoop")
	return nil
}

// setQuerier writes the addresses of the querier into the status.
func setQuerier(status *kubeovnv1.SubnetStatus, q *translate.Querier) {
	status.McastQuerierIP, status.McastQuerierMAC = "", ""
	if q != nil {
		status.McastQuerierIP, status.McastQuerierMAC = q.Address.String(), q.MAC.String()
	}
}
