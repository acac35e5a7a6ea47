// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/agent"
	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// kernelState returns the node's state that the agent may change. It excludes Open vSwitch's devices, and link-local and anycast
// addresses, which the kernel adds when forwarding is enabled.
func kernelState(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `nft list tables
		for f in -4 -6; do ip $f rule show; ip $f route show table all | grep -v -e ovn0 -e br-int -e ovs-netdev -e fe80: -e ff00: -e anycast; done
		ip -o address show dev eth0 | grep -v fe80: | sed 's/ *valid_lft.*//'
		ip -o link show | cut -d: -f2 | grep -v -e ovn0 -e br-int -e ovs-netdev`).CombinedOutput()
	must.Succeed(t, err)
	return string(out)
}

// TestCleanUp makes an agent create everything that it can create, and expects the node's original state after the clean-up.
func TestCleanUp(t *testing.T) {
	n := agenttest.NewNode(t)
	must.Succeed(t, agent.CleanUp(t.Context(), n.Options)) // remove leftovers of agents of other tests
	loopback := filepath.Join(n.Options.CNIBinDir, "loopback")
	must.Succeed(t, os.WriteFile(loopback, []byte("of all plugins"), 0o755))
	nodetest.NFT(t, "add table inet of-others")
	t.Cleanup(func() { nodetest.NFT(t, "delete table inet of-others") })
	n.UseTool()
	before := kernelState(t)
	n.Register()
	n.Allocate()
	n.StartAgent()
	n.WaitReady()
	n.Sandbox(n.Pod("pod", 300), agenttest.NewID()).MustAdd()
	tenant := n.CreatePodOf("tenant", agenttest.Probing(agenttest.ProbePort))
	n.AnnotateIn(tenant, 301, "blue")
	n.Sandbox(tenant, agenttest.NewID()).MustAdd()
	n.Change("ovn-default", func(s *v1.SubnetSpec) {
		s.GatewayType, s.GatewayNode = v1.GatewayCentralized, fmt.Sprintf("%[1]s:172.30.0.9,%[1]s:fd00:172:30::9", agenttest.NodeName)
	})
	edge := &v1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Spec: v1.SubnetSpec{
		CIDRBlock: "10.17.0.0/16", GatewayType: v1.GatewayCentralized, GatewayNode: agenttest.NodeName,
		ExternalEgressGateway: "192.168.77.254", PolicyRoutingPriority: 1000, PolicyRoutingTableID: 1000,
	}}
	n.Create(edge)
	nodetest.NFT(t, "add table inet kiln-services") // whose content needs a newer nft than every machine has
	want := []string{"table inet kiln", "table inet kiln-services", "lookup 1000", "172.30.0.9/32", "fd00:172:30::9/128", "_h", "probe", "dport 8080"}
	n.Eventually("everything there is was made", func() bool {
		state := kernelState(t)
		for _, part := range want {
			if !strings.Contains(state, part) {
				return false
			}
		}
		_, err := os.Stat(filepath.Join(n.Options.ToolingDir, "kubectl_complete-ko"))
		return err == nil
	})
	n.Agent.Kill()

	interrupted, cancel := context.WithCancel(t.Context())
	cancel() // nft cannot run: CleanUp returns an error, and completes the other steps
	if err := agent.CleanUp(interrupted, n.Options); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted clean-up says: %v", err)
	}
	for range 2 {
		must.Succeed(t, agent.CleanUp(t.Context(), n.Options))
	}
	if after := kernelState(t); after != before {
		t.Errorf("the node was\n%s\nand is\n%s", before, after)
	}
	if n.Conflist() != nil {
		t.Error("the network configuration is left")
	}
	if _, err := os.Stat(filepath.Join(n.Options.CNIBinDir, "kube-ovn")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the plugin is left: %v", err)
	}
	if left, err := os.ReadDir(n.Options.ToolingDir); err != nil || len(left) != 0 {
		t.Errorf("files of the kubectl plugin are left: %v, %v", left, err)
	}
	if _, err := os.Stat(loopback); err != nil {
		t.Errorf("the objects of other plugins were removed: %v", err)
	}
}
