// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// modelPod is a pod of the model; its template is its image.
type modelPod struct {
	image         string
	ready, ending bool
	// serial distinguishes a pod from its replacement.
	serial int
}

// modelNode has one pod each of Open vSwitch and of the agent, or none.
type modelNode struct {
	name             string
	silent, canary   bool
	openVSwitch, cni *modelPod
	images           map[string]bool
	full             bool // it refuses more pods
}

// modelSet is a StatefulSet, which does not replace pods by itself, or a Deployment, which does unless it is paused.
type modelSet struct {
	deployment, paused bool
	image              string
	pods               []*modelPod // nil for a pod of a StatefulSet that is not created again yet
}

func (s *modelSet) present() (pods []*modelPod) {
	for _, p := range s.pods {
		if p != nil {
			pods = append(pods, p)
		}
	}
	return pods
}

// componentStages has the stage of each modelSet.
var componentStages = map[string]v1alpha1.UpgradeStage{
	render.NorthboundName: v1alpha1.StageDatabases, render.SouthboundName: v1alpha1.StageDatabases,
	render.NorthdName: v1alpha1.StageNorthd, render.ControllerName: v1alpha1.StageController,
}

// upgradeModel is a cluster, its controllers and kubelets, and an operator that may crash between any two of its steps.
type upgradeModel struct {
	t              *testing.T
	random         *rand.Rand
	wanted         string
	images         []string
	mode           v1alpha1.UpgradeMode
	maxUnavailable int
	nodes          []*modelNode
	daemons        string // the image in the DaemonSets' templates
	pulls          string // the image that nodes pull; empty for none
	noPull         bool   // the registry does not answer
	sets           map[string]*modelSet
	bad            map[string]bool // images that never become ready
	serial         int
	replaced       int // members of databases
	history        []string
}

func newUpgradeModel(t *testing.T, random *rand.Rand) *upgradeModel {
	m := &upgradeModel{
		t: t, random: random, wanted: "a", images: []string{"a"}, daemons: "a", mode: v1alpha1.UpgradeAutomatic,
		sets: map[string]*modelSet{}, bad: map[string]bool{},
	}
	m.maxUnavailable = 1 + m.random.IntN(3)
	for i := range 1 + m.random.IntN(6) {
		m.nodes = append(m.nodes, &modelNode{name: fmt.Sprintf("n%d", i), canary: m.random.IntN(4) == 0, openVSwitch: m.pod("a"), cni: m.pod("a"), images: map[string]bool{"a": true}})
	}
	members := []int{1, 3, 5}[m.random.IntN(3)]
	for name, count := range map[string]int{
		render.NorthboundName: members, render.SouthboundName: members, render.NorthdName: 1 + m.random.IntN(2), render.ControllerName: 2,
	} {
		s := &modelSet{deployment: name == render.NorthdName || name == render.ControllerName, image: "a"}
		for range count {
			s.pods = append(s.pods, m.pod("a"))
		}
		m.sets[name] = s
	}
	return m
}

func (m *upgradeModel) pod(image string) *modelPod {
	m.serial++
	return &modelPod{image: image, serial: m.serial, ready: !m.bad[image]}
}

func (m *upgradeModel) log(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *upgradeModel) fail(format string, args ...any) {
	m.t.Helper()
	for _, line := range m.history[max(0, len(m.history)-60):] {
		m.t.Log(line)
	}
	m.t.Fatalf(format, args...)
}

// see returns the operator's view of a pod.
func (m *upgradeModel) see(p *modelPod) Pod {
	if p == nil {
		return Pod{}
	}
	seen := Pod{
		Name: fmt.Sprint(p.serial), Present: !p.ending, Current: p.image == m.wanted, Newer: NewerImage(m.images, m.wanted, p.image), Ready: p.ready,
	}
	if m.bad[p.image] {
		seen.Ready, seen.Trouble, seen.Dead = false, "it crashes", true
	}
	return seen
}

