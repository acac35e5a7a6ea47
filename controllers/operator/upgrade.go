// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// upgrade is what the next replacements of pods follow from: what is there, and nothing that an earlier pass remembers but the order in which
// images were wanted. OVN wants ovn-controller never older than ovn-northd, so that nodes come first, and last on the way back.
type upgrade struct {
	mode v1alpha1.UpgradeMode
	// maxUnavailable nodes, at least one.
	maxUnavailable int
	nodes          []upgradeNode
	// sets by component: the databases, northd and the controller.
	sets map[string]upgradeSet
}

// upgradeNode is a node that answers, with its pods of Open vSwitch and the agent.
type upgradeNode struct {
	name             string
	canary           bool
	openVSwitch, cni upgradePod
}

// upgradePod is one pod. The zero value is one that is missing.
type upgradePod struct {
	name string
	// silent: its node does not answer.
	silent bool
	// there: not on its way out. current: of the newest template. newer: of an image that was wanted later than the one that is now.
	// dead: its container does not run, so that nothing is lost with it. One that runs and is not ready may forward packets all the same.
	there, current, newer, ready, dead bool
	trouble                            string
}

// upgradeSet is a workload that is not on every node.
type upgradeSet struct {
	want int
	pods []upgradePod
	// untold: a Deployment that is there and holds its pods at an older template.
	untold bool
}

// upgradePlan is what may be replaced now.
type upgradePlan struct {
	// stage is empty when nothing is to be replaced.
	stage v1alpha1.UpgradeStage
	back  bool
	// replace are names of pods on nodes.
	replace []string
	// release are components whose pods may be replaced.
	release map[string]bool
	message string
	// stuck: a person has to do something. held: a person asked for it.
	stuck, held bool
}

// allows says whether the pods of a component may be replaced.
func (p upgradePlan) allows(component string) bool { return p.stage == "" || p.release[component] }

func (p upgradePlan) direction() string {
	switch {
	case p.stage == "":
		return ""
	case p.back:
		return v1alpha1.DirectionBack
	}
	return v1alpha1.DirectionForward
}

// upgradeStages in the order of an upgrade.
var upgradeStages = []struct {
	stage      v1alpha1.UpgradeStage
	components []string
}{
	{v1alpha1.StageNodes, nil},
	{v1alpha1.StageDatabases, []string{render.NorthboundName, render.SouthboundName}},
	{v1alpha1.StageNorthd, []string{render.NorthdName}},
	{v1alpha1.StageController, []string{render.ControllerName}},
}

// plan returns what may be replaced now.
func (u upgrade) plan() upgradePlan {
	if !u.outdated() {
		return upgradePlan{}
	}
	// What is too new goes back first, and only that; then what is too old goes forward.
	p := upgradePlan{back: u.any(upgradePod.tooNew), release: map[string]bool{}}
	stages := slices.Clone(upgradeStages)
	if p.back {
		slices.Reverse(stages)
	}
	for _, s := range stages {
		p.stage = s.stage
		if s.stage == v1alpha1.StageNodes {
			if !u.nodesDone(p.back) {
				u.planNodes(&p)
				return p
			}
			continue
		}
		for _, component := range s.components {
			if !u.sets[component].done(p.back) {
				u.planSet(&p, component)
				return p
			}
		}
	}
	return upgradePlan{} // what is left is of nodes that do not answer
}

// outdated says whether anything is not of the newest template.
func (u upgrade) outdated() bool {
	for _, s := range u.sets {
		if s.untold {
			return true
		}
	}
	return u.any(upgradePod.old)
}

func (u upgrade) any(is func(upgradePod) bool) bool {
	for _, n := range u.nodes {
		if is(n.openVSwitch) || is(n.cni) {
			return true
		}
	}
	for _, s := range u.sets {
		if slices.ContainsFunc(s.pods, is) {
			return true
		}
	}
	return false
}

