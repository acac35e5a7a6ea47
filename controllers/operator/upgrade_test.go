// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

func newPod(name string) upgradePod {
	return upgradePod{name: name, there: true, current: true, ready: true}
}
func oldPod(name string) upgradePod { return upgradePod{name: name, there: true, ready: true} }

// laterPod returns a pod whose image was requested after the current one.
func laterPod(name string) upgradePod {
	return upgradePod{name: name, there: true, newer: true, ready: true}
}

// everything returns pods of one kind: on three nodes, three members per database, two of northd and of the controller.
func everything(pod func(string) upgradePod) upgrade {
	u := upgrade{mode: v1alpha1.UpgradeAutomatic, maxUnavailable: 1, sets: map[string]upgradeSet{}}
	for _, n := range []string{"n1", "n2", "n3"} {
		u.nodes = append(u.nodes, upgradeNode{name: n, openVSwitch: pod("ovs-" + n), cni: pod("cni-" + n), holdsImage: true})
	}
	for _, name := range []string{render.NorthboundName, render.SouthboundName} {
		u.sets[name] = upgradeSet{want: 3, pods: []upgradePod{pod(name + "-0"), pod(name + "-1"), pod(name + "-2")}}
	}
	for _, name := range []string{render.NorthdName, render.ControllerName} {
		u.sets[name] = upgradeSet{want: 2, pods: []upgradePod{pod(name + "-a"), pod(name + "-b")}, unfinished: !pod("").current}
	}
	return u
}

func (u *upgrade) set(name string, change func(*upgradeSet)) {
	s := u.sets[name]
	change(&s)
	u.sets[name] = s
}

func failing(p upgradePod) upgradePod {
	p.ready, p.dead, p.trouble = false, true, p.name+" fails"
	return p
}

func ending(p upgradePod) upgradePod {
	p.there, p.ready = false, false
	return p
}

func starting(p upgradePod) upgradePod {
	p.ready = false
	return p
}

func lackImage(u *upgrade) {
	for i := range u.nodes {
		u.nodes[i].holdsImage = false
	}
}

