// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/svc"
)

// claims records which Services request each place. The Service with the best right gets the place. The result is the same on every node
// and does not depend on the order of events.
type claims struct {
	// of has the rights of the Services that request a place, best first.
	of map[place][]svc.Precedence
	// wanted has the places that each Service requests.
	wanted map[types.NamespacedName][]place
}

// register replaces the places that a Service requests. It returns the other Services that gain or lose a place by that.
func (c *claims) register(change *change) (affected []types.NamespacedName) {
	if c.of == nil {
		c.of, c.wanted = map[place][]svc.Precedence{}, map[types.NamespacedName][]place{}
	}
	had := map[place]types.NamespacedName{}
	for _, at := range c.wanted[change.service] {
		had[at] = c.holder(at)
		c.withdraw(at, change.service)
	}
	delete(c.wanted, change.service)
	for i := range change.pools {
		p := &change.pools[i]
		for _, f := range p.fronts {
			at := p.place(f)
			if _, known := had[at]; !known {
				had[at] = c.holder(at)
			}
			c.add(at, svc.Precedence{Allocated: f.given(), Created: change.since, Service: change.service})
		}
	}
	for at, before := range had {
		now := c.holder(at)
		if now == before {
			continue
		}
		for _, s := range []types.NamespacedName{before, now} {
			if s != change.service && s != (types.NamespacedName{}) && !slices.Contains(affected, s) {
				affected = append(affected, s)
			}
		}
	}
	return affected
}

// add is called for each front of a Service and ignores a place that the Service has requested already.
func (c *claims) add(at place, right svc.Precedence) {
	rights := c.of[at]
	if slices.ContainsFunc(rights, func(o svc.Precedence) bool { return o.Service == right.Service }) {
		return
	}
	i, _ := slices.BinarySearchFunc(rights, right, func(o, r svc.Precedence) int {
		if o.Before(r) {
			return -1
		}
		return 1
	})
	c.of[at] = slices.Insert(rights, i, right)
	c.wanted[right.Service] = append(c.wanted[right.Service], at)
}

func (c *claims) withdraw(at place, service types.NamespacedName) {
	left := slices.DeleteFunc(c.of[at], func(r svc.Precedence) bool { return r.Service == service })
	if len(left) == 0 {
		delete(c.of, at)
		return
	}
	c.of[at] = left
}

// holder returns the Service that has a place; the zero name if no Service requests it.
func (c *claims) holder(at place) types.NamespacedName {
	if rights := c.of[at]; len(rights) > 0 {
		return rights[0].Service
	}
	return types.NamespacedName{}
}

// settle removes from pools duplicate fronts and fronts whose place another Service has.
func (c *claims) settle(service types.NamespacedName, pools []pool) {
	seen := map[place]bool{}
	for i := range pools {
		p := &pools[i]
		p.fronts = slices.DeleteFunc(p.fronts, func(f front) bool {
			at := p.place(f)
			again := seen[at]
			seen[at] = true
			return again || c.holder(at) != service
		})
	}
}
