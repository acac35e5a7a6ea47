// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestCNI(t *testing.T) {
	n := agenttest.Serving(t)
	for name, test := range map[string]func(*testing.T, *agenttest.Node){
		"ADD gives a pod its interface, addresses and routes in both families":                   addConfigures,
		"ADD waits for the controller and names it in the error":                                 addWaits,
		"ADD of a pod that is created again under its name waits for its new addresses":          addComparesUIDs,
		"ADD of a static pod, which the API knows by another UID than the kubelet":               addStatic,
		"ADD twice gives the same result and leaves the interface alone":                         addTwice,
		"ADD completes an earlier ADD that was interrupted":                                      addAfterHalf,
		"ADD creates the interface again when Open vSwitch has a port without a device":          addAfterLostDevice,
		"ADD of a pod's next container takes the logical port over, and the old DEL is harmless": addReplaces,
		"ADD and DEL at once for twenty pods":                                                    addInParallel,
		"containers whose IDs share twelve characters do not collide":                            addSimilarIDs,
		"an ADD whose runtime gave up makes room for the next":                                   addAbandoned,
		"a pod's routes annotation is followed, and a bad one explained":                         addRoutes,
		"ADD in a deleted namespace names the namespace in its error":                            addWithoutNamespace,
		"results come in the version that the runtime asks for":                                  versions,
	} {
		t.Run(name, func(t *testing.T) { test(t, n.In(t)) })
	}
}

func addConfigures(t *testing.T, n *agenttest.Node) {
	c := n.Sandbox(n.Pod("plain", 10), agenttest.NewID())
	result := c.MustAdd()
	t.Cleanup(c.MustDel)

	host, ids := c.Port()
	want := map[string]string{
		"iface-id": "plain.default", "iface-id-ver": string(c.Pod.UID), "attached-mac": "02:00:00:16:00:0a", "vendor": "kube-ovn",
		"pod_name": "plain", "pod_namespace": "default", "pod_netns": c.Path, "ip": "10.16.0.10,fd00:10:16::a", "container_id": c.ID,
	}
	for key, value := range want {
		if ids[key] != value {
			t.Errorf("external_ids:%s is %q, want %q", key, ids[key], value)
		}
	}
	if len(result.Interfaces) != 2 || result.Interfaces[0].Name != host || result.Interfaces[1].Sandbox != c.Path || result.Interfaces[1].Mac != want["attached-mac"] {
		t.Errorf("interfaces of the result: %+v", result.Interfaces)
	}
	var addresses []string
	for _, ip := range result.IPs {
		addresses = append(addresses, ip.Address.String()+" via "+ip.Gateway.String())
	}
	if !slices.Equal(addresses, []string{"10.16.0.10/16 via 10.16.0.1", "fd00:10:16::a/112 via fd00:10:16::1"}) {
		t.Errorf("addresses of the result: %v", addresses)
	}
	c.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if link.Attrs().MTU != agenttest.PodMTU || link.Attrs().HardwareAddr.String() != want["attached-mac"] || link.Attrs().Flags&net.FlagUp == 0 {
			t.Errorf("eth0: %+v", link.Attrs())
		}
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		features, err := tool.Features("eth0")
		if features["tx-checksum-ip-generic"] {
			t.Error("checksum offload is on in the userspace datapath")
		}
		list, _ := netlinksafe.AddrList(link, netlink.FAMILY_V6)
		for _, a := range list {
			if a.IP.IsGlobalUnicast() && a.Flags&0x40 != 0 { // IFA_F_TENTATIVE
				t.Errorf("%s is tentative", a)
			}
		}
		return err
	})
	if err := c.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if disabled, _ := os.ReadFile("/proc/sys/net/ipv6/conf/" + host + "/disable_ipv6"); strings.TrimSpace(string(disabled)) != "1" {
		t.Error("the node hears the pod's IPv6")
	}
}

