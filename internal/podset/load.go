// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import "github.com/kiln-net/kiln/internal/northbound/desired"

// World is the complete initial state of an index.
type World struct {
	Namespaces map[string]map[string]string
	Pods       []Pod
	// Connected are the ports that may be in the database.
	Connected map[Key]bool
	Uses      map[desired.Owner][]Selector
	// Led has, by owner and by name, the sets of Egress for which the database leads packets, with the ports that it has in them. The owner may use other sets now, or none.
	Led map[desired.Owner]map[string][]Key
}

// Load fills an index with the result of read. It does not notify observers. It holds the lock, so that events wait: otherwise
// an event between reading and filling would be overwritten, and it would not be repeated. read must not call the index.
func (x *Index) Load(read func() (World, error)) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	w, err := read()
	if err != nil {
		return err
	}
	c := newDelta()
	for name, labels := range w.Namespaces {
		x.setNamespace(c, name, labels)
	}
	for _, p := range w.Pods {
		x.setPod(c, p)
		if stored := x.pods[p.Key]; w.Connected[p.Key] {
			stored.connected = true
		}
	}
	// The sets are complete before the pods get their owners, so that the result does not depend on their order.
	x.loading = true
	for owner, selectors := range w.Uses {
		x.use(c, owner, selectors)
		x.settle(c, owner)
	}
	for owner, led := range w.Led {
		x.lead(c, owner, led)
	}
	x.loading = false
	for _, p := range x.pods {
		x.elect(c, p)
	}
	return nil
}

// lead loads the sets of Egress of an owner for which the database leads packets. Sets that the owner does not use any longer are its current ones until Settle.
func (x *Index) lead(c *delta, owner desired.Owner, led map[string][]Key) {
	for name, keys := range led {
		selector, used := x.names[name]
		if !used {
			selector = Selector{Role: Egress, Owner: "/" + owner.Name, Former: name}
			x.former(c, owner, selector)
		} else if selector.Role != Egress {
			continue // another client wrote the policy
		}
		s := x.sets[selector]
		s.stored, s.led = true, true
		for _, key := range keys {
			p := x.pods[key]
			if p == nil {
				continue
			}
			if _, in := p.in[s]; !in && !used {
				x.add(c, s, p, 0)
			}
			s.pending[p] = struct{}{}
			if _, in := p.in[s]; in {
				s.held[p] = struct{}{}
			} else {
				p.kept = with(p.kept, s)
			}
		}
	}
}

// former makes a set one of the current sets of an owner, and not one of those that it requests.
func (x *Index) former(c *delta, owner desired.Owner, selector Selector) {
	u := x.users[owner]
	if u == nil {
		u = &user{owner: owner, next: map[Selector]struct{}{}}
		x.users[owner] = u
	}
	current := map[Selector]struct{}{selector: {}}
	for s := range u.current {
		current[s] = struct{}{}
	}
	u.current = current // settle shares the former map with next
	x.join(c, selector, u)
	x.sets[selector].leaving = true
}
