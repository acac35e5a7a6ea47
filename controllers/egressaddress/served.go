// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// load records the source addresses that routers have in the database, once.
func (r *Reconciler) load() {
	r.loaded.Do(func() {
		northbound.Each(r.Northbound, translate.KindEgressAddress, func(owner desired.Owner, row *nb.NAT) {
			for _, address := range ipfamily.ValidAddrs(row.ExternalIP) {
				r.served.Add(owner.Name, address)
			}
		})
	})
}

// commit writes the rows of an EgressAddress, and wakes the ones that wait for addresses that its router has no longer: two routers with one address would both get its packets.
func (r *Reconciler) commit(ctx context.Context, name string, rows []desired.Row) error {
	owner := translate.EgressAddressOwner(name)
	var before, after []netip.Addr
	for _, row := range northbound.Of[nb.NAT](r.Northbound, owner) {
		before = append(before, ipfamily.ValidAddrs(row.ExternalIP)...)
	}
	for _, row := range rows {
		if nat, is := row.Model.(*nb.NAT); is {
			after = append(after, ipfamily.ValidAddrs(nat.ExternalIP)...)
		}
	}
	r.served.Set(name, slices.Concat(before, after)...) // without an answer, both are possible
	if err := r.Northbound.Apply(ctx, owner, rows); err != nil {
		return err
	}
	r.served.Set(name, after...)
	for _, address := range before {
		if !slices.Contains(after, address) {
			for _, req := range r.at(ctx, address.String()) {
				r.moved.Add(req.Name)
			}
		}
	}
	return nil
}

// held describes another EgressAddress whose router has one of the addresses; empty if there is none. Its next commit enqueues this one.
func (r *Reconciler) held(name string, addresses []netip.Addr) string {
	for _, address := range addresses {
		for _, other := range r.served.Of(address) {
			if other != name {
				return fmt.Sprintf("%s: the router of EgressAddress %s still has it", address, other)
			}
		}
	}
	return ""
}