func (m *upgradeModel) observe() Upgrade {
	u := Upgrade{Mode: m.mode, MaxUnavailable: m.maxUnavailable, Sets: map[v1alpha1.UpgradeStage][]Set{}}
	for _, n := range m.nodes {
		if n.silent {
			continue
		}
		seen := Node{Name: n.name, Canary: n.canary, OpenVSwitch: m.see(n.openVSwitch), CNI: m.see(n.cni)}
		has := func(p *modelPod) bool { return p != nil && p.image == m.wanted && n.images[p.image] }
		seen.HoldsImage = has(n.openVSwitch) || has(n.cni)
		seen.Pulled = m.pulls == m.wanted && n.images[m.wanted] && !n.full
		seen.Refused = m.pulls == m.wanted && n.full
		if m.pulls == m.wanted && m.noPull && !seen.Pulled && !seen.Refused {
			seen.PullTrouble = "the registry does not answer"
		}
		if n.cni != nil && seen.OpenVSwitch.Trouble != "" {
			seen.CNI.Ready, seen.CNI.Trouble = false, "there is no Open vSwitch"
		}
		u.Nodes = append(u.Nodes, seen)
	}
	for _, name := range render.Components() {
		s, stage := m.sets[name], componentStages[name]
		if s == nil {
			continue
		}
		set := Set{Component: name, Want: len(s.pods), Unfinished: s.deployment && (s.image != m.wanted || s.paused)}
		for _, p := range s.present() {
			set.Pods = append(set.Pods, m.see(p))
		}
		u.Sets[stage] = append(u.Sets[stage], set)
	}
	return u
}

// pass acts as the reconciler and crashes after a random number of its steps.
func (m *upgradeModel) pass() {
	steps := m.random.IntN(16)
	if m.random.IntN(2) == 0 {
		steps = 1 << 30
	}
	step := func() bool { steps--; return steps >= 0 }
	if !slices.Contains(m.images, m.wanted) {
		if step() {
			m.images = RecordImage(m.images, m.wanted)
		}
		return // the record is written before any other step
	}
	p := m.observe().Plan()
	m.log("plan: %s back=%v release=%v replace=%v: %s", p.Stage, p.Back, p.Release, p.Replace, p.Message)
	if p.Pull {
		m.pulls = m.wanted
	}
	for _, name := range render.Components() {
		if s := m.sets[name]; s != nil {
			if !step() {
				return
			}
			m.apply(name, s, p)
		}
	}
	if !step() {
		return
	}
	m.daemons = m.wanted
	for _, name := range p.Replace {
		if !step() {
			return
		}
		m.replaceOnNode(name, p)
	}
	if !p.Pull && step() {
		m.pulls = ""
	}
	if p.Stage == "" && !slices.ContainsFunc(m.nodes, func(n *modelNode) bool { return n.silent }) {
		m.images = SettleImages(m.images, m.wanted)
	}
}

func (m *upgradeModel) apply(name string, s *modelSet, p Plan) {
	if s.deployment {
		isOutdated := s.image != m.wanted || s.paused
		s.image, s.paused = m.wanted, isOutdated && !p.Allows(name)
		if name == render.NorthdName && isOutdated && !s.paused {
			m.northdMayRun()
		}
		return
	}
	s.image = m.wanted
	if !p.Allows(name) {
		return
	}
	pods := s.present()
	var members []Pod
	for _, pod := range pods {
		members = append(members, m.see(pod))
	}
	if i := NextMember(len(s.pods), members); i >= 0 {
		m.replaceMember(name, s, pods[i])
	}
}

// replaceMember deletes the pod of a member. Its checks do not use the operator's code: all other members must serve, and
// the pod must be outdated.
func (m *upgradeModel) replaceMember(name string, s *modelSet, pod *modelPod) {
	m.log("%s: pod %d, a member, is replaced", name, pod.serial)
	if pod.image == m.wanted || pod.ending {
		m.fail("%s: pod %d of image %s is replaced, ending=%v, and %s is wanted", name, pod.serial, pod.image, pod.ending, m.wanted)
	}
	for _, other := range s.pods {
		if other != pod && (other == nil || other.ending || !other.ready || m.bad[other.image]) {
			m.fail("%s: pod %d is replaced while another member does not serve: %+v", name, pod.serial, other)
		}
	}
	pod.ending, pod.ready = true, false
	m.replaced++
}

