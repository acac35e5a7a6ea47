// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// nodesDone reports whether every node that answers has its new pods. In an upgrade these must also be ready.
func (u Upgrade) nodesDone(back bool) bool {
	return !slices.ContainsFunc(u.Nodes, func(n Node) bool { return !n.done(back) })
}

func (n Node) done(back bool) bool {
	if back {
		return !n.OpenVSwitch.tooNew() && !n.CNI.tooNew()
	}
	return n.OpenVSwitch.Current && n.CNI.Current && n.serves()
}

func (n Node) serves() bool { return n.OpenVSwitch.Serves() && n.CNI.Serves() }

// waits reports whether a pod of the node is missing, or is new and not ready yet.
func (n Node) waits() bool {
	waits := func(p Pod) bool { return !p.Present || p.Current && !p.Ready }
	return waits(n.OpenVSwitch) || waits(n.CNI)
}

// begun reports whether exactly one of the node's two pods is new.
func (n Node) begun() bool { return n.OpenVSwitch.Current != n.CNI.Current }

// next returns the pod of the node to replace now, or the zero value if the node must wait or is done. Open vSwitch is
// replaced before its agent, in a rollback after it. The operator never removes both: it replaces one pod only if the
// other is ready or fails for a known reason, or if the pod itself fails, because the other may wait for it. A pod that
// runs is replaced once the node has the image.
func (n Node) next(back bool) Pod {
	order := []Pod{n.OpenVSwitch, n.CNI}
	if back {
		slices.Reverse(order)
	}
	first, second := order[0], order[1]
	due := due(back)
	fails := func(p Pod) bool { return p.Present && (p.Trouble != "" || p.Dead) }
	settled := func(p Pod) bool { return p.Serves() || fails(p) }
	starts := func(p Pod) bool { return n.hasImage() || p.Dead }
	switch {
	case due(first):
		if first.Present && (settled(second) || fails(first) && second.Present) && starts(first) {
			return first
		}
	case due(second) && second.Present && settled(first) && (first.Serves() || back) && starts(second):
		return second
	}
	return Pod{}
}

// planNodes replaces pods on at most MaxUnavailable nodes at once, not counting pods that do not run. Nodes that do not
// serve come first, then nodes whose replacement has begun. While canaries are not done, only they are candidates.
func (u Upgrade) planNodes(p *Plan) {
	var fresh []Pod
	updated, down, begun := 0, 0, 0
	for _, n := range u.Nodes {
		if n.waits() {
			begun++
		}
		fresh = append(fresh, n.OpenVSwitch)
		if n.OpenVSwitch.Current { // else the agent may fail because of Open vSwitch
			fresh = append(fresh, n.CNI)
		}
		if n.done(p.Back) {
			updated++
		}
		if !n.serves() {
			down++
		}
	}
	p.Message = fmt.Sprintf("%d of %d nodes updated", updated, len(u.Nodes))
	candidates, canary := u.Nodes, false
	if !p.Back {
		candidates, canary = u.candidates()
	}
	switch {
	case canary && len(candidates) == 0:
		p.Stuck = true
		p.Message += "; no node that answers matches spec.upgrade.canaryNodeSelector: label one, or change the selector"
		return
	case canary && u.Mode != v1alpha1.UpgradePaused: // the canaries may be replaced
	case u.hold(p):
		return
	}
	candidates = u.pulls(p, candidates)
	stopped := p.note(fresh...)
	for _, n := range byUrgency(candidates) {
		pod := n.next(p.Back)
		fails := pod.Dead || pod.Trouble != ""
		if pod.Name == "" || stopped && !fails {
			continue
		}
		others := down
		if !n.serves() {
			others--
		}
		switch {
		case pod.Dead:
		case others < u.MaxUnavailable:
			down = others + 1
		case fails && begun < u.MaxUnavailable: // all of them may wait for the new version
			begun++
		default:
			continue
		}
		p.Replace = append(p.Replace, pod.Name)
	}
	if len(p.Replace) == 0 && begun == 0 && !stopped {
		p.noteFailedPulls(candidates)
	}
}

// pulls makes the candidates pull the image that lack it. It returns them, with Pulled set on nodes that refuse to pull: they are replaced
// without it, once another node has shown that the image can be pulled.
func (u Upgrade) pulls(p *Plan, candidates []Node) []Node {
	candidates = slices.Clone(candidates)
	proven := slices.ContainsFunc(u.Nodes, Node.hasImage) ||
		!slices.ContainsFunc(candidates, func(n Node) bool { return n.due(p.Back) && !n.Refused })
	var waiting []string
	for i := range candidates {
		n := &candidates[i]
		if !n.due(p.Back) {
			continue
		}
		p.Pull = p.Pull || !n.HoldsImage
		if n.Pulled = n.Pulled || n.Refused && proven; !n.hasImage() {
			waiting = append(waiting, n.Name)
		}
	}
	if len(waiting) > 0 {
		p.Message += "; pulling the image on " + strings.Join(Few(waiting), ", ")
	}
	return candidates
}

// noteFailedPulls stops the plan if only nodes are left that cannot pull the image, until a person acts.
func (p *Plan) noteFailedPulls(candidates []Node) {
	var failed []Pod
	for _, n := range candidates {
		if n.due(p.Back) && !n.hasImage() {
			failed = append(failed, Pod{Current: true, Trouble: n.PullTrouble})
		}
	}
	p.note(failed...)
}

// candidates returns the canary nodes while one of them is not done, or if the mode requires a canary and there is none.
// Otherwise it returns all nodes.
func (u Upgrade) candidates() (nodes []Node, canary bool) {
	var canaries []Node
	done := true
	for _, n := range u.Nodes {
		if n.Canary {
			canaries = append(canaries, n)
			done = done && n.done(false)
		}
	}
	if !done || len(canaries) == 0 && u.Mode == v1alpha1.UpgradeCanary {
		return canaries, true
	}
	return u.Nodes, false
}

func byUrgency(nodes []Node) []Node {
	rank := func(n Node) int {
		switch {
		case !n.serves():
			return 0
		case n.begun():
			return 1
		}
		return 2
	}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	return nodes
}
