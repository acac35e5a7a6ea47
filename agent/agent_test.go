// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent"
	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/version"
)

func TestNodeBecomesReadyInOrder(t *testing.T) {
	n := agenttest.NewNode(t)
	n.Register()
	n.Idle.Store(true)
	n.Database.Kill()
	tool := n.UseTool()
	n.StartAgent()
	n.Eventually("the agent lives without Open vSwitch", func() bool { return n.Health("/healthz") == http.StatusOK })
	n.StartDatabase()
	n.Eventually("the message names the missing prerequisite", func() bool { return n.Health("/readyz") == http.StatusInternalServerError })
	if n.Health(version.Path) != http.StatusOK {
		t.Error("no version in the answer")
	}
	if n.Conflist() != nil {
		t.Fatal("the conflist is installed before the node has an address")
	}
	n.Allocate()
	n.Eventually("ovn0 has its addresses", func() bool {
		return agenttest.HasAddress(host.JoinInterface, "100.64.0.2/16") && agenttest.HasAddress(host.JoinInterface, "fd00:100:64::2/112")
	})
	time.Sleep(300 * time.Millisecond)
	if n.Conflist() != nil || n.Health("/readyz") == http.StatusOK || n.NetworkUnavailable() != nil {
		t.Fatal("the node serves before ovn-controller has installed the flows of ovn0")
	}
	if entries, err := os.ReadDir(n.Options.ToolingDir); err != nil || len(entries) != 0 {
		t.Fatalf("the kubectl plugin is installed before the node serves: %v, %v", entries, err)
	}
	n.Idle.Store(false)
	n.Touch(host.JoinInterface)
	n.WaitReady()
	must.Succeed(t, agenttest.KeepsNeighbours(host.JoinInterface))
	n.Eventually("the conflist is installed", func() bool { return n.Conflist() != nil })
	for _, name := range []string{"kube-ovn", "portmap"} {
		want, err := os.ReadFile(filepath.Join(n.Options.PluginSource, name))
		must.Succeed(t, err)
		have, err := os.ReadFile(filepath.Join(n.Options.CNIBinDir, name))
		must.Succeed(t, err)
		if string(have) != string(want) {
			t.Errorf("plugin %s differs", name)
		}
	}
	n.Eventually("the node's condition is set", func() bool {
		c := n.NetworkUnavailable()
		return c != nil && c.Status == corev1.ConditionFalse && c.Reason == host.ReasonServing
	})
	n.Eventually("the kubectl plugin is installed", func() bool {
		have, err := os.ReadFile(filepath.Join(n.Options.ToolingDir, "kubectl_complete-ko"))
		return err == nil && string(have) == tool
	})
}

// TestANodeServesWithoutTheTool has a read-only directory for the kubectl plugin.
func TestANodeServesWithoutTheTool(t *testing.T) {
	n := agenttest.NewNode(t)
	n.UseTool()
	must.Succeed(t, unix.Mount("none", n.Options.ToolingDir, "tmpfs", unix.MS_RDONLY, ""))
	t.Cleanup(func() { must.Succeed(t, unix.Unmount(n.Options.ToolingDir, unix.MNT_DETACH)) })
	n.Register()
	n.Allocate()
	n.StartAgent()
	n.WaitReady()
	n.Eventually("an event of the node", func() bool {
		var list corev1.EventList
		must.Succeed(t, n.API.List(t.Context(), &list, client.InNamespace("default")))
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == agenttest.NodeName && e.Reason == host.ReasonToolNotInstalled && strings.Contains(e.Message, "read-only file system")
		})
	})
	c := n.Sandbox(n.Pod("pod", 10), agenttest.NewID())
	c.MustAdd()
	c.MustDel()
	if n.Health("/readyz") != http.StatusOK {
		t.Error("the agent is not ready")
	}
	n.Agent.Kill()
	must.Succeed(t, agent.CleanUp(t.Context(), n.Options))
}

