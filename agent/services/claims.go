// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// claims is which Service has each place. The first one to come keeps it.
type claims struct {
	holder map[place]types.NamespacedName
	// rivals wait for a place.
	rivals map[place]map[types.NamespacedName]bool
	// of is what each Service has or waits for.
	of map[types.NamespacedName][]place
}

// settle gives a Service the places it wants and takes fronts whose place another has out of its pools. It returns the Services that
// waited for what this one gives up.
func (c *claims) settle(service types.NamespacedName, pools []pool) (again []types.NamespacedName) {
	if c.holder == nil {
		c.holder, c.of = map[place]types.NamespacedName{}, map[types.NamespacedName][]place{}
		c.rivals = map[place]map[types.NamespacedName]bool{}
	}
	wanted := map[place]bool{}
	for i := range pools {
		p := &pools[i]
		p.fronts = slices.DeleteFunc(p.fronts, func(f front) bool {
			at := p.place(f)
			if wanted[at] {
				return true
			}
			wanted[at] = true
			return !c.claim(service, at)
		})
	}
	for _, at := range c.of[service] {
		if !wanted[at] {
			again = append(again, c.release(service, at)...)
		}
	}
	delete(c.of, service)
	for at := range wanted {
		c.of[service] = append(c.of[service], at)
	}
	return again
}

func (c *claims) claim(service types.NamespacedName, at place) bool {
	holder, held := c.holder[at]
	if held && holder != service {
		if c.rivals[at] == nil {
			c.rivals[at] = map[types.NamespacedName]bool{}
		}
		c.rivals[at][service] = true
		return false
	}
	c.holder[at] = service
	return true
}

func (c *claims) release(service types.NamespacedName, at place) (again []types.NamespacedName) {
	delete(c.rivals[at], service)
	if c.holder[at] == service {
		delete(c.holder, at)
		for rival := range c.rivals[at] {
			again = append(again, rival)
		}
		slices.SortFunc(again, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	}
	if c.holder[at] == (types.NamespacedName{}) || len(c.rivals[at]) == 0 {
		delete(c.rivals, at)
	}
	return again
}
