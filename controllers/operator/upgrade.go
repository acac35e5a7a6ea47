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

// upgrade is the input of the plan of pod replacements: the observed pods and nodes. The only state of earlier passes is
// the order in which images were requested. OVN requires that ovn-controller is never older than ovn-northd. So nodes
// come first in an upgrade and last in a rollback.
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
	// holdsImage is set if a container of one of these pods has started from the image, pulled if a container of ImageName's pod has.
	// refused is set if the node or the scheduler refuses that pod. pullTrouble is why the image cannot be pulled.
	holdsImage, pulled, refused bool
	pullTrouble                 string
}

// hasImage reports whether a new pod can start without a pull. While a pod of Open vSwitch is missing, the node forwards only known flows,
// or nothing.
func (n upgradeNode) hasImage() bool { return n.holdsImage || n.pulled }

// due reports whether a pod of the node has to be replaced.
func (n upgradeNode) due(back bool) bool { return due(back)(n.openVSwitch) || due(back)(n.cni) }

// upgradePod is one pod. The zero value is a missing pod.
type upgradePod struct {
	name string
	// silent is set if its node does not answer.
	silent bool
	// there is set if the pod is not being deleted. current is set if it has the current template. newer is set if its
	// image was requested after the image that the spec requests now. dead is set if its container does not run, so that
	// a replacement interrupts nothing. A pod that runs and is not ready may still forward packets.
	there, current, newer, ready, dead bool
	trouble                            string
}

// upgradeSet is a workload that does not run on every node.
type upgradeSet struct {
	want int
	pods []upgradePod
	// unfinished is set if a Deployment exists that still has the previous template or is paused.
	unfinished bool
}

// upgradePlan lists the pods that may be replaced now.
type upgradePlan struct {
	// stage is empty if there is nothing to replace.
	stage v1alpha1.UpgradeStage
	back  bool
	// replace are names of pods on nodes.
	replace []string
	// release are components whose pods may be replaced.
	release map[string]bool
	message string
	// pull is set if nodes must pull the image now.
	pull bool
	// stuck is set if a person has to act, held if the spec pauses the upgrade.
	stuck, held bool
}

// allows reports whether the pods of a component may be replaced.
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

// plan returns the replacements that are allowed now.
func (u upgrade) plan() upgradePlan {
	if !u.outdated() {
		return upgradePlan{}
	}
	// Pods with a newer image roll back first, and only they. Then outdated pods are upgraded.
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
	return upgradePlan{} // all remaining pods are on nodes that do not answer
}

// outdated reports whether any pod or Deployment does not have the current template.
func (u upgrade) outdated() bool {
	for _, s := range u.sets {
		if s.unfinished {
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

// old reports whether a pod must be replaced or is already being deleted.
func (p upgradePod) old() bool { return p.name != "" && !p.current }

// tooNew reports whether a pod must roll back. Pods on nodes that do not answer do not count.
func (p upgradePod) tooNew() bool { return p.newer && !p.silent }

// due returns the function that selects the pods to replace, in a rollback or in an upgrade.
func due(back bool) func(upgradePod) bool {
	if back {
		return upgradePod.tooNew
	}
	return upgradePod.old
}

func (p upgradePod) serves() bool { return p.there && p.ready }

// done reports whether the next stage may begin. In a rollback it suffices that no newer pod is left: pods that are not
// ready may need the rollback of a later stage.
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
	return back || !s.unfinished && serving >= s.want
}

// planSet allows one workload to replace its pods.
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
	// Failing new pods do not stop the workload: it makes at most one more pod unavailable.
	p.release[component] = true
	p.note(set.pods...)
}

// hold pauses the plan if the spec requests it.
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

// note stops the plan if one of the new pods fails, until a person acts.
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
	p.message += "; stopped: " + strings.Join(few(troubles), "; ") + "; fix it, or set the previous spec.image"
	return true
}

// nodesDone reports whether every node that answers has its new pods. In an upgrade these must also be ready.
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

// waits reports whether a pod of the node is missing, or is new and not ready yet.
func (n upgradeNode) waits() bool {
	waits := func(p upgradePod) bool { return !p.there || p.current && !p.ready }
	return waits(n.openVSwitch) || waits(n.cni)
}

// begun reports whether exactly one of the node's two pods is new.
func (n upgradeNode) begun() bool { return n.openVSwitch.current != n.cni.current }

