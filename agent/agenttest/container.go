// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// Container is a sandbox of a pod, as a container runtime handles it.
type Container struct {
	*Node
	Pod  *corev1.Pod
	ID   string
	Path string // of NS
	NS   ns.NetNS
	CNI  *libcni.CNIConfig
	List *libcni.NetworkConfigList // the configuration of the network
}

// Sandbox creates a network namespace for a pod. Its methods call the plugin as the runtime would: with the conflist that the agent
// installed.
func (n *Node) Sandbox(pod *corev1.Pod, id string) *Container {
	n.Helper()
	namespace, err := testutils.NewNS()
	must.Succeed(n.TB, err)
	n.Cleanup(func() { _ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace)) })
	return n.SandboxIn(pod, id, namespace)
}

// SandboxIn is like Sandbox with an existing network namespace.
func (n *Node) SandboxIn(pod *corev1.Pod, id string, namespace ns.NetNS) *Container {
	n.Helper()
	list, err := libcni.ConfListFromFile(filepath.Join(n.Options.CNIConfDir, "01-kube-ovn.conflist"))
	must.Succeed(n.TB, err)
	return &Container{
		Node: n, Pod: pod, ID: id, Path: namespace.Path(), NS: namespace, List: list,
		CNI: libcni.NewCNIConfigWithCacheDir([]string{n.Options.CNIBinDir}, filepath.Join(n.dir, "cache"), nil),
	}
}

// Runtime returns the arguments of the runtime, as containerd passes them.
func (c *Container) Runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: c.ID, NetNS: c.Path, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", c.Pod.Namespace}, {"K8S_POD_NAME", c.Pod.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", c.ID}, {"K8S_POD_UID", string(c.Pod.UID)},
	}}
}

// Add is the runtime's ADD.
func (c *Container) Add() (*types100.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return c.AddWithin(ctx)
}

// AddWithin is Add until ctx ends. libcni then kills the plugin.
func (c *Container) AddWithin(ctx context.Context) (*types100.Result, error) {
	result, err := c.CNI.AddNetworkList(ctx, c.List, c.Runtime())
	if err != nil {
		return nil, err // unwrapped: tests read the plugin's error
	}
	return types100.NewResultFromResult(result)
}

// MustAdd is Add. The test ends if it fails.
func (c *Container) MustAdd() *types100.Result {
	c.Helper()
	result, err := c.Add()
	must.Succeed(c.TB, err)
	return result
}

// Del is the runtime's DEL.
func (c *Container) Del() error {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return c.CNI.DelNetworkList(ctx, c.List, c.Runtime())
}

// MustDel is Del. The test ends if it fails.
func (c *Container) MustDel() {
	c.Helper()
	must.Succeed(c.TB, c.Del())
}

// Check is the runtime's CHECK.
func (c *Container) Check() error {
	return c.CNI.CheckNetworkList(context.Background(), c.List, c.Runtime())
}

// Vanish removes the namespace, as the runtime does after DEL, and as a reboot does.
func (c *Container) Vanish() {
	c.Helper()
	must.Succeed(c.TB, errors.Join(c.NS.Close(), testutils.UnmountNS(c.NS)))
	if _, err := os.Stat(c.Path); err == nil {
		c.Fatalf("%s is still there", c.Path)
	}
}

// Port returns the interface of this container in Open vSwitch. The test fails if there is not exactly one.
func (c *Container) Port() (name string, ids map[string]string) {
	c.Helper()
	for row, iface := range c.Interfaces() {
		if iface.ExternalIDs["container_id"] == c.ID {
			if name != "" {
				c.Fatalf("container %s has ports %s and %s", c.ID, name, row)
			}
			name, ids = row, iface.ExternalIDs
		}
	}
	if name == "" {
		c.Fatalf("container %s has no port", c.ID)
	}
	return name, ids
}

// HasNoPort fails the test if Open vSwitch has an interface of this container.
func (c *Container) HasNoPort() {
	c.Helper()
	for name, iface := range c.Interfaces() {
		if iface.ExternalIDs["container_id"] == c.ID {
			c.Fatalf("container %s still has port %s", c.ID, name)
		}
	}
}

// Do runs a function in the container.
func (c *Container) Do(f func() error) {
	c.Helper()
	must.Succeed(c.TB, c.NS.Do(func(ns.NetNS) error { return f() }))
}

// NewID returns a container ID in containerd's format.
func NewID() string {
	return strings.ReplaceAll(uuid.NewString()+uuid.NewString(), "-", "")
}