// old pods are to be replaced, or end already.
func (p upgradePod) old() bool { return p.name != "" && !p.current }

// tooNew pods are to go back. Those of nodes that do not answer are not waited for.
func (p upgradePod) tooNew() bool { return p.newer && !p.silent }

// due is what is to be replaced on the way back or forward.
func due(back bool) func(upgradePod) bool {
	if back {
		return upgradePod.tooNew
	}
	return upgradePod.old
}

func (p upgradePod) serves() bool { return p.there && p.ready }

// done: the stages after this one may begin. On the way back it is enough that nothing newer is left: what does not serve then may wait for one
// of them.
func (s upgradeSet) done(back bool) bool {
	if slices.ContainsFunc(s.pods, due(back)) {
		return false
	}
	serving := 0
	for _, p := range s.pods {
		if p.serves() {
			serving++
		}
	}
	return back || !s.untold && serving >= s.want
}

// planSet lets one workload replace its pods.
func (u upgrade) planSet(p *upgradePlan, component string) {
	set := u.sets[component]
	updated := 0
	for _, pod := range set.pods {
		if pod.current {
			updated++
		}
	}
	p.message = fmt.Sprintf("%s: %d of %d updated", component, updated, set.want)
	if u.hold(p) {
		return
	}
	// A workload that fails on its new template is not stopped: it replaces no more than one pod beyond those that serve.
	p.release[component] = true
	p.note(set.pods...)
}

// hold stops what a person wants stopped.
func (u upgrade) hold(p *upgradePlan) bool {
	switch {
	case u.mode == v1alpha1.UpgradePaused:
		p.message += "; paused: set spec.upgrade.mode to Automatic to go on"
	case u.mode == v1alpha1.UpgradeCanary && !p.back:
		p.message += "; the canary nodes are done: set spec.upgrade.mode to Automatic to go on, or spec.image back"
	default:
		return false
	}
	p.held = true
	return true
}

// note makes the plan stop for a person when one of the new pods fails.
func (p *upgradePlan) note(pods ...upgradePod) bool {
	var troubles []string
	for _, pod := range pods {
		if pod.current && pod.trouble != "" {
			troubles = append(troubles, pod.trouble)
		}
	}
	if len(troubles) == 0 {
		return false
	}
	p.stuck = true
	p.message += "; stopped: " + strings.Join(few(troubles), "; ") + "; mend it, or set spec.image back"
	return true
}

// nodesDone: every node that answers has its new pods; on the way forward they serve as well.
func (u upgrade) nodesDone(back bool) bool {
	return !slices.ContainsFunc(u.nodes, func(n upgradeNode) bool { return !n.done(back) })
}

func (n upgradeNode) done(back bool) bool {
	if back {
		return !n.openVSwitch.tooNew() && !n.cni.tooNew()
	}
	return n.openVSwitch.current && n.cni.current && n.serves()
}

func (n upgradeNode) serves() bool { return n.openVSwitch.serves() && n.cni.serves() }

// waits for a pod that is being made, or that is new and not ready yet.
func (n upgradeNode) waits() bool {
	waits := func(p upgradePod) bool { return !p.there || p.current && !p.ready }
	return waits(n.openVSwitch) || waits(n.cni)
}

// begun: one of its two pods is new.
func (n upgradeNode) begun() bool { return n.openVSwitch.current != n.cni.current }

// next is the pod of the node to replace now; the zero value when it has to wait for itself, or is done. Open vSwitch comes before its agent, and on the
// way back after it. They are never both away by our hand: one is replaced when the other serves, or will not for a reason that is known, or when it
// fails itself, which the other may be waiting for.
func (n upgradeNode) next(back bool) upgradePod {
	order := []upgradePod{n.openVSwitch, n.cni}
	if back {
		slices.Reverse(order)
	}
	first, second := order[0], order[1]
	due := due(back)
	fails := func(p upgradePod) bool { return p.there && (p.trouble != "" || p.dead) }
	settled := func(p upgradePod) bool { return p.serves() || fails(p) }
	switch {
	case due(first):
		if first.there && (settled(second) || fails(first) && second.there) {
			return first
		}
	case due(second) && second.there && settled(first) && (first.serves() || back):
		return second
	}
	return upgradePod{}
}