// northdMayRun fails if northd is released to a newer image than some ovn-controller has. During a rollback of
// northd this is allowed: a node that did not answer during the upgrade may still be older, and the rollback reduces the
// difference.
func (m *upgradeModel) northdMayRun() {
	at := slices.Index(m.images, m.wanted)
	if slices.ContainsFunc(m.sets[render.NorthdName].pods, func(p *modelPod) bool { return slices.Index(m.images, p.image) > at }) {
		return
	}
	for _, n := range m.nodes {
		if n.silent || n.openVSwitch == nil {
			continue
		}
		if i := slices.Index(m.images, n.openVSwitch.image); i >= 0 && i < at {
			m.fail("northd goes to %s while node %s has %s (%v)", m.wanted, n.name, n.openVSwitch.image, m.images)
		}
	}
}

func (m *upgradeModel) serves(n *modelNode) bool {
	return n.openVSwitch != nil && m.see(n.openVSwitch).Ready && n.cni != nil && m.see(n.cni).Ready
}

func (m *upgradeModel) replaceOnNode(name string, p Plan) {
	down := 0
	var of *modelNode
	for _, n := range m.nodes {
		if !n.silent && !m.serves(n) {
			down++
		}
		for _, pod := range []*modelPod{n.openVSwitch, n.cni} {
			if pod != nil && fmt.Sprint(pod.serial) == name {
				of = n
			}
		}
	}
	m.log("node %s: pod %s is replaced", of.name, name)
	if of.openVSwitch == nil || of.cni == nil || of.openVSwitch.ending || of.cni.ending {
		m.fail("both pods of node %s are away", of.name)
	}
	others := down
	if !m.serves(of) {
		others--
	}
	if m.mode == v1alpha1.UpgradePaused || m.mode == v1alpha1.UpgradeCanary && !p.Back && !of.canary {
		m.fail("node %s is replaced in mode %s", of.name, m.mode)
	}
	pod := of.cni
	if fmt.Sprint(of.openVSwitch.serial) == name {
		pod = of.openVSwitch
		m.olderThanNorthd(of)
	}
	if !m.bad[pod.image] && !of.images[m.wanted] && !of.full {
		m.fail("node %s is without the pod %s while it pulls image %s", of.name, name, m.wanted)
	}
	if pod.image == m.wanted {
		m.fail("a new pod of node %s is replaced", of.name)
	}
	if !m.bad[pod.image] && others >= m.maxUnavailable && (pod == of.openVSwitch || !m.bad[of.openVSwitch.image]) {
		m.fail("node %s is one too many: %d others are not well, %d may be", of.name, others, m.maxUnavailable)
	}
	pod.ending, pod.ready = true, false
}

func (m *upgradeModel) olderThanNorthd(n *modelNode) {
	at := slices.Index(m.images, m.wanted)
	for _, northd := range m.sets[render.NorthdName].pods {
		if slices.Index(m.images, northd.image) > at {
			m.fail("node %s goes to %s while northd has %s (%v)", n.name, m.wanted, northd.image, m.images)
		}
	}
}

// world applies one step of everything except the operator.
func (m *upgradeModel) world() {
	for _, n := range m.nodes {
		if n.silent {
			continue
		}
		if m.pulls != "" && !m.noPull && !n.full && m.random.IntN(3) == 0 {
			n.images[m.pulls] = true
		}
		for _, pod := range []**modelPod{&n.openVSwitch, &n.cni} {
			if *pod != nil && (*pod).ending && m.random.IntN(3) == 0 {
				*pod = nil
				continue
			}
			if m.noPull && !n.images[m.daemons] {
				continue
			}
			if m.move(pod, m.daemons); *pod != nil {
				n.images[(*pod).image] = true
			}
		}
	}
	for _, name := range render.Components() {
		if s := m.sets[name]; s != nil {
			for i := range s.pods {
				if p := s.pods[i]; !s.deployment && p != nil && p.ending && m.random.IntN(3) == 0 {
					s.pods[i] = nil
					continue
				}
				m.move(&s.pods[i], s.successor())
			}
			s.roll()
		}
	}
}

// successor returns the image with which a pod is re-created. A paused Deployment uses the image of its existing pods.
func (s *modelSet) successor() string {
	if !s.paused {
		return s.image
	}
	for _, p := range s.pods {
		if p.image != s.image {
			return p.image
		}
	}
	return s.image
}

