// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package egressaddress gives the packets that pods send to outside the addresses of the EgressAddress that selects the pods. Addresses on nodes have a router in OVN each,
// on a node that serves. The rules for addresses of OvnEips are controllers/ovnnat's.
package egressaddress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/svc"
)

// Reconciler applies EgressAddresses. While the spec of one is invalid, its last valid spec stays applied.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Networks   *lookup.Networks
	// Sets has the pods that each EgressAddress selects. The rows of pods' ports add their addresses.
	Sets         *podset.Index
	Recorder     events.EventRecorder
	Gate         *reconciler.StartGate
	Leases       gateway.Leases
	ServiceCIDRs svc.CIDRs
	// Speakers are the nodes that can announce addresses by BGP.
	Speakers *Speakers
	// CountPace is the time between two writes of the number of pods of an EgressAddress, if it is not zero.
	CountPace time.Duration

	// allocations holds the addresses of routers on the join subnet.
	allocations join.Allocations
	// moved enqueues EgressAddresses with a node whose Lease state changed or whose sets are complete, pods enqueues EgressAddresses with other pods or rules.
	moved k8s.RequestSource
	pods  reconciler.Paced
	// served has the EgressAddresses whose routers have a source address, by the address. loaded fills it.
	served interest.Index[string, netip.Addr]
	loaded sync.Once
}

// Reconcile applies one EgressAddress. A request without a name follows a change of the speakers.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.Name == "" {
		return ctrl.Result{}, r.speakersChanged(ctx)
	}
	r.load()
	object, err := k8s.Find[kubeovnv1.EgressAddress](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get EgressAddress %s: %w", req.Name, err)
	}
	if object == nil || object.DeletionTimestamp != nil {
		unmeasure(req.Name)
		return ctrl.Result{}, r.remove(ctx, req.Name)
	}
	in := inputs{object: object, before: gateway.Pair{Active: object.Status.Node, Standby: object.Status.Standby}}
	err = r.apply(ctx, &in)
	return ctrl.Result{}, errors.Join(k8s.Unless(err, northbound.ErrWaiting), r.patchStatus(ctx, &in, err))
}

// apply applies the valid spec. Its error is about rows; problems of the spec are in the inputs.
func (r *Reconciler) apply(ctx context.Context, in *inputs) error {
	name := in.object.Name
	if err := r.gather(ctx, in); err != nil {
		return err
	}
	if in.spec == nil { // it never had a valid one
		return r.remove(ctx, name)
	}
	owner := translate.EgressAddressOwner(name)
	r.Sets.Use(owner, []podset.Selector{in.set})
	if !in.set.HasRows() {
		return r.clear(ctx, name)
	}
	if len(in.addresses) == 0 { // the OvnEip has none
		in.families = r.families(owner)
	}
	// While pods enter a new set or leave a former one, the policies are for both sets: no pod that stays selected, or that another EgressAddress selects, leaves with
	// another source.
	complete, sets := r.Sets.Complete(owner), []podset.Selector{in.set}
	if !complete {
		sets = r.Sets.UsedBy(owner)
	}
	there := r.withRows(sets)
	if !complete && len(there) > 0 {
		sets = there
	}
	rows := in.rows(sets)
	rows.Zone = r.zone(owner, rows.Router())
	if err := r.commit(ctx, name, translate.EgressAddress(rows)); err != nil {
		return fmt.Errorf("apply the router: %w", err)
	}
	r.Sets.Lead(there)
	if complete {
		r.Sets.Settle(owner)
	}
	if in.spec.OvnEip != "" {
		r.allocations.Release(ctx, name, translate.EgressPort(name)) // of former addresses on nodes
		return nil
	}
	r.picker().Expect(in.pick.Pair)
	return nil
}

// remove deletes the set of pods of an EgressAddress and its router.
func (r *Reconciler) remove(ctx context.Context, name string) error {
	r.Sets.Use(translate.EgressAddressOwner(name), nil)
	return r.clear(ctx, name)
}

// clear deletes the router of an EgressAddress, after pods that others select have left its set: with neither, they would leave with another source. Packets of pods whose rows
// cannot be committed are dropped until they can: their number and time have no limit, and another EgressAddress may have the addresses by then. clear releases the router's
// address after the port is deleted.
func (r *Reconciler) clear(ctx context.Context, name string) error {
	owner := translate.EgressAddressOwner(name)
	complete, rows := r.Sets.Complete(owner), []desired.Row(nil)
	if !complete {
		if !r.Sets.Stalled(owner) { // the last of the pods enqueues it
			return nil
		}
		rows = r.dropping(owner)
	}
	if err := r.commit(ctx, name, rows); err != nil {
		return fmt.Errorf("delete the router of EgressAddress %s: %w", name, err)
	}
	if complete {
		r.Sets.Settle(owner)
	}
	r.allocations.Release(ctx, name, translate.EgressPort(name))
	return nil
}

// dropping returns policies that drop the packets for which an EgressAddress has policies.
func (r *Reconciler) dropping(owner desired.Owner) []desired.Row {
	sets := r.withRows(r.Sets.UsedBy(owner))
	if len(sets) == 0 {
		return nil
	}
	in := inputs{object: &kubeovnv1.EgressAddress{}, families: r.families(owner)}
	in.object.Name = owner.Name
	return translate.EgressAddress(in.rows(sets))
}

// families returns an address of each family for which an EgressAddress has policies; of both if there are none.
func (r *Reconciler) families(owner desired.Owner) []netip.Addr {
	var families []netip.Addr
	for _, policy := range northbound.Of[nb.LogicalRouterPolicy](r.Northbound, owner) {
		if _, family, is := translate.ReadEgressPolicy(policy); is {
			families = append(families, family)
		}
	}
	if len(families) == 0 {
		return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	return families
}

// withRows returns the sets with rows in the database. ovn-controller ignores a policy with another set; the controller of sets enqueues the EgressAddress when they are there.
func (r *Reconciler) withRows(sets []podset.Selector) []podset.Selector {
	return slices.DeleteFunc(slices.Clone(sets), func(s podset.Selector) bool {
		return !s.HasRows() || !r.Northbound.Has(desired.TableAddressSet, translate.PeersRef(translate.PodSetPart{Name: s.Name()}, ipfamily.IPv4))
	})
}

// zone returns the tracking zone of a router. A router keeps its zone, also that of a version that requested none: in another one, its connections would end.
func (r *Reconciler) zone(owner desired.Owner, router string) int {
	for _, row := range northbound.Of[nb.LogicalRouter](r.Northbound, owner) {
		if row.Name == router {
			return translate.ReadEgressZone(row)
		}
	}
	used := map[int]bool{}
	northbound.Each(r.Northbound, translate.KindEgressAddress, func(_ desired.Owner, row *nb.LogicalRouter) {
		used[translate.ReadEgressZone(row)] = true
	})
	return translate.NewEgressZone(router, func(zone int) bool { return used[zone] })
}

func (r *Reconciler) picker() join.Picker {
	return join.Picker{Client: r.Client, Allocator: r.Allocator, Leases: r.Leases}
}
