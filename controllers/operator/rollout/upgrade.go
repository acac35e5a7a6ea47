// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Upgrade is the input of the plan of pod replacements: the observed pods and nodes. The only state of earlier passes is
// the order in which images were requested. OVN requires that ovn-controller is never older than ovn-northd. So nodes
// come first in an upgrade and last in a rollback.
type Upgrade struct {
	Mode v1alpha1.UpgradeMode
	// MaxUnavailable nodes, at least one.
	MaxUnavailable int
	Nodes          []Node
	// Sets by stage, in the order of replacement: the databases, northd and the controller.
	Sets map[v1alpha1.UpgradeStage][]Set
}

// Node is a node that answers, with its pods of Open vSwitch and the agent.
type Node struct {
	Name             string
	Canary           bool
	OpenVSwitch, CNI Pod
	// HoldsImage is set if a container of one of these pods has started from the image, Pulled if a container of the pod that pulls the
	// image has. Refused is set if the node or the scheduler refuses that pod. PullTrouble is why the image cannot be pulled.
	HoldsImage, Pulled, Refused bool
	PullTrouble                 string
}

// hasImage reports whether a new pod can start without a pull. While a pod of Open vSwitch is missing, the node forwards only known flows,
// or nothing.
func (n Node) hasImage() bool { return n.HoldsImage || n.Pulled }

// due reports whether a pod of the node has to be replaced.
func (n Node) due(back bool) bool { return due(back)(n.OpenVSwitch) || due(back)(n.CNI) }

// Pod is one pod. The zero value is a missing pod.
type Pod struct {
	Name string
	// Silent is set if its node does not answer.
	Silent bool
	// Present is set if the pod is not being deleted. Current is set if it has the current template. Newer is set if its
	// image was requested after the image that the spec requests now. Dead is set if its container does not run, so that
	// a replacement interrupts nothing. A pod that runs and is not ready may still forward packets.
	Present, Current, Newer, Ready, Dead bool
	// Trouble is why the pod fails; empty if it does not.
	Trouble string
}

// Set is a workload that does not run on every node.
type Set struct {
	Component string
	// Want is the number of pods that have to serve before the next stage begins.
	Want int
	Pods []Pod
	// Unfinished is set if a Deployment exists that still has the previous template or is paused.
	Unfinished bool
}

// Plan lists the pods that may be replaced now.
type Plan struct {
	// Stage is empty if there is nothing to replace.
	Stage v1alpha1.UpgradeStage
	// Back is set in a rollback.
	Back bool
	// Replace are names of pods on nodes.
	Replace []string
	// Release are components whose pods may be replaced.
	Release map[string]bool
	// Message describes the progress and, if Stuck or Held is set, what to do.
	Message string
	// Pull is set if nodes must pull the image now.
	Pull bool
	// Stuck is set if a person has to act, Held if the spec pauses the upgrade.
	Stuck, Held bool
}

// Allows reports whether the pods of a component may be replaced.
func (p Plan) Allows(component string) bool { return p.Stage == "" || p.Release[component] }

// Direction returns the direction for the status; empty if there is nothing to replace.
func (p Plan) Direction() string {
	switch {
	case p.Stage == "":
		return ""
	case p.Back:
		return v1alpha1.DirectionBack
	}
	return v1alpha1.DirectionForward
}

// stages in the order of an upgrade.
var stages = []v1alpha1.UpgradeStage{v1alpha1.StageNodes, v1alpha1.StageDatabases, v1alpha1.StageNorthd, v1alpha1.StageController}

// Plan returns the replacements that are allowed now.
func (u Upgrade) Plan() Plan {
	if !u.outdated() {
		return Plan{}
	}
	// Pods with a newer image roll back first, and only they. Then outdated pods are upgraded.
	p := Plan{Back: u.any(Pod.tooNew), Release: map[string]bool{}}
	order := slices.Clone(stages)
	if p.Back {
		slices.Reverse(order)
	}
	for _, stage := range order {
		p.Stage = stage
		if stage == v1alpha1.StageNodes && !u.nodesDone(p.Back) {
			u.planNodes(&p)
			return p
		}
		for _, set := range u.Sets[stage] {
			if !set.done(p.Back) {
				u.planSet(&p, set)
				return p
			}
		}
	}
	return Plan{} // all remaining pods are on nodes that do not answer
}

