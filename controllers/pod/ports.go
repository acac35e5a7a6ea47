// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// ports has the ports of pods by name: a name does not say of which pod the port is. It begins with the ports in the northbound database.
type ports struct {
	mu     sync.Mutex
	byName map[string]holding
}

type holding struct {
	kubeovnv1.Port
	// pod is the UID of the pod that the lease of the port was allocated for; empty if unknown, and for a machine's port in the database.
	pod types.UID
	// machine is true if the owner is a virtual machine.
	machine bool
}

// set changes the entry of a port, and adds it if there is none.
func (p *ports) set(port kubeovnv1.Port, change func(*holding)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byName == nil {
		p.byName = map[string]holding{}
	}
	h := p.byName[port.Name]
	h.Port = port
	change(&h)
	p.byName[port.Name] = h
}

// named returns the port with a name, false if no pod has it.
func (p *ports) named(name string) (holding, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, known := p.byName[name]
	return h, known
}

// drop forgets a port that no pod has.
func (p *ports) drop(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byName, name)
}
