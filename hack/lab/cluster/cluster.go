// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster is the lab as a whole: it brings a cluster up, takes it down, and gives tests access to a running one. A test
// opens the cluster, reads its nodes, outside host and kubeconfig, and runs commands on machines:
//
//	lab, err := cluster.Open("")                             // $KILN_LAB_STATE, or the default place
//	config, err := clientcmd.BuildConfigFromFlags("", lab.Kubeconfig())
//	for _, node := range lab.Nodes() { … node.Name, node.Addresses() … }
//	out, err := lab.Output(ctx, "worker-1", "ip", "-json", "route")
//	seen, err := lab.Output(ctx, cluster.OutsideHost, "ping", "-c1", address)
//	url := "http://" + lab.OutsideEndpoints()[0] + "/clientip" // from a pod: the source address after NAT
package cluster

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/hack/lab/fabric"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// Machines besides the nodes.
const (
	Router      = fabric.Router
	OutsideHost = fabric.OutsideHost
	Switch      = fabric.Bridges
)

const defaultDir = "/var/lib/kiln-lab"

// Cluster is a lab that was brought up.
type Cluster struct {
	dir   stateDir
	state state
	plan  topology.Topology
}

// DefaultDir is the default state directory: $KILN_LAB_STATE or /var/lib/kiln-lab.
func DefaultDir() string {
	if dir := os.Getenv("KILN_LAB_STATE"); dir != "" {
		return dir
	}
	return defaultDir
}

// Open returns the lab whose state is in dir; "" is DefaultDir. It fails when no lab is up there, but not when a machine of the lab
// has died.
func Open(dir string) (*Cluster, error) {
	if dir == "" {
		dir = DefaultDir()
	}
	s, there, err := stateDir(dir).load()
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, fmt.Errorf("no lab is up in %s (run: go run ./hack/lab up)", dir)
	}
	plan, err := topology.New(s.ControlPlanes, s.Workers)
	if err != nil {
		return nil, fmt.Errorf("the state in %s: %w", dir, err)
	}
	plan.KubeProxy, plan.KernelDatapath, plan.IPv6First, plan.SingleNIC = s.KubeProxy, s.KernelDatapath, s.IPv6First, s.SingleNIC
	return &Cluster{dir: stateDir(dir), state: s, plan: plan}, nil
}

// Nodes returns the nodes, control planes first.
func (c *Cluster) Nodes() []topology.Node { return c.plan.Nodes() }

// KubeProxy reports whether kube-proxy runs on the nodes.
func (c *Cluster) KubeProxy() bool { return c.plan.KubeProxy }

// ServiceCIDRs returns the ranges of Services, the primary family first.
func (c *Cluster) ServiceCIDRs() []netip.Prefix { return c.plan.ServiceCIDRs() }

// KernelDatapath reports whether nodes are to use the kernel's Open vSwitch datapath.
func (c *Cluster) KernelDatapath() bool { return c.plan.KernelDatapath }

// SingleNIC reports whether nodes have one interface for everything.
func (c *Cluster) SingleNIC() bool { return c.plan.SingleNIC }

// Kubeconfig is the path of an administrator's kubeconfig, valid on the machine that the lab runs on.
func (c *Cluster) Kubeconfig() string { return c.dir.kubeconfig() }

// LogDir is the directory of a machine's logs: <program>.log of each program, init.log, and pods/ of its containers.
func (c *Cluster) LogDir(name string) string { return c.dir.logs(name) }

// OutsideAddresses returns the addresses of the host behind the router, one per family. That host has no route to pods.
func (c *Cluster) OutsideAddresses() []netip.Addr { return topology.Addrs(topology.OutsideHost()) }

// OutsideEndpoints returns host and port of the outside host's HTTP server (agnhost netexec), one per family.
func (c *Cluster) OutsideEndpoints() []string {
	var out []string
	for _, a := range c.OutsideAddresses() {
		out = append(out, netip.AddrPortFrom(a, topology.OutsidePort).String())
	}
	return out
}

// Machines returns the names of the machines: the nodes, the router, the switch, and the outside hosts.
func (c *Cluster) Machines() []string {
	names := []string{}
	for _, n := range c.Nodes() {
		names = append(names, n.Name)
	}
	return append(names, slices.Sorted(maps.Keys(world(c.plan)))...)
}

// Alive reports whether a machine runs.
func (c *Cluster) Alive(name string) bool { return c.state.Machines[name].Alive() }

// Kill ends a machine like a power cut: its disk stays, and Up starts it again.
func (c *Cluster) Kill(name string) error { return c.state.Machines[name].Kill() }

// Exec runs a command on a machine, in its namespaces, and waits for its end. An exit status other than 0 is an *exec.ExitError.
func (c *Cluster) Exec(ctx context.Context, name string, command machine.Command) error {
	init, known := c.state.Machines[name]
	if !known {
		return fmt.Errorf("the lab has no machine %q: its machines are %s", name, strings.Join(c.Machines(), ", "))
	}
	return init.Run(ctx, command)
}

// Output runs a command on a machine and returns its standard output. Its standard error is part of the error.
func (c *Cluster) Output(ctx context.Context, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	if err := c.Exec(ctx, name, machine.Command{Args: args, Stdout: &stdout, Stderr: &stderr}); err != nil {
		return stdout.String(), fmt.Errorf("%s on %s: %w: %s", strings.Join(args, " "), name, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// machine is the directory of a machine's files.
func (d stateDir) machine(name string) string { return filepath.Join(string(d), "machines", name) }

func (d stateDir) logs(name string) string { return filepath.Join(string(d), "logs", name) }

func (d stateDir) log(name, program string) string {
	return filepath.Join(d.logs(name), program+".log")
}

func (d stateDir) kubeconfig() string { return filepath.Join(string(d), "kubeconfig") }

func (d stateDir) containerd(name string) string { return filepath.Join(d.machine(name), "containerd") }

// program is a copy of the lab's own program. `go run` removes the original when it exits.
func (d stateDir) program() string { return filepath.Join(string(d), "bin", "lab") }