func TestWhatMayBeReplaced(t *testing.T) {
	newNodes := func(u *upgrade) { u.nodes = everything(newPod).nodes }
	for _, c := range []struct {
		name    string
		from    func(string) upgradePod
		change  func(*upgrade)
		stage   v1alpha1.UpgradeStage
		replace string
		release string
		about   string
		stuck   bool
		pulls   bool
	}{
		{name: "nothing is old", from: newPod},
		{name: "nothing is old, and a new pod fails: that is no upgrade", from: newPod, change: func(u *upgrade) {
			u.nodes[0].cni = failing(u.nodes[0].cni)
		}},
		{name: "a node begins with Open vSwitch", from: oldPod, stage: "Nodes", replace: "ovs-n1", about: "0 of 3 nodes updated"},
		{name: "once it has the image", from: oldPod, change: func(u *upgrade) {
			lackImage(u)
			u.nodes[1].pulled = true
		}, stage: "Nodes", replace: "ovs-n2", about: "0 of 3 nodes updated; pulling the image on n1, n3", pulls: true},
		{name: "an image that no node can pull stops the upgrade before it begins", from: oldPod, change: func(u *upgrade) {
			lackImage(u)
			u.nodes[2].pullTrouble = "node n3: ErrImagePull"
		}, stage: "Nodes", about: "stopped: node n3: ErrImagePull; fix it", stuck: true, pulls: true},
		{name: "also on a node that refuses to pull", from: oldPod, change: func(u *upgrade) {
			lackImage(u)
			u.nodes[0].refused = true
			u.nodes[2].pullTrouble = "node n3: ErrImagePull"
		}, stage: "Nodes", about: "stopped: node n3: ErrImagePull; fix it", stuck: true, pulls: true},
		{name: "which is replaced without it once another node has pulled it", from: oldPod, change: func(u *upgrade) {
			lackImage(u)
			u.maxUnavailable = 3
			u.nodes[0].refused, u.nodes[1].pulled = true, true
		}, stage: "Nodes", replace: "ovs-n1 ovs-n2", about: "pulling the image on n3", pulls: true},
		{name: "or if all nodes refuse", from: oldPod, change: func(u *upgrade) {
			lackImage(u)
			for i := range u.nodes {
				u.nodes[i].refused = true
			}
		}, stage: "Nodes", replace: "ovs-n1", pulls: true},
		{name: "a node that cannot pull does not stop others", from: oldPod, change: func(u *upgrade) {
			lackImage(u)
			u.nodes[0].pullTrouble, u.nodes[2].pulled = "node n1: ErrImagePull", true
		}, stage: "Nodes", replace: "ovs-n3", about: "pulling the image on n1, n2", pulls: true},
		{name: "nor a pod that does not run", from: oldPod, change: func(u *upgrade) {
			lackImage(u)
			u.nodes[2].openVSwitch = failing(u.nodes[2].openVSwitch)
		}, stage: "Nodes", replace: "ovs-n3", pulls: true},
		{name: "only canaries pull for canaries", from: oldPod, change: func(u *upgrade) {
			lackImage(u)
			u.nodes[2].canary, u.nodes[2].holdsImage = true, true
			u.nodes[0].pullTrouble = "node n1: ErrImagePull"
		}, stage: "Nodes", replace: "ovs-n3"},
		{name: "a node that starts its first pods pulls nothing in advance", from: newPod, change: func(u *upgrade) {
			u.nodes[1] = upgradeNode{name: "n2"}
			u.set(render.ControllerName, func(s *upgradeSet) { s.unfinished = true })
		}, stage: "Nodes"},
		{name: "a paused upgrade pulls nothing", from: oldPod, change: func(u *upgrade) {
			u.mode = v1alpha1.UpgradePaused
			u.nodes[0].holdsImage = false
		}, stage: "Nodes", about: "paused"},
		{name: "a rollback pulls, too", from: newPod, change: func(u *upgrade) {
			u.nodes = everything(laterPod).nodes
			u.nodes[0].holdsImage = false
		}, stage: "Nodes", replace: "cni-n2", pulls: true},
		{name: "its agent follows when that serves", from: oldPod, change: func(u *upgrade) {
			u.nodes[1].openVSwitch = newPod("ovs-n2")
		}, stage: "Nodes", replace: "cni-n2"},
		{name: "and not before", from: oldPod, change: func(u *upgrade) {
			u.nodes[1].openVSwitch = starting(newPod("ovs-n2"))
		}, stage: "Nodes"},
		{name: "nor is another node begun meanwhile", from: oldPod, change: func(u *upgrade) {
			u.nodes[1].openVSwitch = upgradePod{}
		}, stage: "Nodes"},
		{name: "as many nodes as may be away", from: oldPod, change: func(u *upgrade) {
			u.maxUnavailable = 2
		}, stage: "Nodes", replace: "ovs-n1 ovs-n2"},
		{name: "a node that is not well counts, and comes first", from: oldPod, change: func(u *upgrade) {
			u.maxUnavailable = 2
			u.nodes[2].openVSwitch = failing(u.nodes[2].openVSwitch)
		}, stage: "Nodes", replace: "ovs-n3 ovs-n1"},
		{name: "nothing is taken from a node whose other pod is being made", from: oldPod, change: func(u *upgrade) {
			u.nodes[2].cni = ending(u.nodes[2].cni)
		}, stage: "Nodes"},
		{name: "a new pod that fails stops everything", from: oldPod, change: func(u *upgrade) {
			u.maxUnavailable = 3
			u.nodes[1].openVSwitch = failing(newPod("ovs-n2"))
		}, stage: "Nodes", about: "ovs-n2 fails; fix it, or set the previous spec.image", stuck: true},
		{name: "but where a pod fails that is old nothing is lost", from: oldPod, change: func(u *upgrade) {
			u.nodes[1].openVSwitch = failing(newPod("ovs-n2"))
			u.nodes[2].openVSwitch = failing(oldPod("ovs-n3"))
		}, stage: "Nodes", replace: "ovs-n3", about: "ovs-n2 fails", stuck: true},
		{name: "nor is an agent waited for that waits for an old Open vSwitch which fails", from: oldPod, change: func(u *upgrade) {
			for i := range u.nodes {
				u.nodes[i].openVSwitch = failing(u.nodes[i].openVSwitch)
				u.nodes[i].cni = starting(newPod(u.nodes[i].cni.name))
			}
		}, stage: "Nodes", replace: "ovs-n1 ovs-n2 ovs-n3"},
		{name: "an agent that fails for want of an old Open vSwitch stops nothing", from: oldPod, change: func(u *upgrade) {
			for i := range u.nodes {
				u.nodes[i].openVSwitch = failing(u.nodes[i].openVSwitch)
				u.nodes[i].cni = failing(newPod(u.nodes[i].cni.name))
			}
		}, stage: "Nodes", replace: "ovs-n1 ovs-n2 ovs-n3"},
		{name: "pods that run and are not ready are not taken all at once", from: oldPod, change: func(u *upgrade) {
			for i := range u.nodes {
				u.nodes[i].openVSwitch = starting(u.nodes[i].openVSwitch)
			}
		}, stage: "Nodes"},
		{name: "but one of them if that lasts", from: oldPod, change: func(u *upgrade) {
			for i := range u.nodes {
				u.nodes[i].openVSwitch = starting(u.nodes[i].openVSwitch)
				u.nodes[i].openVSwitch.trouble = "not ready for a long time"
			}
		}, stage: "Nodes", replace: "ovs-n1"},
		{name: "canaries come first", from: oldPod, change: func(u *upgrade) {
			u.maxUnavailable, u.nodes[2].canary = 3, true
		}, stage: "Nodes", replace: "ovs-n3"},
		{name: "the others follow", from: oldPod, change: func(u *upgrade) {
			u.nodes[2] = upgradeNode{name: "n3", canary: true, openVSwitch: newPod("ovs-n3"), cni: newPod("cni-n3")}
		}, stage: "Nodes", replace: "ovs-n1"},
		{name: "but not in mode Canary", from: oldPod, change: func(u *upgrade) {
			u.mode = v1alpha1.UpgradeCanary
			u.nodes[2] = upgradeNode{name: "n3", canary: true, openVSwitch: newPod("ovs-n3"), cni: newPod("cni-n3")}
		}, stage: "Nodes", about: "the canary nodes are done"},
		{name: "mode Canary wants a canary", from: oldPod, change: func(u *upgrade) {
			u.mode = v1alpha1.UpgradeCanary
		}, stage: "Nodes", about: "no node that answers matches", stuck: true},
		{name: "paused", from: oldPod, change: func(u *upgrade) { u.mode = v1alpha1.UpgradePaused }, stage: "Nodes", about: "paused"},
		{name: "databases follow the last node", from: oldPod, change: newNodes, stage: "Databases", release: render.NorthboundName},
		{name: "one database after the other", from: oldPod, change: func(u *upgrade) {
			newNodes(u)
			u.sets[render.NorthboundName] = everything(newPod).sets[render.NorthboundName]
		}, stage: "Databases", release: render.SouthboundName},
		{name: "a member that does not serve is waited for", from: oldPod, change: func(u *upgrade) {
			newNodes(u)
			u.sets[render.NorthboundName] = everything(newPod).sets[render.NorthboundName]
			u.set(render.NorthboundName, func(s *upgradeSet) { s.pods[2] = starting(s.pods[2]) })
		}, stage: "Databases", release: render.NorthboundName, about: "3 of 3 updated"},
		{name: "northd only once all nodes are well", from: newPod, change: func(u *upgrade) {
			u.sets[render.NorthdName] = everything(oldPod).sets[render.NorthdName]
			u.nodes[1].openVSwitch = starting(u.nodes[1].openVSwitch)
		}, stage: "Nodes"},
		{name: "then northd", from: newPod, change: func(u *upgrade) {
			u.sets[render.NorthdName] = everything(oldPod).sets[render.NorthdName]
		}, stage: "Northd", release: render.NorthdName},
		{name: "a failing northd is reported", from: newPod, change: func(u *upgrade) {
			u.set(render.NorthdName, func(s *upgradeSet) { s.pods[0] = failing(s.pods[0]) })
			u.sets[render.ControllerName] = everything(oldPod).sets[render.ControllerName]
		}, stage: "Northd", release: render.NorthdName, about: "ovn-central-northd-a fails", stuck: true},
		{name: "the controller at last", from: newPod, change: func(u *upgrade) {
			u.set(render.ControllerName, func(s *upgradeSet) { s.unfinished = true })
		}, stage: "Controller", release: render.ControllerName},
		{name: "backwards the controller is first", from: laterPod, stage: "Controller", release: render.ControllerName},
		{name: "even if later stages do not serve", from: newPod, change: func(u *upgrade) {
			u.sets[render.NorthboundName] = everything(laterPod).sets[render.NorthboundName]
			u.set(render.ControllerName, func(s *upgradeSet) { s.pods[0] = failing(s.pods[0]) })
		}, stage: "Databases", release: render.NorthboundName},
		{name: "nodes last, and there the agent before Open vSwitch", from: newPod, change: func(u *upgrade) {
			u.nodes = everything(laterPod).nodes
		}, stage: "Nodes", replace: "cni-n1"},
		{name: "mode Canary does not hold a rollback", from: newPod, change: func(u *upgrade) {
			u.mode = v1alpha1.UpgradeCanary
			u.nodes = everything(laterPod).nodes
		}, stage: "Nodes", replace: "cni-n1"},
		{name: "too new pods roll back before too old ones are upgraded", from: oldPod, change: func(u *upgrade) {
			u.nodes[2].openVSwitch = laterPod("ovs-n3")
		}, stage: "Nodes", replace: "ovs-n3"},
		{name: "a member on a node that does not answer is not waited for on the way back", from: newPod, change: func(u *upgrade) {
			u.set(render.NorthboundName, func(s *upgradeSet) {
				s.pods[0] = starting(laterPod("x"))
				s.pods[0].silent = true
			})
			u.nodes = everything(laterPod).nodes
		}, stage: "Nodes", replace: "cni-n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := everything(c.from)
			if c.change != nil {
				c.change(&u)
			}
			p := u.plan()
			released := []string{}
			for name := range p.release {
				released = append(released, name)
			}
			slices.Sort(released)
			if p.stage != c.stage || strings.Join(p.replace, " ") != c.replace || strings.Join(released, " ") != c.release {
				t.Errorf("stage %q replaces %v and releases %v (%s)", p.stage, p.replace, released, p.message)
			}
			if !strings.Contains(p.message, c.about) || p.stuck != c.stuck || p.pull != c.pulls {
				t.Errorf("stuck=%v pulls=%v: %s", p.stuck, p.pull, p.message)
			}
		})
	}
}