// move advances one pod by one step at random: an ending pod is re-created, a new pod becomes ready.
func (m *upgradeModel) move(at **modelPod, image string) {
	switch pod := *at; {
	case m.random.IntN(2) == 0:
	case pod == nil || pod.ending:
		*at = m.pod(image)
		(*at).ready = false
	default:
		pod.ready = !m.bad[pod.image]
	}
}

// roll acts as the Deployment controller, with at most one unavailable pod.
func (s *modelSet) roll() {
	if !s.deployment || s.paused {
		return
	}
	down := 0
	for _, p := range s.pods {
		if !p.ready {
			down++
		}
	}
	for _, p := range s.pods {
		if p.image != s.image && !p.ending && (down == 0 || !p.ready) {
			p.ending, p.ready = true, false
			return
		}
	}
}

// disturb applies one random action of a person or failure.
func (m *upgradeModel) disturb() {
	switch m.random.IntN(40) {
	case 0, 1:
		m.wanted = string(rune('a' + m.random.IntN(4)))
		m.log("wanted: %s", m.wanted)
	case 2:
		m.mode = []v1alpha1.UpgradeMode{v1alpha1.UpgradeAutomatic, v1alpha1.UpgradeCanary, v1alpha1.UpgradePaused}[m.random.IntN(3)]
	case 3:
		image := string(rune('b' + m.random.IntN(3)))
		m.bad[image] = !m.bad[image]
		m.log("image %s is bad: %v", image, m.bad[image])
	case 4:
		n := m.nodes[m.random.IntN(len(m.nodes))]
		n.silent = !n.silent
	case 5:
		n := m.nodes[m.random.IntN(len(m.nodes))]
		n.canary = !n.canary
	case 7: // the southbound database is unavailable for a moment
		for _, n := range m.nodes {
			if n.openVSwitch != nil {
				n.openVSwitch.ready = false
			}
		}
	case 8: // a member loses its cluster for a moment
		s := m.sets[[]string{render.NorthboundName, render.SouthboundName}[m.random.IntN(2)]]
		if p := s.pods[m.random.IntN(len(s.pods))]; p != nil {
			p.ready = false
		}
	case 9:
		m.noPull = !m.noPull
	case 11:
		n := m.nodes[m.random.IntN(len(m.nodes))]
		n.full = !n.full
	case 10: // a kubelet deletes the images that no container uses
		n := m.nodes[m.random.IntN(len(m.nodes))]
		maps.DeleteFunc(n.images, func(image string, _ bool) bool {
			uses := func(p *modelPod) bool { return p != nil && p.image == image }
			return image != m.pulls && !uses(n.openVSwitch) && !uses(n.cni)
		})
	case 6:
		if n := m.nodes[m.random.IntN(len(m.nodes))]; n.openVSwitch != nil {
			n.openVSwitch.ready = false // it recovers by itself
		}
	}
}

// TestUpgradesAtRandom requests random images, crashes the operator at random steps and adds failures. The limits for
// nodes, members and versions always hold. When the failures stop, all pods get the requested image.
func TestUpgradesAtRandom(t *testing.T) {
	replaced := 0
	seed.Histories(t, []uint64{1115193903, 2448928913, 1451470825}, 400, func(t *testing.T, _ uint64, random *rand.Rand) {
		m := newUpgradeModel(t, random)
		for range 200 {
			m.disturb()
			if m.random.IntN(2) == 0 {
				m.pass()
			}
			m.world()
		}
		m.calm()
		for range 600 {
			m.pass()
			m.world()
		}
		if p := m.observe().Plan(); p.Stage != "" || !m.observe().nodesDone(false) {
			m.fail("it does not end: %s: %s", p.Stage, p.Message)
		}
		replaced += m.replaced
	})
	if replaced == 0 && os.Getenv(seed.Env) == "" {
		t.Error("no member of a database was replaced: the model tries nothing")
	}
}

// calm ends all conditions that could keep an upgrade from completing.
func (m *upgradeModel) calm() {
	m.mode, m.bad, m.noPull = v1alpha1.UpgradeAutomatic, map[string]bool{}, false
	for _, n := range m.nodes {
		n.silent = false
	}
}
