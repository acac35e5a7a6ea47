// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package services makes Services reachable from the node itself and from outside: ClusterIPs, external addresses and node ports. Pods
// reach Services through OVN's load balancers. The package writes to its own nftables table. A change of a Service changes only a few
// elements of its maps.
//
// The table selects an endpoint with two map look-ups, however many Services there are, and has no rule for a single Service. First, the
// map `fronts` maps a packet's address, protocol and port to the chain for the Service's number of endpoints. Then this chain draws a
// random number, and the map `endpoints` returns the endpoint with this number.
package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/knftables"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/serving/budget"
	"github.com/kiln-net/kiln/internal/svc"
)

const (
	// resync is the interval of checks of the table without an event: no event reports changes that other programs make in nftables.
	resync = time.Minute
	// retry is the delay after a failed write.
	retry = time.Second
)

// Proxy makes Services reachable on a node.
type Proxy struct {
	Cache cache.Cache
	// Node is this node's name.
	Node string
	// NFT writes the inet table Table.
	NFT knftables.Interface
	// CIDRs are the CIDRs of Services: connections to their unserved addresses are rejected.
	CIDRs svc.CIDRs
	// KubeProxy, if set, detects whether kube-proxy serves Services on the node too, and reports the conflict.
	KubeProxy *KubeProxyCheck

	mu     sync.Mutex
	dirty  map[types.NamespacedName]bool
	cidrs  bool // the CIDRs of Services may have changed
	nodes  bool // the addresses of other nodes may have changed
	wake   chan struct{}
	writer *writer
	// pending has the fronts that Services had before failed passes, and those that an earlier process left in the table, until a pass has
	// ended the connections and sessions to the ones that no longer belong to a Service.
	pending pending
	budget  budget.Budget
	health  health
}

// Start runs until ctx ends (manager.Runnable). The kernel's state stays.
func (p *Proxy) Start(ctx context.Context) error {
	exportMetrics()
	p.dirty, p.wake, p.writer = map[types.NamespacedName]bool{}, make(chan struct{}, 1), newWriter(p.NFT)
	switch err := p.watch(ctx); {
	case ctx.Err() != nil: // shutdown while caches are read is not an error
		return nil
	case err != nil:
		return err
	}
	var err error
	if p.pending, err = inheritedFronts(ctx, p.NFT); err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "cannot read the fronts of an earlier process; connections to those given up since then stay")
	}
	p.loop(ctx)
	return nil
}

// loop writes changes. Changes that arrive during a write, or in the pause after a failed one, are batched in the next one.
func (p *Proxy) loop(ctx context.Context) {
	check := time.NewTimer(0) // wake-ups do not move it: tenants may cause them without a pause
	defer check.Stop()
	wake, again := p.wake, (<-chan time.Time)(nil)
	whole := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-again:
		case <-check.C:
			whole = whole || !p.writer.intact(ctx)
			p.checkKubeProxy(ctx)
			check.Reset(k8s.Periodic(resync))
		}
		wake, again = p.wake, nil
		if err := p.sync(ctx, whole); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "cannot make Services reachable")
			syncErrors.Inc()
			whole, wake, again = true, nil, time.After(retry) // without wake-ups: each would write the whole table
		} else {
			whole = false
		}
	}
}

func (p *Proxy) checkKubeProxy(ctx context.Context) {
	if p.KubeProxy == nil {
		return
	}
	if err := p.KubeProxy.Update(ctx); err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "cannot find out whether kube-proxy's rules are here")
	}
}

// addressesOf returns a function that returns the addresses of another node; none while its IP object is not in the cache.
func (p *Proxy) addressesOf(ctx context.Context) func(node string) []netip.Addr {
	return func(node string) []netip.Addr {
		ip := &v1.IP{}
		if err := p.Cache.Get(ctx, client.ObjectKey{Name: v1.NodePortName(node)}, ip, client.UnsafeDisableDeepCopy); err != nil {
			return nil // a node that is new or deleted
		}
		return k8s.AddressesOfNode(ip)
	}
}

// sync writes the changed Services, or the whole table. If it fails, the next pass includes these Services.
func (p *Proxy) sync(ctx context.Context, whole bool) error {
	touched, cidrs, err := p.touched(ctx)
	if err != nil {
		return err
	}
	if err := p.write(ctx, touched, cidrs, whole); err != nil {
		p.mark(touched) // needed for deleted Services, which no list contains
		return err
	}
	return nil
}

// write writes the touched Services, or the whole table. cidrs reports whether the CIDRs of Services may have changed.
func (p *Proxy) write(ctx context.Context, touched []types.NamespacedName, cidrs, whole bool) error {
	began := time.Now()
	services, err := p.CIDRs.List(ctx)
	if err != nil {
		return err
	}
	if whole || cidrs && !slices.Equal(services, p.writer.services) {
		touched, err = p.all(ctx, touched)
		whole = true
	}
	if err != nil || len(touched) == 0 && !whole {
		return err
	}
	wanted, err := p.changesOf(ctx, touched)
	if err == nil && !whole {
		wanted, err = p.withAffected(ctx, wanted)
	}
	if err != nil {
		return err
	}
	before := p.writer.before(wanted)
	p.pending.record(before)
	if whole {
		err = p.writer.rewrite(ctx, services, wanted, p.pending)
	} else {
		err = p.writer.update(ctx, p.writer.take(wanted), p.pending)
	}
	if err != nil {
		return err
	}
	udp, sticky := affected(before, wanted, whole)
	if whole { // otherwise the last pass did not fail, and only before has pending fronts
		for at, sessions := range p.pending {
			if sessions {
				sticky.orNone(at)
			}
			if at.proto == "udp" {
				udp.orNone(at)
			}
		}
	}
	servicesServed.Set(float64(len(p.writer.have)))
	servicesRefused.Set(float64(p.budget.Refused()))
	syncSeconds.Observe(time.Since(began).Seconds())
	p.answer(ctx, wanted)
	if err := p.end(ctx, udp, sticky); err != nil {
		return err
	}
	p.pending = pending{}
	return nil
}