func TestTheNextMemberOfADatabase(t *testing.T) {
	for _, c := range []struct {
		name    string
		members []upgradePod
		want    int
	}{
		{"none while another is missing", []upgradePod{oldPod("0"), oldPod("1")}, -1},
		{"none is old", []upgradePod{newPod("0"), newPod("1"), newPod("2")}, -1},
		{"the first that is old", []upgradePod{newPod("0"), oldPod("1"), oldPod("2")}, 1},
		{"none while another does not serve", []upgradePod{oldPod("0"), starting(newPod("1")), oldPod("2")}, -1},
		{"one that fails itself", []upgradePod{oldPod("0"), failing(oldPod("1")), oldPod("2")}, 1},
		{"none while one is going", []upgradePod{oldPod("0"), ending(oldPod("1")), oldPod("2")}, -1},
		{"the first of all", []upgradePod{oldPod("0"), oldPod("1"), oldPod("2")}, 0},
	} {
		if got := nextMember(3, c.members); got != c.want {
			t.Errorf("%s: %d, and not %d", c.name, got, c.want)
		}
	}
	if got := nextMember(1, []upgradePod{oldPod("0")}); got != 0 {
		t.Errorf("of a single member the index is %d", got)
	}
}

func TestImagesInTheOrderInWhichTheyWereWanted(t *testing.T) {
	images := []string{}
	for _, image := range []string{"a", "b", "c", "a", "b"} {
		images = want(images, image)
	}
	if !slices.Equal(images, []string{"a", "b", "c"}) {
		t.Errorf("recorded %v", images)
	}
	if !newer(images, "b", "c") || newer(images, "b", "a") || newer(images, "b", "b") || newer(images, "b", "unknown") {
		t.Error("c alone is newer than b")
	}
	if images = settle(images, "a"); !slices.Equal(images, []string{"a"}) {
		t.Errorf("after going back there is %v", images)
	}
	for i := range 2 * rememberedImages {
		images = want(images, string(rune('b'+i)))
	}
	if len(images) != rememberedImages || images[rememberedImages-1] != string(rune('a'+2*rememberedImages)) {
		t.Errorf("the newest are remembered: %v", images)
	}
}
