// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import "slices"

// group holds the pods that name a security group and the sets for it. The security group itself may not exist.
type group struct {
	pods map[*pod]struct{}
	sets map[*set]struct{}
}

func (x *Index) group(name string) *group {
	g := x.groups[name]
	if g == nil {
		g = &group{pods: map[*pod]struct{}{}, sets: map[*set]struct{}{}}
		x.groups[name] = g
	}
	return g
}

// pruneGroup removes a group without pods and sets.
func (x *Index) pruneGroup(name string) {
	if g := x.groups[name]; g != nil && len(g.pods)+len(g.sets) == 0 {
		delete(x.groups, name)
	}
}

// regroup updates the groups of a pod.
func (x *Index) regroup(c *delta, p *pod, before, after []string) {
	if slices.Equal(before, after) {
		return
	}
	for _, name := range before {
		if slices.Contains(after, name) {
			continue
		}
		g := x.group(name)
		delete(g.pods, p)
		for s := range g.sets {
			x.place(c, s, p, false)
		}
		x.pruneGroup(name)
	}
	for _, name := range after {
		if slices.Contains(before, name) {
			continue
		}
		g := x.group(name)
		g.pods[p] = struct{}{}
		for s := range g.sets {
			x.place(c, s, p, true)
		}
	}
	if p.HostNetwork {
		return
	}
	p.revision++
	c.pods[p] = struct{}{}
	was := x.grouped
	x.grouped += min(len(after), 1) - min(len(before), 1)
	c.grouped = c.grouped || (was == 0) != (x.grouped == 0)
}

// Grouped reports whether any pod with a port names a security group.
func (x *Index) Grouped() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.grouped > 0
}