// end ends the UDP connections and sessions of clients to removed endpoints.
func (p *Proxy) end(ctx context.Context, udp, sticky current) error {
	if len(udp)+len(sticky) == 0 {
		return nil
	}
	local, err := localAddresses()
	if err != nil {
		return err
	}
	return errors.Join(endStale(udp, local), p.writer.forgetClients(ctx, sticky, local))
}

// withAffected adds the changes of Services that lose a place to the wanted ones, or may get a place that these release. The caches may
// have changed in between: of two changes of one Service, the newer one is used.
func (p *Proxy) withAffected(ctx context.Context, wanted []change) ([]change, error) {
	there := map[types.NamespacedName]bool{}
	for next := wanted; len(next) > 0; {
		for _, c := range next {
			there[c.service] = true
		}
		var affected []types.NamespacedName
		for _, s := range p.writer.register(next) {
			if !there[s] {
				there[s] = true
				affected = append(affected, s)
			}
		}
		var err error
		if next, err = p.changesOf(ctx, affected); err != nil {
			return nil, err
		}
		newer := map[types.NamespacedName]bool{}
		for _, c := range next {
			newer[c.service] = true
		}
		wanted = append(slices.DeleteFunc(wanted, func(c change) bool { return newer[c.service] }), next...)
	}
	return wanted, nil
}

// answer updates the health check servers.
func (p *Proxy) answer(ctx context.Context, of []change) {
	for _, c := range of {
		p.health.set(ctx, c.service, c.healthPort, c.readyHere)
	}
}

// all returns all existing Services and the deleted ones that are touched or still in the table.
func (p *Proxy) all(ctx context.Context, touched []types.NamespacedName) ([]types.NamespacedName, error) {
	var list corev1.ServiceList
	if err := p.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	out := make([]types.NamespacedName, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, client.ObjectKeyFromObject(&list.Items[i]))
	}
	deleted := sets.New(slices.AppendSeq(touched, maps.Keys(p.writer.have))...).Delete(out...)
	return append(out, deleted.UnsortedList()...), nil
}

// changesOf computes the changes of Services from the caches. It also returns changes of other Services that now exceed a bound, or no
// longer do.
func (p *Proxy) changesOf(ctx context.Context, of []types.NamespacedName) ([]change, error) {
	var all []inputs
	there := sets.New(of...)
	for queue := slices.Clone(of); len(queue) > 0; queue = queue[1:] {
		in, err := p.inputs(ctx, queue[0])
		if err != nil {
			return nil, err
		}
		all = append(all, in)
		for _, other := range p.spend(in) {
			if !there.Has(other) {
				there.Insert(other)
				queue = append(queue, other)
			}
		}
	}
	out := make([]change, 0, len(all))
	for _, in := range all { // after the budget includes all of them
		out = append(out, p.change(ctx, in))
	}
	return out, nil
}

// inputs are the objects on which a node's part in a Service depends; service is nil if it was deleted.
type inputs struct {
	key     types.NamespacedName
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

func (p *Proxy) inputs(ctx context.Context, key types.NamespacedName) (in inputs, err error) {
	in.key = key
	service, err := k8s.Find[corev1.Service](ctx, p.Cache, key, client.UnsafeDisableDeepCopy)
	if err != nil {
		return in, fmt.Errorf("get Service %s: %w", key, err)
	}
	if service != nil {
		in.service = service
		in.slices, err = p.slices(ctx, key)
		return in, err
	}
	return in, nil
}

// spend records the cost of a Service. It returns the other Services whose verdict (within the bounds or not) changes.
func (p *Proxy) spend(in inputs) []types.NamespacedName {
	expense := budget.Object{Key: in.key}
	if in.service != nil && served(in.service) {
		expense = svc.Expense(in.service, v1.DefaultVpc, svc.Flows(in.service, in.slices))
	}
	_, others := p.budget.Set(svc.Bounds, expense)
	return others
}

// change returns the desired state of a Service: empty if it exceeds a bound, which the controller reports by an event.
func (p *Proxy) change(ctx context.Context, in inputs) change {
	c := change{service: in.key}
	if in.service == nil {
		return c
	}
	c.since = in.service.CreationTimestamp
	if p.budget.Verdict(svc.Bounds, in.key) != budget.Within {
		return c
	}
	c.pools = poolsOf(in.service, in.slices, p.Node, p.writer.have[in.key], p.addressesOf(ctx))
	if len(c.pools) > 0 && in.service.Spec.HealthCheckNodePort != 0 {
		c.healthPort, c.readyHere = in.service.Spec.HealthCheckNodePort, readyHere(in.slices, p.Node)
	}
	return c
}

func (p *Proxy) slices(ctx context.Context, service types.NamespacedName) ([]*discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	err := p.Cache.List(ctx, &list, client.InNamespace(service.Namespace), client.MatchingFields{indexService: service.Name},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list EndpointSlices of Service %s: %w", service, err)
	}
	out := make([]*discoveryv1.EndpointSlice, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}

// Remove deletes the table. It is for nodes on which another program serves Services.
func Remove(ctx context.Context, nft knftables.Interface) error {
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{}) // so that the deletion does not fail
	tx.Delete(&knftables.Table{})
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", Table, err)
	}
	return nil
}
