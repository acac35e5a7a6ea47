// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// ports has the ports of pods by name: a name does not say of which pod the port is. It begins with the ports in the northbound database. Of two ports with the
// same name (kubeovnv1.Port), the first one has it, and the other one waits.
type ports struct {
	mu     sync.Mutex
	byName map[string]holding
	// waiting are the ports whose names other ports have, by name, with the UIDs of their pods.
	waiting map[string]map[kubeovnv1.Port]types.UID
}

type holding struct {
	kubeovnv1.Port
	// pod is the UID of the pod that the allocation of the port was made for; empty if unknown, and for a machine's port in the database.
	pod types.UID
	// machine is true if the owner is a virtual machine.
	machine bool
}

// set changes the entry of a port, and adds it if there is none. The port gets the name, whichever port has it.
func (p *ports) set(port kubeovnv1.Port, change func(*holding)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(port, change)
}

func (p *ports) put(port kubeovnv1.Port, change func(*holding)) {
	if p.byName == nil {
		p.byName = map[string]holding{}
	}
	h := p.byName[port.Name]
	if h.Port != port {
		h = holding{Port: port}
	}
	change(&h)
	p.byName[port.Name] = h
	p.leave(port)
}

// own adds the port of a pod, and its owner, unless another port has the name. retained is the port whose addresses are retained under the name; its owner is
// empty if there is none.
func (p *ports) own(s *subject, retained kubeovnv1.Port) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if holder := cmp.Or(retained, p.byName[s.port.Name].Port); holder.Owner == "" || holder == s.port {
		p.put(s.port, func(h *holding) { h.machine = s.machine != "" })
	}
}

// named returns the port with a name, false if no pod has it.
func (p *ports) named(name string) (holding, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, known := p.byName[name]
	return h, known
}

// wait records that a port waits for its name, which another port has. It reports whether that is news for the user of the pod.
func (p *ports) wait(port kubeovnv1.Port, pod types.UID) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.waiting = map[string]map[kubeovnv1.Port]types.UID{}
	}
	if p.waiting[port.Name] == nil {
		p.waiting[port.Name] = map[kubeovnv1.Port]types.UID{}
	}
	before := p.waiting[port.Name][port]
	p.waiting[port.Name][port] = pod
	return before != pod
}

func (p *ports) leave(port kubeovnv1.Port) {
	if delete(p.waiting[port.Name], port); len(p.waiting[port.Name]) == 0 {
		delete(p.waiting, port.Name)
	}
}

// drop forgets a port that no pod has, and returns the ports that wait for its name. They may wait for it although another port has the name by now: the
// addresses of the dropped one were retained.
func (p *ports) drop(port kubeovnv1.Port) (waited []kubeovnv1.Port) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(port)
	if p.byName[port.Name].Port == port {
		delete(p.byName, port.Name)
	}
	return slices.Collect(maps.Keys(p.waiting[port.Name]))
}