func TestAgentRestarts(t *testing.T) {
	n := agenttest.Serving(t)
	kept := n.Sandbox(n.Pod("kept", 400), agenttest.NewID())
	kept.MustAdd()
	index := agenttest.LinkIndex(t, host.JoinInterface)

	t.Run("without the agent, STATUS and ADD say so and DEL succeeds", func(t *testing.T) {
		c := n.Sandbox(n.Pod("deleted-meanwhile", 401), agenttest.NewID())
		c.MustAdd()
		n.Agent.Kill()
		if err := c.CNI.GetStatusNetworkList(t.Context(), c.List); errorCode(t, err) != 50 {
			t.Errorf("STATUS: %v", err)
		}
		late := n.Sandbox(n.Pod("late", 402), agenttest.NewID())
		if _, err := late.Add(); errorCode(t, err) != 11 {
			t.Errorf("ADD: %v", err)
		}
		c.MustDel()
		c.Vanish()
		must.Succeed(t, n.API.Delete(t.Context(), c.Pod, client.GracePeriodSeconds(0)))
		c.Port() // the port still exists

		must.Succeed(t, os.Remove(filepath.Join(n.Options.CNIConfDir, host.ConfigName(""))))
		n.StartAgent()
		n.WaitReady()
		n.Eventually("the port of the ended container is removed", func() bool {
			for _, iface := range n.Interfaces() {
				if iface.ExternalIDs["container_id"] == c.ID {
					return false
				}
			}
			return true
		})
		n.Eventually("the conflist is back", func() bool { return n.Conflist() != nil })
		must.Succeed(t, c.CNI.GetStatusNetworkList(t.Context(), c.List))
		late.MustAdd()
		late.MustDel()
		must.Succeed(t, kept.Check())
		if agenttest.LinkIndex(t, host.JoinInterface) != index {
			t.Error("ovn0 was made again")
		}
	})
	t.Run("a stopped agent leaves everything as it is", func(t *testing.T) {
		must.Succeed(t, n.Agent.Signal(syscall.SIGTERM))
		if err := n.Agent.Wait(); err != nil {
			t.Errorf("the agent did not stop well: %v", err)
		}
		if n.Conflist() == nil || !agenttest.HasAddress(host.JoinInterface, "100.64.0.2/16") || agenttest.RouteTo(n, "10.16.0.0/16") == nil {
			t.Error("the agent took the node's network down")
		}
		name, _ := kept.Port()
		if there, err := sandbox.HasLink(name); !there || err != nil {
			t.Errorf("the pod's device is missing (%v)", err)
		}
	})
}

func errorCode(t testing.TB, err error) uint {
	t.Helper()
	var failed *types.Error
	if !errors.As(err, &failed) {
		t.Fatalf("%v is no CNI error", err)
	}
	return failed.Code
}

// nodeWithoutIPv6 returns an IPv4 node whose agent runs on a simulated kernel without IPv6.
func nodeWithoutIPv6(t *testing.T) *agenttest.Node {
	t.Helper()
	n := agenttest.NewNode(t)
	n.Families = 1
	n.Register()
	n.Allocate()
	n.HideIPv6()
	n.StartAgent()
	n.WaitReady()
	return n
}

func TestANodeWithoutIPv6ServesIPv4(t *testing.T) {
	n := nodeWithoutIPv6(t)
	n.Router()
	agenttest.WantRoutes(n, true, "10.16.0.0/16")
	first, second := n.Sandbox(n.Pod("first", 10), agenttest.NewID()), n.Sandbox(n.Pod("second", 11), agenttest.NewID())
	for _, c := range []*agenttest.Container{first, second} {
		c.MustAdd()
		must.Succeed(t, c.Check())
	}
	if from := agenttest.Exchange(t, first.NS, second.NS, agenttest.AddressesOf(11)[0], "hello"); from != agenttest.AddressesOf(10)[0] {
		t.Errorf("a pod is seen as %s", from)
	}
	if from := agenttest.Exchange(t, nil, first.NS, agenttest.AddressesOf(10)[0], "hello"); from != agenttest.NodeIPs[0].Addr() {
		t.Errorf("the node is seen as %s", from)
	}
	tenant := n.Tenant("tenant", 12)
	agenttest.ExchangeAt(t, nil, tenant.NS, netip.AddrPortFrom(agenttest.AddressesOf(12)[0], agenttest.ProbePort), "a probe")
	n.Change("ovn-default", func(s *v1.SubnetSpec) { s.CIDRBlock = "10.16.0.0/15" })
	agenttest.WantRoutes(n, true, "10.16.0.0/15")
	for _, c := range []*agenttest.Container{first, second} {
		c.MustDel()
	}
}

func TestANodeWithoutIPv6SaysThatItIsMissing(t *testing.T) {
	const missing = "the kernel of this node has no IPv6"
	n := nodeWithoutIPv6(t)
	n.Families = 2
	n.Change("ovn-default", func(s *v1.SubnetSpec) {
		s.CIDRBlock, s.Gateway = ipfamily.Join(agenttest.PodCIDRs), ipfamily.Join(agenttest.PodGWs)
	})
	pod := n.Sandbox(n.Pod("pod", 10), agenttest.NewID())
	if _, err := pod.Add(); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("a pod with an address of IPv6: %v", err)
	}
	pod.MustDel()
	n.Allocate()
	n.Eventually("the node's condition names IPv6", func() bool { return strings.Contains(readyz(n), missing) })
}

// readyz returns the reason why the agent is not ready.
func readyz(n *agenttest.Node) string {
	answer, err := http.Get("http://" + agenttest.HealthAddress + "/readyz?verbose")
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return string(text)
}
