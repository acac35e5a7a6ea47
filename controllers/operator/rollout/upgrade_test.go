// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

func newPod(name string) Pod {
	return Pod{Name: name, Present: true, Current: true, Ready: true}
}
func oldPod(name string) Pod { return Pod{Name: name, Present: true, Ready: true} }

// laterPod returns a pod whose image was requested after the current one.
func laterPod(name string) Pod {
	return Pod{Name: name, Present: true, Newer: true, Ready: true}
}

// everything returns pods of one kind: on three nodes, three members per database, two of northd and of the controller.
func everything(pod func(string) Pod) Upgrade {
	u := Upgrade{Mode: v1alpha1.UpgradeAutomatic, MaxUnavailable: 1, Sets: map[v1alpha1.UpgradeStage][]Set{}}
	for _, n := range []string{"n1", "n2", "n3"} {
		u.Nodes = append(u.Nodes, Node{Name: n, OpenVSwitch: pod("ovs-" + n), CNI: pod("cni-" + n), HoldsImage: true})
	}
	for _, name := range []string{render.NorthboundName, render.SouthboundName} {
		set := Set{Component: name, Want: 3, Pods: []Pod{pod(name + "-0"), pod(name + "-1"), pod(name + "-2")}}
		u.Sets[v1alpha1.StageDatabases] = append(u.Sets[v1alpha1.StageDatabases], set)
	}
	for stage, name := range map[v1alpha1.UpgradeStage]string{v1alpha1.StageNorthd: render.NorthdName, v1alpha1.StageController: render.ControllerName} {
		u.Sets[stage] = []Set{{Component: name, Want: 2, Pods: []Pod{pod(name + "-a"), pod(name + "-b")}, Unfinished: !pod("").Current}}
	}
	return u
}

// set changes the set of a component.
func (u *Upgrade) set(component string, change func(*Set)) {
	for _, sets := range u.Sets {
		for i := range sets {
			if sets[i].Component == component {
				change(&sets[i])
			}
		}
	}
}

// pods replaces the set of a component with one whose pods are of this kind.
func (u *Upgrade) pods(component string, pod func(string) Pod) {
	from := everything(pod)
	from.set(component, func(s *Set) { u.set(component, func(to *Set) { *to = *s }) })
}

func failing(p Pod) Pod {
	p.Ready, p.Dead, p.Trouble = false, true, p.Name+" fails"
	return p
}

func ending(p Pod) Pod {
	p.Present, p.Ready = false, false
	return p
}

func starting(p Pod) Pod {
	p.Ready = false
	return p
}

func lackImage(u *Upgrade) {
	for i := range u.Nodes {
		u.Nodes[i].HoldsImage = false
	}
}

