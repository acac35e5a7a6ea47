// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestDELCheckAndGC(t *testing.T) {
	n := agenttest.Serving(t)
	for name, test := range map[string]func(*testing.T, *agenttest.Node){
		"DEL succeeds twice, before ADD, and without a namespace":                                        delAlways,
		"CHECK reports missing parts":                                                                    checkNotices,
		"GC removes attachments of deleted pods and of earlier sandboxes, and nothing of other networks": gcRemoves,
	} {
		t.Run(name, func(t *testing.T) { test(t, n.In(t)) })
	}
}

func delAlways(t *testing.T, n *agenttest.Node) {
	c := n.Sandbox(n.Pod("gone", 160), agenttest.NewID())
	c.MustDel() // before ADD
	c.MustAdd()
	c.Vanish()
	c.MustDel()
	c.HasNoPort()
	c.MustDel()
	unknown := n.SandboxIn(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "unknown", Namespace: "nowhere", UID: "u"}}, agenttest.NewID(), c.NS)
	unknown.Path = ""
	unknown.MustDel()
}

func checkNotices(t *testing.T, n *agenttest.Node) {
	c := n.Sandbox(n.Pod("checked", 170), agenttest.NewID())
	host := c.MustAdd().Interfaces[0].Name
	damage := map[string]func() error{
		"a route": func() error {
			return netlink.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: agenttest.PodGWs[0].AsSlice()})
		},
		"the MTU": func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(link, 1280)
		},
	}
	for what, f := range damage {
		must.Succeed(t, c.Check())
		c.Do(f)
		if err := c.Check(); err == nil {
			t.Errorf("CHECK does not notice that %s was changed", what)
		}
		c.MustAdd()
	}
	n.Detach(host)
	n.Eventually("CHECK reports the missing port", func() bool { return c.Check() != nil })
	c.MustDel()
}

func gcRemoves(t *testing.T, n *agenttest.Node) {
	kept := n.Sandbox(n.Pod("kept", 180), agenttest.NewID())
	before := n.Sandbox(kept.Pod, agenttest.NewID()) // an earlier sandbox of the same pod
	lost := n.Sandbox(n.Pod("lost-2", 181), agenttest.NewID())
	other := n.Sandbox(n.Pod("other", 182), agenttest.NewID())
	other.List = renamed(n, "other-network")
	unlisted := n.Sandbox(n.Pod("unlisted", 183), agenttest.NewID()) // as a pod that is older than the installation of Multus
	for _, c := range []*agenttest.Container{before, kept, lost, other, unlisted} {
		c.MustAdd()
	}
	must.Succeed(t, n.API.Delete(t.Context(), lost.Pod, client.GracePeriodSeconds(0)))
	const list = `"cni.dev/attachments": [{"containerID": "%s", "ifname": "eth0"}],`
	n.Eventually("the port of the deleted pod is removed", func() bool { // once the agent has received its deletion
		must.Succeed(t, gc(kept, fmt.Sprintf(list, kept.ID)))
		return !hasPort(lost)
	})
	before.HasNoPort()
	for _, c := range []*agenttest.Container{kept, other, unlisted} {
		must.Succeed(t, c.Check())
	}
	if gc(kept, "") == nil {
		t.Error("GC without a list is no error")
	}
	// libcni also sends a DEL for each attachment that it knows and the runtime does not list.
	attachments := []types.GCAttachment{{ContainerID: kept.ID, IfName: "eth0"}}
	must.Succeed(t, kept.CNI.GCNetworkList(t.Context(), kept.List, &libcni.GCArgs{ValidAttachments: attachments}))
	unlisted.HasNoPort()
	must.Succeed(t, kept.Check())
	must.Succeed(t, other.Check())
	kept.MustDel()
	other.MustDel()
}

func hasPort(c *agenttest.Container) bool {
	c.Helper()
	for _, port := range c.Interfaces() {
		if port.ExternalIDs["container_id"] == c.ID {
			return true
		}
	}
	return false
}

// gc executes the plugin as a runtime without libcni does, with additional keys in the configuration.
func gc(c *agenttest.Container, more string) error {
	command := exec.Command(filepath.Join(c.Options.CNIBinDir, "kube-ovn"))
	command.Env = []string{"CNI_COMMAND=GC", "CNI_PATH=" + c.Options.CNIBinDir}
	command.Stdin = strings.NewReader(fmt.Sprintf(`{%s"cniVersion":"1.1.0","name":"kube-ovn","type":"kube-ovn","server_socket":%q}`, more, c.Options.CNISocket))
	out, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// renamed returns the agent's conflist with another network name.
func renamed(n *agenttest.Node, name string) *libcni.NetworkConfigList {
	n.Helper()
	content, err := os.ReadFile(filepath.Join(n.Options.CNIConfDir, "01-kube-ovn.conflist"))
	must.Succeed(n.TB, err)
	list, err := libcni.ConfListFromBytes([]byte(strings.Replace(string(content), `"name": "kube-ovn"`, `"name": "`+name+`"`, 1)))
	must.Succeed(n.TB, err)
	return list
}