// next returns the pod of the node to replace now, or the zero value if the node must wait or is done. Open vSwitch is
// replaced before its agent, in a rollback after it. The operator never removes both: it replaces one pod only if the
// other is ready or fails for a known reason, or if the pod itself fails, because the other may wait for it. A pod that
// runs is replaced once the node has the image.
func (n upgradeNode) next(back bool) upgradePod {
	order := []upgradePod{n.openVSwitch, n.cni}
	if back {
		slices.Reverse(order)
	}
	first, second := order[0], order[1]
	due := due(back)
	fails := func(p upgradePod) bool { return p.there && (p.trouble != "" || p.dead) }
	settled := func(p upgradePod) bool { return p.serves() || fails(p) }
	starts := func(p upgradePod) bool { return n.hasImage() || p.dead }
	switch {
	case due(first):
		if first.there && (settled(second) || fails(first) && second.there) && starts(first) {
			return first
		}
	case due(second) && second.there && settled(first) && (first.serves() || back) && starts(second):
		return second
	}
	return upgradePod{}
}

// planNodes replaces pods on at most maxUnavailable nodes at once, not counting pods that do not run. Nodes that do not
// serve come first, then nodes whose replacement has begun. While canaries are not done, only they are candidates.
func (u upgrade) planNodes(p *upgradePlan) {
	var fresh []upgradePod
	updated, down, begun := 0, 0, 0
	for _, n := range u.nodes {
		if n.waits() {
			begun++
		}
		fresh = append(fresh, n.openVSwitch)
		if n.openVSwitch.current { // else the agent may fail because of Open vSwitch
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
	case canary && u.mode != v1alpha1.UpgradePaused: // the canaries may be replaced
	case u.hold(p):
		return
	}
	candidates = u.pulls(p, candidates)
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
		case fails && begun < u.maxUnavailable: // all of them may wait for the new version
			begun++
		default:
			continue
		}
		p.replace = append(p.replace, pod.name)
	}
	if len(p.replace) == 0 && begun == 0 && !stopped {
		p.noteFailedPulls(candidates)
	}
}

// pulls makes the candidates pull the image that lack it. It returns them, with pulled set on nodes that refuse to pull: they are replaced
// without it, once another node has shown that the image can be pulled.
func (u upgrade) pulls(p *upgradePlan, candidates []upgradeNode) []upgradeNode {
	candidates = slices.Clone(candidates)
	proven := slices.ContainsFunc(u.nodes, upgradeNode.hasImage) ||
		!slices.ContainsFunc(candidates, func(n upgradeNode) bool { return n.due(p.back) && !n.refused })
	var waiting []string
	for i := range candidates {
		n := &candidates[i]
		if !n.due(p.back) {
			continue
		}
		p.pull = p.pull || !n.holdsImage
		if n.pulled = n.pulled || n.refused && proven; !n.hasImage() {
			waiting = append(waiting, n.name)
		}
	}
	if len(waiting) > 0 {
		p.message += "; pulling the image on " + strings.Join(few(waiting), ", ")
	}
	return candidates
}

// noteFailedPulls stops the plan if only nodes are left that cannot pull the image, until a person acts.
func (p *upgradePlan) noteFailedPulls(candidates []upgradeNode) {
	var failed []upgradePod
	for _, n := range candidates {
		if n.due(p.back) && !n.hasImage() {
			failed = append(failed, upgradePod{current: true, trouble: n.pullTrouble})
		}
	}
	p.note(failed...)
}

// candidates returns the canary nodes while one of them is not done, or if the mode requires a canary and there is none.
// Otherwise it returns all nodes.
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

// nextMember returns the index of the database member to replace: the first outdated one, if all others of the requested
// number serve. It returns -1 for none.
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

// want adds an image as the newest if it is not recorded yet.
func want(images []string, image string) []string {
	if slices.Contains(images, image) {
		return images
	}
	images = append(slices.Clone(images), image)
	return images[max(0, len(images)-rememberedImages):]
}

// settle drops all images that were requested after the image that every component now runs. A later request for one of
// them is an upgrade again.
func settle(images []string, image string) []string {
	return images[:slices.Index(images, image)+1]
}

// rememberedImages is the number of recorded images. A change to an older image is not recognized as a rollback.
const rememberedImages = 10

// newer reports whether this image was requested after the image that the spec requests now.
func newer(images []string, wanted, image string) bool {
	return slices.Contains(images[slices.Index(images, wanted)+1:], image)
}