func TestNextReplacement(t *testing.T) {
	newNodes := func(u *Upgrade) { u.Nodes = everything(newPod).Nodes }
	for _, c := range []struct {
		name    string
		from    func(string) Pod
		change  func(*Upgrade)
		stage   v1alpha1.UpgradeStage
		replace string
		release string
		about   string
		stuck   bool
		pulls   bool
	}{
		{name: "nothing is old", from: newPod},
		{name: "nothing is old, and a new pod fails: that is no upgrade", from: newPod, change: func(u *Upgrade) {
			u.Nodes[0].CNI = failing(u.Nodes[0].CNI)
		}},
		{name: "a node begins with Open vSwitch", from: oldPod, stage: "Nodes", replace: "ovs-n1", about: "0 of 3 nodes updated"},
		{name: "once it has the image", from: oldPod, change: func(u *Upgrade) {
			lackImage(u)
			u.Nodes[1].Pulled = true
		}, stage: "Nodes", replace: "ovs-n2", about: "0 of 3 nodes updated; pulling the image on n1, n3", pulls: true},
		{name: "an image that no node can pull stops the upgrade before it begins", from: oldPod, change: func(u *Upgrade) {
			lackImage(u)
			u.Nodes[2].PullTrouble = "node n3: ErrImagePull"
		}, stage: "Nodes", about: "stopped: node n3: ErrImagePull; fix it", stuck: true, pulls: true},
		{name: "also on a node that refuses to pull", from: oldPod, change: func(u *Upgrade) {
			lackImage(u)
			u.Nodes[0].Refused = true
			u.Nodes[2].PullTrouble = "node n3: ErrImagePull"
		}, stage: "Nodes", about: "stopped: node n3: ErrImagePull; fix it", stuck: true, pulls: true},
		{name: "which is replaced without it once another node has pulled it", from: oldPod, change: func(u *Upgrade) {
			lackImage(u)
			u.MaxUnavailable = 3
			u.Nodes[0].Refused, u.Nodes[1].Pulled = true, true
		}, stage: "Nodes", replace: "ovs-n1 ovs-n2", about: "pulling the image on n3", pulls: true},
		{name: "or if all nodes refuse", from: oldPod, change: func(u *Upgrade) {
			lackImage(u)
			for i := range u.Nodes {
				u.Nodes[i].Refused = true
			}
		}, stage: "Nodes", replace: "ovs-n1", pulls: true},
		{name: "a node that cannot pull does not stop others", from: oldPod, change: func(u *Upgrade) {
			lackImage(u)
			u.Nodes[0].PullTrouble, u.Nodes[2].Pulled = "node n1: ErrImagePull", true
		}, stage: "Nodes", replace: "ovs-n3", about: "pulling the image on n1, n2", pulls: true},
		{name: "nor a pod that does not run", from: oldPod, change: func(u *Upgrade) {
			lackImage(u)
			u.Nodes[2].OpenVSwitch = failing(u.Nodes[2].OpenVSwitch)
		}, stage: "Nodes", replace: "ovs-n3", pulls: true},
		{name: "only canaries pull for canaries", from: oldPod, change: func(u *Upgrade) {
			lackImage(u)
			u.Nodes[2].Canary, u.Nodes[2].HoldsImage = true, true
			u.Nodes[0].PullTrouble = "node n1: ErrImagePull"
		}, stage: "Nodes", replace: "ovs-n3"},
		{name: "a node that starts its first pods pulls nothing in advance", from: newPod, change: func(u *Upgrade) {
			u.Nodes[1] = Node{Name: "n2"}
			u.set(render.ControllerName, func(s *Set) { s.Unfinished = true })
		}, stage: "Nodes"},
		{name: "a paused upgrade pulls nothing", from: oldPod, change: func(u *Upgrade) {
			u.Mode = v1alpha1.UpgradePaused
			u.Nodes[0].HoldsImage = false
		}, stage: "Nodes", about: "paused"},
		{name: "a rollback pulls, too", from: newPod, change: func(u *Upgrade) {
			u.Nodes = everything(laterPod).Nodes
			u.Nodes[0].HoldsImage = false
		}, stage: "Nodes", replace: "cni-n2", pulls: true},
		{name: "its agent follows when that serves", from: oldPod, change: func(u *Upgrade) {
			u.Nodes[1].OpenVSwitch = newPod("ovs-n2")
		}, stage: "Nodes", replace: "cni-n2"},
		{name: "and not before", from: oldPod, change: func(u *Upgrade) {
			u.Nodes[1].OpenVSwitch = starting(newPod("ovs-n2"))
		}, stage: "Nodes"},
		{name: "nor is another node begun meanwhile", from: oldPod, change: func(u *Upgrade) {
			u.Nodes[1].OpenVSwitch = Pod{}
		}, stage: "Nodes"},
		{name: "as many nodes as may be away", from: oldPod, change: func(u *Upgrade) {
			u.MaxUnavailable = 2
		}, stage: "Nodes", replace: "ovs-n1 ovs-n2"},
		{name: "a node that is not well counts, and comes first", from: oldPod, change: func(u *Upgrade) {
			u.MaxUnavailable = 2
			u.Nodes[2].OpenVSwitch = failing(u.Nodes[2].OpenVSwitch)
		}, stage: "Nodes", replace: "ovs-n3 ovs-n1"},
		{name: "nothing is taken from a node whose other pod is being made", from: oldPod, change: func(u *Upgrade) {
			u.Nodes[2].CNI = ending(u.Nodes[2].CNI)
		}, stage: "Nodes"},
		{name: "a new pod that fails stops everything", from: oldPod, change: func(u *Upgrade) {
			u.MaxUnavailable = 3
			u.Nodes[1].OpenVSwitch = failing(newPod("ovs-n2"))
		}, stage: "Nodes", about: "ovs-n2 fails; fix it, or set the previous spec.image", stuck: true},
		{name: "but where a pod fails that is old nothing is lost", from: oldPod, change: func(u *Upgrade) {
			u.Nodes[1].OpenVSwitch = failing(newPod("ovs-n2"))
			u.Nodes[2].OpenVSwitch = failing(oldPod("ovs-n3"))
		}, stage: "Nodes", replace: "ovs-n3", about: "ovs-n2 fails", stuck: true},
		{name: "nor is an agent waited for that waits for an old Open vSwitch which fails", from: oldPod, change: func(u *Upgrade) {
			for i := range u.Nodes {
				u.Nodes[i].OpenVSwitch = failing(u.Nodes[i].OpenVSwitch)
				u.Nodes[i].CNI = starting(newPod(u.Nodes[i].CNI.Name))
			}
		}, stage: "Nodes", replace: "ovs-n1 ovs-n2 ovs-n3"},
		{name: "an agent that fails for want of an old Open vSwitch stops nothing", from: oldPod, change: func(u *Upgrade) {
			for i := range u.Nodes {
				u.Nodes[i].OpenVSwitch = failing(u.Nodes[i].OpenVSwitch)
				u.Nodes[i].CNI = failing(newPod(u.Nodes[i].CNI.Name))
			}
		}, stage: "Nodes", replace: "ovs-n1 ovs-n2 ovs-n3"},
		{name: "pods that run and are not ready are not taken all at once", from: oldPod, change: func(u *Upgrade) {
			for i := range u.Nodes {
				u.Nodes[i].OpenVSwitch = starting(u.Nodes[i].OpenVSwitch)
			}
		}, stage: "Nodes"},
		{name: "but one of them if that lasts", from: oldPod, change: func(u *Upgrade) {
			for i := range u.Nodes {
				u.Nodes[i].OpenVSwitch = starting(u.Nodes[i].OpenVSwitch)
				u.Nodes[i].OpenVSwitch.Trouble = "not ready for a long time"
			}
		}, stage: "Nodes", replace: "ovs-n1"},
		{name: "canaries come first", from: oldPod, change: func(u *Upgrade) {
			u.MaxUnavailable, u.Nodes[2].Canary = 3, true
		}, stage: "Nodes", replace: "ovs-n3"},
		{name: "the others follow", from: oldPod, change: func(u *Upgrade) {
			u.Nodes[2] = Node{Name: "n3", Canary: true, OpenVSwitch: newPod("ovs-n3"), CNI: newPod("cni-n3")}
		}, stage: "Nodes", replace: "ovs-n1"},
		{name: "but not before each canary is done", from: oldPod, change: func(u *Upgrade) {
			u.MaxUnavailable, u.Nodes[0].Canary = 3, true
			u.Nodes[2] = Node{Name: "n3", Canary: true, OpenVSwitch: newPod("ovs-n3"), CNI: newPod("cni-n3")}
		}, stage: "Nodes", replace: "ovs-n1"},
		{name: "and not in mode Canary", from: oldPod, change: func(u *Upgrade) {
			u.Mode = v1alpha1.UpgradeCanary
			u.Nodes[2] = Node{Name: "n3", Canary: true, OpenVSwitch: newPod("ovs-n3"), CNI: newPod("cni-n3")}
		}, stage: "Nodes", about: "the canary nodes are done"},
		{name: "mode Canary wants a canary", from: oldPod, change: func(u *Upgrade) {
			u.Mode = v1alpha1.UpgradeCanary
		}, stage: "Nodes", about: "no node that answers matches", stuck: true},
		{name: "paused", from: oldPod, change: func(u *Upgrade) { u.Mode = v1alpha1.UpgradePaused }, stage: "Nodes", about: "paused"},
		{name: "databases follow the last node", from: oldPod, change: newNodes, stage: "Databases", release: render.NorthboundName},
		{name: "one database after the other", from: oldPod, change: func(u *Upgrade) {
			newNodes(u)
			u.pods(render.NorthboundName, newPod)
		}, stage: "Databases", release: render.SouthboundName},
		{name: "a member that does not serve is waited for", from: oldPod, change: func(u *Upgrade) {
			newNodes(u)
			u.pods(render.NorthboundName, newPod)
			u.set(render.NorthboundName, func(s *Set) { s.Pods[2] = starting(s.Pods[2]) })
		}, stage: "Databases", release: render.NorthboundName, about: "3 of 3 updated"},
		{name: "northd only once all nodes are well", from: newPod, change: func(u *Upgrade) {
			u.pods(render.NorthdName, oldPod)
			u.Nodes[1].OpenVSwitch = starting(u.Nodes[1].OpenVSwitch)
		}, stage: "Nodes"},
		{name: "then northd", from: newPod, change: func(u *Upgrade) {
			u.pods(render.NorthdName, oldPod)
		}, stage: "Northd", release: render.NorthdName},
		{name: "a failing northd is reported", from: newPod, change: func(u *Upgrade) {
			u.set(render.NorthdName, func(s *Set) { s.Pods[0] = failing(s.Pods[0]) })
			u.pods(render.ControllerName, oldPod)
		}, stage: "Northd", release: render.NorthdName, about: "ovn-central-northd-a fails", stuck: true},
		{name: "the controller at last", from: newPod, change: func(u *Upgrade) {
			u.set(render.ControllerName, func(s *Set) { s.Unfinished = true })
		}, stage: "Controller", release: render.ControllerName},
		{name: "backwards the controller is first", from: laterPod, stage: "Controller", release: render.ControllerName},
		{name: "even if later stages do not serve", from: newPod, change: func(u *Upgrade) {
			u.pods(render.NorthboundName, laterPod)
			u.set(render.ControllerName, func(s *Set) { s.Pods[0] = failing(s.Pods[0]) })
		}, stage: "Databases", release: render.NorthboundName},
		{name: "nodes last, and there the agent before Open vSwitch", from: newPod, change: func(u *Upgrade) {
			u.Nodes = everything(laterPod).Nodes
		}, stage: "Nodes", replace: "cni-n1"},
		{name: "mode Canary does not hold a rollback", from: newPod, change: func(u *Upgrade) {
			u.Mode = v1alpha1.UpgradeCanary
			u.Nodes = everything(laterPod).Nodes
		}, stage: "Nodes", replace: "cni-n1"},
		{name: "too new pods roll back before too old ones are upgraded", from: oldPod, change: func(u *Upgrade) {
			u.Nodes[2].OpenVSwitch = laterPod("ovs-n3")
		}, stage: "Nodes", replace: "ovs-n3"},
		{name: "a member on a node that does not answer is not waited for on the way back", from: newPod, change: func(u *Upgrade) {
			u.set(render.NorthboundName, func(s *Set) {
				s.Pods[0] = starting(laterPod("x"))
				s.Pods[0].Silent = true
			})
			u.Nodes = everything(laterPod).Nodes
		}, stage: "Nodes", replace: "cni-n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := everything(c.from)
			if c.change != nil {
				c.change(&u)
			}
			p := u.Plan()
			released := []string{}
			for name := range p.Release {
				released = append(released, name)
			}
			slices.Sort(released)
			if p.Stage != c.stage || strings.Join(p.Replace, " ") != c.replace || strings.Join(released, " ") != c.release {
				t.Errorf("stage %q replaces %v and releases %v (%s)", p.Stage, p.Replace, released, p.Message)
			}
			if !strings.Contains(p.Message, c.about) || p.Stuck != c.stuck || p.Pull != c.pulls {
				t.Errorf("stuck=%v pulls=%v: %s", p.Stuck, p.Pull, p.Message)
			}
		})
	}
}

