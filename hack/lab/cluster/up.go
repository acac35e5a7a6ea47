// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/config"
	"github.com/kiln-net/kiln/hack/lab/fabric"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/progress"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// Options of Up.
type Options struct {
	Dir      string // the state directory
	Cache    cache.Dir
	Topology topology.Topology
	Report   *progress.Reporter
}

// Up brings a lab up. It starts only the missing parts and leaves running machines alone. It returns when every node has registered
// with the API server. Nodes are not ready until a network is installed.
func Up(ctx context.Context, o Options) error {
	dir := stateDir(o.Dir)
	unlock, err := dir.lock()
	if err != nil {
		return err
	}
	defer unlock()
	s, err := dir.begin(o.Topology)
	if err != nil {
		return err
	}
	u := &up{Options: o, dir: dir, state: s}
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"lay the network", func(context.Context) error { return fabric.Ensure(o.Topology) }},
		{"start the machines", u.machines},
		{"wait for the Kubernetes API", u.api},
		{"wait for the nodes to register", u.nodes},
		{"apply CoreDNS (it runs once nodes have a network)", u.addons},
	} {
		if err := o.Report.Step(step.name, func() error { return step.run(ctx) }); err != nil {
			return err
		}
	}
	return nil
}

// up is one run of Up.
type up struct {
	Options
	dir stateDir

	mu    sync.Mutex
	state state
}

// begin returns the state to continue from. It refuses to change the size of a lab that is up: databases would lose members.
func (d stateDir) begin(top topology.Topology) (state, error) {
	s, there, err := d.load()
	if err != nil {
		return s, err
	}
	if there && (s.ControlPlanes != top.ControlPlanes || s.Workers != top.Workers || s.KubeProxy != top.KubeProxy || s.KernelDatapath != top.KernelDatapath || s.IPv6First != top.IPv6First || s.SingleNIC != top.SingleNIC) {
		return s, fmt.Errorf("a lab of %d control planes and %d workers (kube-proxy: %t, kernel datapath: %t, IPv6 first: %t, single NIC: %t) is up in %s: take it down first",
			s.ControlPlanes, s.Workers, s.KubeProxy, s.KernelDatapath, s.IPv6First, s.SingleNIC, d)
	}
	if !there {
		if err := os.RemoveAll(filepath.Join(string(d), "logs")); err != nil {
			return s, fmt.Errorf("remove the logs of the last lab: %w", err)
		}
		s = state{
			ControlPlanes: top.ControlPlanes, Workers: top.Workers, KubeProxy: top.KubeProxy, KernelDatapath: top.KernelDatapath, IPv6First: top.IPv6First, SingleNIC: top.SingleNIC,
			Machines: map[string]machine.Process{}, Tunables: readTunables(),
		}
	}
	return s, d.save(s)
}

// machines starts, in parallel, the machines that do not run.
func (u *up) machines(ctx context.Context) error {
	if err := machine.KeepProgram(u.dir.program()); err != nil {
		return err
	}
	keys, err := u.dir.loadAuthorities()
	if err != nil {
		return err
	}
	if err := u.writeKubeconfig(keys); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	start := func(name string, f func() (machine.Process, error)) {
		if u.state.Machines[name].Alive() {
			return
		}
		group.Go(func() error {
			init, err := f()
			if err != nil {
				return err
			}
			return u.record(name, init)
		})
	}
	for _, n := range u.Topology.Nodes() {
		start(n.Name, func() (machine.Process, error) { return u.dir.startNode(ctx, u.Cache, u.Topology, n, keys) })
	}
	for name, programs := range world(u.Topology) {
		start(name, func() (machine.Process, error) { return u.dir.startWorld(u.Cache, name, programs) })
	}
	return group.Wait()
}

// world returns the machines besides the nodes, with their programs.
func world(top topology.Topology) map[string][]machine.Program {
	machines := map[string][]machine.Program{
		Router: config.RouterPrograms(), Switch: config.SwitchPrograms(fabric.SwitchPorts(top)), OutsideHost: config.OutsidePrograms(),
	}
	for _, v := range topology.VLANs {
		machines[v.HostName()] = config.OutsidePrograms()
	}
	return machines
}

// record saves the process of a machine as soon as it runs, so that down finds it even if a later step fails.
func (u *up) record(name string, init machine.Process) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.state.Machines[name] = init
	return u.dir.save(u.state)
}

func (u *up) writeKubeconfig(keys authorities) error {
	raw, err := keys.kubeconfig(u.Topology, "", config.Admin)
	if err != nil {
		return err
	}
	return machine.WriteFile(u.dir.kubeconfig(), raw, 0o600)
}
