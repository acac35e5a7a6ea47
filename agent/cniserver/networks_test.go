// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// Users can write a pod's annotations, so a node uses the network in them only if it agrees with the subnet. Wait blocks until the watch
// has received the subnet.
func TestWaitTakesWhatAgreesWithTheSubnetOnly(t *testing.T) {
	n := agenttest.NewNode(t)
	pods := watchPods(t, n)
	subnet := agenttest.SubnetOf("shop", "10.20.0.0/24,fd00:20::/64")
	subnet.Spec.Gateway, subnet.Spec.Vpc = "10.20.0.1,fd00:20::1", "blue"
	n.Create(subnet)
	n.Create(agenttest.SubnetOf("join", "100.64.0.0/16"))
	unjudged := agenttest.SubnetOf("unjudged", "10.0.0.0/8")
	must.Succeed(t, n.API.Create(t.Context(), unjudged))
	addresses := func(all ...string) (out []netip.Addr) {
		for _, a := range all {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	fit := v1.PodNetwork{
		Allocated: true, Routed: true, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, LogicalSwitch: "shop", LogicalRouter: "blue",
		Addresses: addresses("10.20.0.9", "fd00:20::9"),
	}
	wait := func(pod *corev1.Pod) error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, _, err := pods.Wait(ctx, client.ObjectKeyFromObject(pod), pod.UID, v1.ProviderOVN)
		return err
	}
	known := func(name string) *corev1.Pod {
		pod := n.CreatePod(name)
		n.Eventually("the pod is known", func() bool {
			there, err := pods.Exists(t.Context(), client.ObjectKeyFromObject(pod), pod.UID)
			return there && err == nil
		})
		return pod
	}
	honest := known("honest")
	network := fit
	network.UID = honest.UID
	n.WriteNetwork(honest, network)
	n.Eventually("the network that agrees is taken", func() bool { return wait(honest) == nil })
	for name, c := range map[string]struct {
		change func(*v1.PodNetwork)
		want   string
	}{
		"another-vpc": {func(p *v1.PodNetwork) { p.LogicalRouter = "x" }, `is of VPC blue, not of "x"`},
		"api-server":  {func(p *v1.PodNetwork) { p.Addresses = addresses("172.29.0.10") }, "has no address 172.29.0.10"},
		"many":        {func(p *v1.PodNetwork) { p.Addresses = addresses("10.20.0.9", "10.20.0.10") }, "gives a pod one IPv4 address"},
		"gateway":     {func(p *v1.PodNetwork) { p.Addresses = addresses("fd00:20::1") }, "has its gateway at fd00:20::1"},
		"underlay":    {func(p *v1.PodNetwork) { p.ProviderNetwork = "net1" }, `has vlan "", not provider network "net1"`},
		"no-subnet":   {func(p *v1.PodNetwork) { p.LogicalSwitch = "" }, `name subnet "", which is not known`},
		"missing":     {func(p *v1.PodNetwork) { p.LogicalSwitch = "missing" }, `name subnet "missing", which is not known`},
		"join": {func(p *v1.PodNetwork) {
			p.LogicalSwitch, p.LogicalRouter, p.Addresses = "join", v1.DefaultVpc, addresses("100.64.0.9")
		}, "name subnet join, which is for nodes"},
		"unjudged": {func(p *v1.PodNetwork) {
			p.LogicalSwitch, p.LogicalRouter, p.Addresses = "unjudged", v1.DefaultVpc, addresses("10.9.9.9")
		}, "subnet unjudged, which is not valid yet"},
	} {
		pod := known(name)
		network := fit
		network.UID = pod.UID
		c.change(&network)
		n.WriteNetwork(pod, network)
		n.Eventually("Wait says that "+c.want, func() bool {
			err := wait(pod)
			if err == nil {
				t.Fatalf("%s: the network was taken", name)
			}
			return strings.Contains(err.Error(), c.want)
		})
	}

	late := known("late")
	network = fit
	network.UID, network.LogicalSwitch = late.UID, "later"
	n.WriteNetwork(late, network)
	ended := make(chan error, 1)
	go func() {
		_, _, err := pods.Wait(t.Context(), client.ObjectKeyFromObject(late), late.UID, v1.ProviderOVN)
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("Wait ended before its subnet was there: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	later := agenttest.SubnetOf("later", "10.20.0.0/24,fd00:20::/64")
	later.Spec.Vpc = "blue"
	n.Create(later)
	select {
	case err := <-ended:
		must.Succeed(t, err)
	case <-time.After(agenttest.Patience):
		t.Error("Wait does not see the subnet that has come")
	}
}
