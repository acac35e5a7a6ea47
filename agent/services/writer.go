// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/knftables"
)

// writer keeps the table equal to the wanted state of Services, by writing differences.
type writer struct {
	nft    knftables.Interface
	claims claims
	have   map[types.NamespacedName][]pool
	// uses counts the elements that refer to a chain. Unused chains stay until there are more than spareChains of them.
	uses     map[chain]int
	unused   map[chain]bool
	stuck    int // number of unused chains whose last deletion failed
	guards   map[chain]*guard
	released map[place]time.Time // when fronts were recorded in setReleased, without those whose elements have expired
	services []netip.Prefix
}

// spareChains is the number of unused chains that are retained: a Service that scales needs chains of many sizes, often repeatedly.
const spareChains = 32

func newWriter(nft knftables.Interface) *writer {
	w := &writer{nft: nft, released: map[place]time.Time{}}
	w.forget()
	return w
}

// forget resets the writer to its initial state; the next write must be a rewrite.
func (w *writer) forget() {
	w.claims, w.have = claims{}, map[types.NamespacedName][]pool{}
	w.uses, w.unused, w.stuck, w.guards = map[chain]int{}, map[chain]bool{}, 0, map[chain]*guard{}
}

// change is the desired state of one Service; without pools if it was deleted.
type change struct {
	service types.NamespacedName
	since   metav1.Time // when the Service was created
	pools   []pool
	// healthPort is the port at which external load balancers request the number of ready endpoints on this node; 0 for none.
	healthPort int32
	readyHere  int
}

// current holds, by front, the endpoints that clients may continue to use.
type current map[place]map[netip.AddrPort]bool

// orNone adds a front without endpoints, unless it has some.
func (c current) orNone(at place) {
	if _, known := c[at]; !known {
		c[at] = nil
	}
}

// before returns the recorded pools of the Services in changes.
func (w *writer) before(changes []change) map[types.NamespacedName][]pool {
	out := make(map[types.NamespacedName][]pool, len(changes))
	for _, c := range changes {
		out[c.service] = w.have[c.service]
	}
	return out
}

// register records the places that Services request, and returns the other Services affected by that. All of them must be passed to take.
func (w *writer) register(changes []change) (affected []types.NamespacedName) {
	for i := range changes {
		affected = append(affected, w.claims.register(&changes[i])...)
	}
	return affected
}

// affected returns the endpoints of changed Services by front: of UDP fronts, and of fronts with session affinity. It must run after
// take, which removes fronts that another Service has.
func affected(before map[types.NamespacedName][]pool, changes []change, whole bool) (udp, sticky current) {
	udp, sticky = current{}, current{}
	record := func(p *pool, endpoints []netip.AddrPort) {
		set := map[netip.AddrPort]bool{}
		for _, e := range endpoints {
			set[e] = true
		}
		for _, f := range p.fronts {
			if p.proto == "udp" {
				udp[p.place(f)] = set
			}
			if p.affinity > 0 {
				sticky[p.place(f)] = set
			}
		}
	}
	changed := func(c change) bool {
		return whole || !slices.EqualFunc(before[c.service], c.pools, func(a, b pool) bool {
			return slices.Equal(a.slots, b.slots) && sameFronts(a, b)
		})
	}
	changes = slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return !changed(c) })
	for _, c := range changes {
		for i := range before[c.service] {
			record(&before[c.service][i], nil)
		}
	}
	for _, c := range changes { // after the released fronts, because another Service may have one of them now
		for i := range c.pools {
			record(&c.pools[i], c.pools[i].slots)
		}
	}
	return udp, sticky
}

func sameFronts(a, b pool) bool {
	return slices.EqualFunc(a.fronts, b.fronts, func(f, g front) bool { return a.place(f) == b.place(g) })
}

// difference is the difference between two states of the table's elements.
type difference struct {
	gone, come map[element]string
}

// take records the desired state of registered Services and returns the difference. One Service may release an element and another get it
// in the same difference.
func (w *writer) take(changes []change) difference {
	d := difference{gone: map[element]string{}, come: map[element]string{}}
	for _, c := range changes {
		for i := range w.have[c.service] {
			w.have[c.service][i].elements(d.remove)
		}
		delete(w.have, c.service)
	}
	for _, c := range changes {
		w.claims.settle(c.service, c.pools)
		for i := range c.pools {
			c.pools[i].elements(d.add)
			for _, f := range c.pools[i].fronts {
				if f.guard != nil {
					w.guards[f.guard.chain] = f.guard
				}
			}
		}
		if len(c.pools) > 0 {
			w.have[c.service] = c.pools
		}
	}
	return d
}

func (d *difference) remove(e element, value string) { d.gone[e] = value }

func (d *difference) add(e element, value string) {
	if old, ok := d.gone[e]; ok && old == value {
		delete(d.gone, e)
		return
	}
	d.come[e] = value
}

// update writes a difference in one transaction. It also records the released fronts among the pending ones.
func (w *writer) update(ctx context.Context, d difference, fronts pending) error {
	tx := w.nft.NewTransaction()
	for e := range d.gone {
		tx.Delete(e.of(""))
	}
	w.write(tx, d)
	w.release(tx, fronts)
	if tx.NumOperations() == 0 {
		return nil
	}
	if err := w.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write nftables table %s: %w", Table, err)
	}
	w.tidy(ctx)
	return nil
}