// Done reports whether the pods of a stage have the current template and serve. A pod that is missing is not outdated, but not done either.
func (u Upgrade) Done(stage v1alpha1.UpgradeStage) bool {
	if stage == v1alpha1.StageNodes {
		return u.nodesDone(false)
	}
	return !slices.ContainsFunc(u.Sets[stage], func(s Set) bool { return !s.done(false) })
}

// outdated reports whether any pod or Deployment does not have the current template.
func (u Upgrade) outdated() bool {
	for _, sets := range u.Sets {
		if slices.ContainsFunc(sets, func(s Set) bool { return s.Unfinished }) {
			return true
		}
	}
	return u.any(Pod.old)
}

func (u Upgrade) any(is func(Pod) bool) bool {
	for _, n := range u.Nodes {
		if is(n.OpenVSwitch) || is(n.CNI) {
			return true
		}
	}
	for _, sets := range u.Sets {
		if slices.ContainsFunc(sets, func(s Set) bool { return slices.ContainsFunc(s.Pods, is) }) {
			return true
		}
	}
	return false
}

// old reports whether a pod must be replaced or is already being deleted.
func (p Pod) old() bool { return p.Name != "" && !p.Current }

// tooNew reports whether a pod must roll back. Pods on nodes that do not answer do not count.
func (p Pod) tooNew() bool { return p.Newer && !p.Silent }

// due returns the function that selects the pods to replace, in a rollback or in an upgrade.
func due(back bool) func(Pod) bool {
	if back {
		return Pod.tooNew
	}
	return Pod.old
}

// Serves reports whether the pod is ready and is not being deleted.
func (p Pod) Serves() bool { return p.Present && p.Ready }

// done reports whether the next stage may begin. In a rollback it suffices that no newer pod is left: pods that are not
// ready may need the rollback of a later stage.
func (s Set) done(back bool) bool {
	if slices.ContainsFunc(s.Pods, due(back)) {
		return false
	}
	serving := 0
	for _, p := range s.Pods {
		if p.Serves() {
			serving++
		}
	}
	return back || !s.Unfinished && serving >= s.Want
}

// planSet allows one workload to replace its pods.
func (u Upgrade) planSet(p *Plan, set Set) {
	updated := 0
	for _, pod := range set.Pods {
		if pod.Current {
			updated++
		}
	}
	p.Message = fmt.Sprintf("%s: %d of %d updated", set.Component, updated, set.Want)
	if u.hold(p) {
		return
	}
	// Failing new pods do not stop the workload: it makes at most one more pod unavailable.
	p.Release[set.Component] = true
	p.note(set.Pods...)
}

// hold pauses the plan if the spec requests it.
func (u Upgrade) hold(p *Plan) bool {
	switch {
	case u.Mode == v1alpha1.UpgradePaused:
		p.Message += "; paused: set spec.upgrade.mode to Automatic to go on"
	case u.Mode == v1alpha1.UpgradeCanary && !p.Back:
		p.Message += "; the canary nodes are done: set spec.upgrade.mode to Automatic to go on, or spec.image back"
	default:
		return false
	}
	p.Held = true
	return true
}

// note stops the plan if one of the new pods fails, until a person acts.
func (p *Plan) note(pods ...Pod) bool {
	var troubles []string
	for _, pod := range pods {
		if pod.Current && pod.Trouble != "" {
			troubles = append(troubles, pod.Trouble)
		}
	}
	if len(troubles) == 0 {
		return false
	}
	p.Stuck = true
	p.Message += "; stopped: " + strings.Join(Few(troubles), "; ") + "; fix it, or set the previous spec.image"
	return true
}

// NextMember returns the index of the database member to replace: the first outdated one, if all others of the requested
// number serve. It returns -1 for none.
func NextMember(want int, members []Pod) int {
	if len(members) < want {
		return -1
	}
	return slices.IndexFunc(members, func(m Pod) bool {
		others := func(o Pod) bool { return o.Name != m.Name && !o.Serves() }
		return m.old() && m.Present && !slices.ContainsFunc(members, others)
	})
}