func addWaits(t *testing.T, n *agenttest.Node) {
	pod := n.CreatePod("late")
	c := n.Sandbox(pod, agenttest.NewID())
	done := make(chan error, 1)
	go func() { _, err := c.Add(); done <- err }()
	select {
	case err := <-done:
		t.Fatalf("ADD did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	n.Annotate(pod, 20)
	must.Succeed(t, <-done)
	c.MustDel()

	// A waiting ADD is not observable. The test deletes pods at increasing delays after the start of their ADD, until an ADD was waiting.
	later := 50 * time.Millisecond
	n.Eventually("an ADD whose pod is deleted says so", func() bool {
		later *= 2
		ctx, cancel := context.WithTimeout(t.Context(), 5*later)
		defer cancel()
		never := n.Sandbox(n.CreatePod("never-"+agenttest.NewID()[:8]), agenttest.NewID())
		finished := make(chan error, 1)
		go func() { _, err := never.AddWithin(ctx); finished <- err }()
		time.Sleep(later)
		must.Succeed(t, n.API.Delete(t.Context(), never.Pod, client.GracePeriodSeconds(0)))
		err := <-finished
		return err != nil && strings.Contains(err.Error(), "deleted before it had an address")
	})
}

func addComparesUIDs(t *testing.T, n *agenttest.Node) {
	old := n.Pod("again", 30)
	must.Succeed(t, n.API.Delete(t.Context(), old, client.GracePeriodSeconds(0)))
	fresh := n.CreatePod("again")
	copied := old.DeepCopy()
	base := fresh.DeepCopy()
	fresh.Annotations = copied.Annotations // with the UID of the previous pod
	must.Succeed(t, n.API.Patch(t.Context(), fresh, client.MergeFrom(base)))

	c := n.Sandbox(fresh, agenttest.NewID())
	done := make(chan error, 1)
	go func() { _, err := c.Add(); done <- err }()
	select {
	case err := <-done:
		t.Fatalf("ADD took the predecessor's addresses: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	n.Annotate(fresh, 31)
	must.Succeed(t, <-done)
	if _, ids := c.Port(); ids["iface-id-ver"] != string(fresh.UID) || ids["ip"] != "10.16.0.31,fd00:10:16::1f" {
		t.Errorf("port: %v", ids)
	}
	c.MustDel()
}

func addStatic(t *testing.T, n *agenttest.Node) {
	const hash = "3e2bbd7a11e0c0a9d6a3b1b6f1c0ffee"
	mirror := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "static-" + agenttest.NodeName, Namespace: "default", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: hash}},
		Spec:       corev1.PodSpec{NodeName: agenttest.NodeName, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	must.Succeed(t, n.API.Create(t.Context(), mirror))
	n.Annotate(mirror, 35)
	static := mirror.DeepCopy()
	static.UID = hash // the UID that the kubelet passes to the runtime
	c := n.Sandbox(static, agenttest.NewID())
	c.MustAdd()
	must.Succeed(t, c.Check())
	if _, ids := c.Port(); ids["iface-id-ver"] != string(mirror.UID) {
		t.Errorf("the port is of pod %s, and OVN's of %s", ids["iface-id-ver"], mirror.UID)
	}
	c.MustDel()
}

func addTwice(t *testing.T, n *agenttest.Node) {
	c := n.Sandbox(n.Pod("twice", 40), agenttest.NewID())
	first := c.MustAdd()
	index := agenttest.LinkIndex(t, first.Interfaces[0].Name)
	uuid := n.Interfaces()[first.Interfaces[0].Name].UUID
	second := c.MustAdd()
	if first.Interfaces[0].Name != second.Interfaces[0].Name || agenttest.LinkIndex(t, second.Interfaces[0].Name) != index {
		t.Error("the second ADD made another interface")
	}
	if n.Interfaces()[first.Interfaces[0].Name].UUID != uuid {
		t.Error("the second ADD made another port")
	}
	c.Port()
	c.MustDel()
}

func addAfterHalf(t *testing.T, n *agenttest.Node) {
	// Interrupted after the veth, before the port: only the devices exist.
	c := n.Sandbox(n.Pod("half", 50), agenttest.NewID())
	left := sandbox.Interface{NetNS: c.Path, Name: "eth0", HostName: sandbox.HostName(c.ID, "eth0", 0), MAC: net.HardwareAddr{2, 9, 9, 9, 9, 9}, MTU: 1000}
	must.Succeed(t, left.Create())
	c.MustAdd()
	must.Succeed(t, c.Check())

	// Interrupted after the port, before addresses.
	c.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addresses, err := netlinksafe.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		return netlink.AddrDel(link, &addresses[0])
	})
	if err := c.Check(); err == nil {
		t.Fatal("CHECK did not report the missing address")
	}
	c.MustAdd()
	must.Succeed(t, c.Check())
	c.MustDel()
	c.HasNoPort()
}

func addAfterLostDevice(t *testing.T, n *agenttest.Node) {
	c := n.Sandbox(n.Pod("lost", 60), agenttest.NewID())
	before := c.MustAdd().Interfaces[0].Name
	must.Succeed(t, sandbox.Remove(before))
	after := c.MustAdd().Interfaces[0].Name
	if before == after {
		t.Error("the new device has the name that Open vSwitch held")
	}
	if name, _ := c.Port(); name != after {
		t.Errorf("the port is %s, the device %s", name, after)
	}
	must.Succeed(t, c.Check())
	must.Succeed(t, sandbox.Remove(after))
	if again := c.MustAdd().Interfaces[0].Name; again != before {
		t.Errorf("the third device is %s, not %s", again, before)
	}
	must.Succeed(t, c.Check())
	c.MustDel()
	c.HasNoPort()
}

func addReplaces(t *testing.T, n *agenttest.Node) {
	pod := n.Pod("sandboxes", 70)
	first, second := n.Sandbox(pod, agenttest.NewID()), n.Sandbox(pod, agenttest.NewID())
	first.MustAdd()
	second.MustAdd()
	first.HasNoPort()
	name, _ := second.Port()
	first.MustDel()
	if still, _ := second.Port(); still != name {
		t.Errorf("the DEL of the first container changed the port of the second: %s is %s", name, still)
	}
	must.Succeed(t, second.Check())
	second.MustDel()
}

func addInParallel(t *testing.T, n *agenttest.Node) {
	const pods = 20
	containers := make([]*agenttest.Container, pods)
	for i := range containers {
		containers[i] = n.Sandbox(n.Pod(fmt.Sprintf("burst-%d", i), 100+i), agenttest.NewID())
	}
	each := func(what string, f func(*agenttest.Container) error) {
		var wait sync.WaitGroup
		for _, c := range containers {
			wait.Go(func() {
				if err := f(c); err != nil {
					t.Errorf("%s of %s: %v", what, c.Pod.Name, err)
				}
			})
		}
		wait.Wait()
	}
	each("ADD", func(c *agenttest.Container) error { _, err := c.Add(); return err })
	for _, c := range containers {
		c.Port()
	}
	each("CHECK", (*agenttest.Container).Check)
	each("DEL", (*agenttest.Container).Del)
	for _, c := range containers {
		c.HasNoPort()
	}
}

func addSimilarIDs(t *testing.T, n *agenttest.Node) {
	prefix := agenttest.NewID()[:12]
	one, two := n.Sandbox(n.Pod("one", 130), prefix+agenttest.NewID()[:52]), n.Sandbox(n.Pod("two", 131), prefix+agenttest.NewID()[:52])
	one.MustAdd()
	two.MustAdd()
	must.Succeed(t, one.Check())
	must.Succeed(t, two.Check())
	one.MustDel()
	must.Succeed(t, two.Check())
	two.MustDel()
}

func addAbandoned(t *testing.T, n *agenttest.Node) {
	c := n.Sandbox(n.CreatePod("abandoned"), agenttest.NewID())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.AddWithin(ctx); err == nil {
		t.Fatal("ADD of a pod without addresses succeeded")
	}
	defer eventually.Record(t, time.Now()) // a DEL that waited for the abandoned ADD would take 100 seconds
	c.MustDel()
}

func addRoutes(t *testing.T, n *agenttest.Node) {
	pod := n.Pod("routes", 140)
	base := pod.DeepCopy()
	pod.Annotations["ovn.kubernetes.io/routes"] = `[{"dst":"192.0.2.0/24","gw":"10.16.0.9"},{"dst":"fd00:99::/64"}]`
	must.Succeed(t, n.API.Patch(t.Context(), pod, client.MergeFrom(base)))
	c := n.Sandbox(pod, agenttest.NewID())
	n.Eventually("the agent has seen the annotation", func() bool {
		result := c.MustAdd()
		return len(result.Routes) == 4
	})
	must.Succeed(t, c.Check())
	for to, via := range map[string]string{"192.0.2.1": "10.16.0.9", "fd00:99::1": "fd00:10:16::1", "203.0.113.1": "10.16.0.1"} {
		c.Do(func() error {
			routes, err := netlink.RouteGet(net.ParseIP(to))
			if err == nil && routes[0].Gw.String() != via {
				t.Errorf("%s is reached via %s, not %s", to, routes[0].Gw, via)
			}
			return err
		})
	}
	c.MustDel()

	bad := n.CreatePod("bad-routes")
	base = bad.DeepCopy()
	bad.Annotations = map[string]string{"ovn.kubernetes.io/routes": `[{"dst":`}
	must.Succeed(t, n.API.Patch(t.Context(), bad, client.MergeFrom(base)))
	n.Annotate(bad, 141)
	if _, err := n.Sandbox(bad, agenttest.NewID()).Add(); err == nil || !strings.Contains(err.Error(), "ovn.kubernetes.io/routes") {
		t.Errorf("ADD with a bad annotation: %v", err)
	}
}

func addWithoutNamespace(t *testing.T, n *agenttest.Node) {
	c := n.Sandbox(n.Pod("no-namespace", 150), agenttest.NewID())
	c.Vanish()
	_, err := c.Add()
	if err == nil {
		t.Fatal("ADD without a namespace succeeded")
	}
	c.HasNoPort()
	c.MustDel()
}

func versions(t *testing.T, n *agenttest.Node) {
	c := n.Sandbox(n.Pod("versions", 190), agenttest.NewID())
	content, err := os.ReadFile(filepath.Join(n.Options.CNIConfDir, "01-kube-ovn.conflist"))
	must.Succeed(t, err)
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		list, err := libcni.ConfListFromBytes([]byte(fmt.Sprintf(
			`{"name":"kube-ovn","cniVersion":%q,"plugins":[{"type":"kube-ovn","server_socket":%q},{"type":"portmap"}]}`, version, n.Options.CNISocket)))
		must.Succeed(t, err)
		result, err := c.CNI.AddNetworkList(t.Context(), list, c.Runtime())
		must.Succeed(t, err)
		if result.Version() != version {
			t.Errorf("the result has version %s, want %s", result.Version(), version)
		}
		c.List = list
		if version != "0.3.1" { // version 0.3.1 has no CHECK
			must.Succeed(t, c.Check())
		}
		c.MustDel()
	}
	if list, err := libcni.ConfListFromBytes(content); err != nil || list.CNIVersion != "1.1.0" {
		t.Errorf("a runtime of today chooses version %s of the conflist (%v)", list.CNIVersion, err)
	}
}