// release records the fronts that no longer belong to a Service. Tenants can release fronts without a pause, so the number of records is bounded; of
// fronts beyond the bound, connections stay if the process crashes at this moment.
func (w *writer) release(tx *knftables.Transaction, fronts pending) {
	now := time.Now()
	if len(w.released)+len(fronts) > maxReleased {
		maps.DeleteFunc(w.released, func(_ place, at time.Time) bool { return now.Sub(at) > releasedFor })
	}
	for at := range fronts {
		if w.claims.holder(at) != (types.NamespacedName{}) {
			continue
		}
		element := &knftables.Element{Set: at.family.object(setReleased, at.node()), Key: []string{at.key()}}
		if _, again := w.released[at]; again { // the element may be there, and would keep its time
			tx.Add(element)
			tx.Delete(element)
		} else if len(w.released) >= maxReleased {
			continue
		}
		tx.Add(element)
		w.released[at] = now
	}
}

// write adds elements, and the chains that they need.
func (w *writer) write(tx *knftables.Transaction, d difference) {
	for _, value := range d.come {
		c, ok := chainOf(value)
		if !ok {
			continue
		}
		if w.uses[c]++; w.uses[c] == 1 && !w.unused[c] {
			w.addChain(tx, c)
		}
		delete(w.unused, c)
	}
	for _, value := range d.gone {
		c, ok := chainOf(value)
		if !ok {
			continue
		}
		if w.uses[c]--; w.uses[c] == 0 {
			delete(w.uses, c)
			w.unused[c] = true
		}
	}
	elementsWritten.Add(float64(len(d.come) + len(d.gone)))
	for e, value := range d.come {
		tx.Add(e.of(value))
	}
}

func (w *writer) addChain(tx *knftables.Transaction, c chain) {
	tx.Add(&knftables.Chain{Name: c.name()})
	tx.Flush(&knftables.Chain{Name: c.name()})
	rules := c.rules
	if g := w.guards[c]; g != nil {
		rules = g.rules
	}
	for _, rule := range rules() {
		tx.Add(&knftables.Rule{Chain: c.name(), Rule: rule})
	}
}

func (e element) of(value string) *knftables.Element {
	if isSet(e.object) {
		return &knftables.Element{Set: e.object, Key: []string{e.key}}
	}
	element := &knftables.Element{Map: e.object, Key: []string{e.key}}
	if value != "" {
		element.Value = []string{value}
	}
	return element
}

// rewrite replaces the whole table in one transaction, whatever its state, and records the released fronts among the pending ones. Clients
// keep their endpoints (session affinity).
func (w *writer) rewrite(ctx context.Context, services []netip.Prefix, changes []change, fronts pending) error {
	chains, err := w.chains(ctx)
	if err != nil {
		return err
	}
	w.forget()
	w.services = services
	tx := w.nft.NewTransaction()
	declare(tx, services)
	w.register(changes)
	w.write(tx, w.take(changes))
	w.release(tx, fronts)
	if err := w.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write nftables table %s: %w", Table, err)
	}
	for _, c := range chains {
		if w.uses[c] == 0 {
			w.unused[c] = true
		}
	}
	w.tidy(ctx)
	return nil
}

// chains returns the shared chains of the table, as an earlier process may have left them.
func (w *writer) chains(ctx context.Context) ([]chain, error) {
	names, err := w.nft.List(ctx, "chains")
	if err != nil && !knftables.IsNotFound(err) {
		return nil, fmt.Errorf("list chains of nftables table %s: %w", Table, err)
	}
	var out []chain
	for _, name := range names {
		c, ok := parseChain(name)
		if ok && (strings.HasSuffix(c.kind, kindPick) || strings.HasSuffix(c.kind, kindKeep) || c.kind == kindRemember || strings.HasPrefix(c.kind, kindGuard)) {
			out = append(out, c)
		}
	}
	return out, nil
}

// tidy deletes unused chains if there are many. It uses a separate transaction, because kernels have refused to delete a chain that an
// element referred to a moment before. The chains whose deletion fails stay until there are spareChains more.
func (w *writer) tidy(ctx context.Context) {
	w.stuck = min(w.stuck, len(w.unused)) // stuck chains may be in use again
	if len(w.unused) <= w.stuck+spareChains {
		return
	}
	err := w.deleteUnused(ctx)
	if w.stuck = len(w.unused); err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "cannot delete unused chains; they stay, and are tried again later", "chains", w.stuck)
	}
}

// deleteUnused deletes unused chains.
func (w *writer) deleteUnused(ctx context.Context) error {
	d := deletion[chain]{
		nft: w.nft,
		write: func(tx *knftables.Transaction, c chain) {
			tx.Flush(&knftables.Chain{Name: c.name()})
			tx.Delete(&knftables.Chain{Name: c.name()})
		},
		deleted: func(chains []chain) {
			for _, c := range chains {
				delete(w.unused, c)
				delete(w.guards, c)
			}
		},
	}
	if err := d.run(ctx, slices.Collect(maps.Keys(w.unused))); err != nil {
		return fmt.Errorf("delete chains of nftables table %s: %w", Table, err)
	}
	return nil
}

// intact reports whether the static rules exist: other programs may have flushed the table.
func (w *writer) intact(ctx context.Context) bool {
	want := 0
	for _, r := range staticRules() {
		if r[0] == chainServices {
			want++
		}
	}
	rules, err := w.nft.ListRules(ctx, chainServices)
	return err == nil && len(rules) == want
}