// planNodes replaces pods on as many nodes as may be away at once: first where nothing is lost by it, then canaries, then where it has begun.
func (u upgrade) planNodes(p *upgradePlan) {
	var fresh []upgradePod
	updated, down, begun := 0, 0, 0
	for _, n := range u.nodes {
		if n.waits() {
			begun++
		}
		fresh = append(fresh, n.openVSwitch)
		if n.openVSwitch.current { // otherwise it may be what its agent fails for
			fresh = append(fresh, n.cni)
		}
		if n.done(p.back) {
			updated++
		}
		if !n.serves() {
			down++
		}
	}
	p.message = fmt.Sprintf("%d of %d nodes updated", updated, len(u.nodes))
	candidates, canary := u.nodes, false
	if !p.back {
		candidates, canary = u.candidates()
	}
	switch {
	case canary && len(candidates) == 0:
		p.stuck = true
		p.message += "; no node that answers matches spec.upgrade.canaryNodeSelector: label one, or change the selector"
		return
	case canary && u.mode != v1alpha1.UpgradePaused: // they are what may be replaced
	case u.hold(p):
		return
	}
	stopped := p.note(fresh...)
	for _, n := range byUrgency(candidates) {
		pod := n.next(p.back)
		fails := pod.dead || pod.trouble != ""
		if pod.name == "" || stopped && !fails {
			continue
		}
		others := down
		if !n.serves() {
			others--
		}
		switch {
		case pod.dead:
		case others < u.maxUnavailable:
			down = others + 1
		case fails && begun < u.maxUnavailable: // all of them may wait for what is new
			begun++
		default:
			continue
		}
		p.replace = append(p.replace, pod.name)
	}
}

// candidates are the canary nodes while one of them is not done, or there has to be one and is not; otherwise all.
func (u upgrade) candidates() (nodes []upgradeNode, canary bool) {
	var canaries []upgradeNode
	done := true
	for _, n := range u.nodes {
		if n.canary {
			canaries = append(canaries, n)
			done = done && n.done(false)
		}
	}
	if !done || len(canaries) == 0 && u.mode == v1alpha1.UpgradeCanary {
		return canaries, true
	}
	return u.nodes, false
}

// nextMember returns the index of the member of a database to replace, the first old one, when all others of the wanted number serve. -1 is none.
func nextMember(want int, members []upgradePod) int {
	if len(members) < want {
		return -1
	}
	return slices.IndexFunc(members, func(m upgradePod) bool {
		others := func(o upgradePod) bool { return o.name != m.name && !o.serves() }
		return m.old() && m.there && !slices.ContainsFunc(members, others)
	})
}

func byUrgency(nodes []upgradeNode) []upgradeNode {
	rank := func(n upgradeNode) int {
		switch {
		case !n.serves():
			return 0
		case n.begun():
			return 1
		}
		return 2
	}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b upgradeNode) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.name, b.name))
	})
	return nodes
}

// want adds an image that was not wanted before, as the newest.
func want(images []string, image string) []string {
	if slices.Contains(images, image) {
		return images
	}
	images = append(slices.Clone(images), image)
	return images[max(0, len(images)-rememberedImages):]
}

// settle forgets what was wanted after the image that every component runs now: to come to it again is to go forward.
func settle(images []string, image string) []string {
	return images[:slices.Index(images, image)+1]
}

// rememberedImages is how many images back it is known to be back.
const rememberedImages = 10

// newer: this image was wanted later than the one that is now.
func newer(images []string, wanted, image string) bool {
	return slices.Contains(images[slices.Index(images, wanted)+1:], image)
}
