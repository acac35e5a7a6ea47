// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/knftables"
)

// writer keeps the table equal to what Services want, by differences.
type writer struct {
	nft    knftables.Interface
	claims claims
	have   map[types.NamespacedName][]pool
	// uses counts the elements that lead to a chain. One that nobody uses stays until there are more than spareChains of them.
	uses     map[chain]int
	unused   map[chain]bool
	guards   map[chain]*guard
	services []netip.Prefix
}

// spareChains is how many unused chains are kept: a Service that scales passes through many sizes, and back.
const spareChains = 32

func newWriter(nft knftables.Interface) *writer {
	w := &writer{nft: nft}
	w.forget()
	return w
}

// forget makes the writer know nothing, as at its start; the next write has to be a rewrite.
func (w *writer) forget() {
	w.claims, w.have = claims{}, map[types.NamespacedName][]pool{}
	w.uses, w.unused, w.guards = map[chain]int{}, map[chain]bool{}, map[chain]*guard{}
}

// change is what one Service is to have; nothing when it is gone.
type change struct {
	service types.NamespacedName
	since   metav1.Time // when the Service was created
	pools   []pool
	// healthPort is where load balancers outside ask for the number of its ready endpoints here; 0 for nowhere.
	healthPort int32
	readyHere  int
}

// current is, by front, the endpoints that clients may go on with.
type current map[place]map[netip.AddrPort]bool

// before is what Services have so far.
func (w *writer) before(changes []change) map[types.NamespacedName][]pool {
	out := make(map[types.NamespacedName][]pool, len(changes))
	for _, c := range changes {
		out[c.service] = w.have[c.service]
	}
	return out
}

// register takes down what Services want, and returns others on which that has an effect: take has to be told of all of them.
func (w *writer) register(changes []change) (affected []types.NamespacedName) {
	for i := range changes {
		affected = append(affected, w.claims.register(&changes[i])...)
	}
	return affected
}

// affected are those fronts of UDP, and those with session affinity, whose endpoints have changed. The changes are written: fronts that
// another Service has are none of theirs.
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
			return slices.Equal(a.slots, b.slots) && len(a.fronts) == len(b.fronts)
		})
	}
	changes = slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return !changed(c) })
	for _, c := range changes {
		for i := range before[c.service] {
			record(&before[c.service][i], nil)
		}
	}
	for _, c := range changes { // after all that is given up: one may have now what another one had
		for i := range c.pools {
			record(&c.pools[i], c.pools[i].slots)
		}
	}
	return udp, sticky
}

// difference is between two states of Services' elements.
type difference struct {
	gone, come map[element]string
}

// take records what registered Services are to have, and returns the difference. What one gives up another may have at once.
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

// update writes a difference, in one transaction.
func (w *writer) update(ctx context.Context, d difference) error {
	if len(d.gone)+len(d.come) == 0 {
		return nil
	}
	tx := w.nft.NewTransaction()
	for e := range d.gone {
		tx.Delete(e.of(""))
	}
	w.write(tx, d)
	if err := w.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write nftables table %s: %w", Table, err)
	}
	w.tidy(ctx)
	return nil
}

// write adds chains that come into use, and elements.
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

// rewrite makes the whole table be so, whatever it is, in one transaction. Clients stay with their endpoints.
func (w *writer) rewrite(ctx context.Context, services []netip.Prefix, changes []change) error {
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

// chains are those of a table that an earlier process left which many Services share.
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

// tidy deletes unused chains once they are many. It is apart from the transaction that matters: kernels have refused to delete a chain
// that an element led to a moment ago. Then it stays, and is tried again.
func (w *writer) tidy(ctx context.Context) {
	if len(w.unused) <= spareChains {
		return
	}
	tx := w.nft.NewTransaction()
	for c := range w.unused {
		tx.Flush(&knftables.Chain{Name: c.name()})
		tx.Delete(&knftables.Chain{Name: c.name()})
	}
	if w.nft.Run(ctx, tx) == nil {
		for c := range w.unused {
			delete(w.guards, c)
		}
		clear(w.unused)
	}
}

// intact reports whether the table's own rules are there: others may have flushed it.
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