func TestTheNextMemberOfADatabase(t *testing.T) {
	for _, c := range []struct {
		name    string
		members []Pod
		want    int
	}{
		{"none while another is missing", []Pod{oldPod("0"), oldPod("1")}, -1},
		{"none is old", []Pod{newPod("0"), newPod("1"), newPod("2")}, -1},
		{"the first that is old", []Pod{newPod("0"), oldPod("1"), oldPod("2")}, 1},
		{"none while another does not serve", []Pod{oldPod("0"), starting(newPod("1")), oldPod("2")}, -1},
		{"one that fails itself", []Pod{oldPod("0"), failing(oldPod("1")), oldPod("2")}, 1},
		{"none while one is going", []Pod{oldPod("0"), ending(oldPod("1")), oldPod("2")}, -1},
		{"the first of all", []Pod{oldPod("0"), oldPod("1"), oldPod("2")}, 0},
	} {
		if got := NextMember(3, c.members); got != c.want {
			t.Errorf("%s: %d, and not %d", c.name, got, c.want)
		}
	}
	if got := NextMember(1, []Pod{oldPod("0")}); got != 0 {
		t.Errorf("of a single member the index is %d", got)
	}
}

// TestAMissingPodIsNotDone: the next step of a change of tunnels or of the data directory must not begin between the deletion of the last
// outdated pod and the start of its replacement.
func TestAMissingPodIsNotDone(t *testing.T) {
	done := func(u Upgrade) [2]bool { return [2]bool{u.Done(v1alpha1.StageNodes), u.Done(v1alpha1.StageDatabases)} }
	u := everything(newPod)
	if got := done(u); got != [2]bool{true, true} {
		t.Errorf("with all pods: got %v", got)
	}
	u.Nodes[2].CNI = Pod{}
	if got := done(u); got != [2]bool{false, true} || u.Plan().Stage != "" {
		t.Errorf("without the last agent: got %v in stage %q", got, u.Plan().Stage)
	}
	u = everything(newPod)
	u.set(render.SouthboundName, func(s *Set) { s.Pods = s.Pods[:2] })
	if got := done(u); got != [2]bool{true, false} {
		t.Errorf("without the last member: got %v", got)
	}
}
