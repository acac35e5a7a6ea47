// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/uuid"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/eventually"
)

// newID returns a container ID in containerd's format.
func newID() string {
	return strings.ReplaceAll(uuid.NewString()+uuid.NewString(), "-", "")
}

func TestCNI(t *testing.T) {
	n := serving(t)
	for name, test := range map[string]func(*testing.T, *node){
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
		"DEL succeeds twice, before ADD, and without a namespace":                                delAlways,
		"CHECK reports missing parts":                                                            checkNotices,
		"GC removes attachments unknown to the runtime, and nothing of other networks":           gcRemoves,
		"results come in the version that the runtime asks for":                                  versions,
	} {
		t.Run(name, func(t *testing.T) { test(t, n.in(t)) })
	}
}

// in returns the node for use in a subtest.
func (n *node) in(t *testing.T) *node {
	return &node{
		TB: t, root: n.root, api: n.api, options: n.options, dir: n.dir, families: n.families,
		ovs: n.ovs, server: n.server, vswitchd: n.vswitchd, agent: n.agent,
	}
}

func addConfigures(t *testing.T, n *node) {
	c := n.sandbox(n.pod("plain", 10), newID())
	result := c.mustAdd()
	t.Cleanup(c.mustDel)

	host, ids := c.port()
	want := map[string]string{
		"iface-id": "plain.default", "iface-id-ver": string(c.pod.UID), "attached-mac": "02:00:00:16:00:0a", "vendor": "kube-ovn",
		"pod_name": "plain", "pod_namespace": "default", "pod_netns": c.path, "ip": "10.16.0.10,fd00:10:16::a", "container_id": c.id,
	}
	for key, value := range want {
		if ids[key] != value {
			t.Errorf("external_ids:%s is %q, want %q", key, ids[key], value)
		}
	}
	if len(result.Interfaces) != 2 || result.Interfaces[0].Name != host || result.Interfaces[1].Sandbox != c.path || result.Interfaces[1].Mac != want["attached-mac"] {
		t.Errorf("interfaces of the result: %+v", result.Interfaces)
	}
	var addresses []string
	for _, ip := range result.IPs {
		addresses = append(addresses, ip.Address.String()+" via "+ip.Gateway.String())
	}
	if !slices.Equal(addresses, []string{"10.16.0.10/16 via 10.16.0.1", "fd00:10:16::a/112 via fd00:10:16::1"}) {
		t.Errorf("addresses of the result: %v", addresses)
	}
	c.do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if link.Attrs().MTU != podMTU || link.Attrs().HardwareAddr.String() != want["attached-mac"] || link.Attrs().Flags&net.FlagUp == 0 {
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
	if err := c.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if disabled, _ := os.ReadFile("/proc/sys/net/ipv6/conf/" + host + "/disable_ipv6"); strings.TrimSpace(string(disabled)) != "1" {
		t.Error("the node hears the pod's IPv6")
	}
}

func addWaits(t *testing.T, n *node) {
	pod := n.createPod("late")
	c := n.sandbox(pod, newID())
	done := make(chan error, 1)
	go func() { _, err := c.add(); done <- err }()
	select {
	case err := <-done:
		t.Fatalf("ADD did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	n.annotate(pod, 20)
	must(t, <-done)
	c.mustDel()

	// A waiting ADD is not observable. The test deletes pods at increasing delays after the start of their ADD, until an ADD was waiting.
	later := 50 * time.Millisecond
	n.eventually("an ADD whose pod is deleted says so", func() bool {
		later *= 2
		ctx, cancel := context.WithTimeout(t.Context(), 5*later)
		defer cancel()
		never := n.sandbox(n.createPod("never-"+newID()[:8]), newID())
		finished := make(chan error, 1)
		go func() { _, err := never.addWithin(ctx); finished <- err }()
		time.Sleep(later)
		must(t, n.api.Delete(t.Context(), never.pod, client.GracePeriodSeconds(0)))
		err := <-finished
		return err != nil && strings.Contains(err.Error(), "deleted before it had an address")
	})
}

func addComparesUIDs(t *testing.T, n *node) {
	old := n.pod("again", 30)
	must(t, n.api.Delete(t.Context(), old, client.GracePeriodSeconds(0)))
	fresh := n.createPod("again")
	copied := old.DeepCopy()
	base := fresh.DeepCopy()
	fresh.Annotations = copied.Annotations // with the UID of the previous pod
	must(t, n.api.Patch(t.Context(), fresh, client.MergeFrom(base)))

	c := n.sandbox(fresh, newID())
	done := make(chan error, 1)
	go func() { _, err := c.add(); done <- err }()
	select {
	case err := <-done:
		t.Fatalf("ADD took the predecessor's addresses: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	n.annotate(fresh, 31)
	must(t, <-done)
	if _, ids := c.port(); ids["iface-id-ver"] != string(fresh.UID) || ids["ip"] != "10.16.0.31,fd00:10:16::1f" {
		t.Errorf("port: %v", ids)
	}
	c.mustDel()
}

func addStatic(t *testing.T, n *node) {
	const hash = "3e2bbd7a11e0c0a9d6a3b1b6f1c0ffee"
	mirror := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "static-" + nodeName, Namespace: "default", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: hash}},
		Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	must(t, n.api.Create(t.Context(), mirror))
	n.annotate(mirror, 35)
	static := mirror.DeepCopy()
	static.UID = hash // the UID that the kubelet passes to the runtime
	c := n.sandbox(static, newID())
	c.mustAdd()
	must(t, c.check())
	if _, ids := c.port(); ids["iface-id-ver"] != string(mirror.UID) {
		t.Errorf("the port is of pod %s, and OVN's of %s", ids["iface-id-ver"], mirror.UID)
	}
	c.mustDel()
}

func addTwice(t *testing.T, n *node) {
	c := n.sandbox(n.pod("twice", 40), newID())
	first := c.mustAdd()
	index := linkIndex(t, first.Interfaces[0].Name)
	uuid := n.interfaces()[first.Interfaces[0].Name].UUID
	second := c.mustAdd()
	if first.Interfaces[0].Name != second.Interfaces[0].Name || linkIndex(t, second.Interfaces[0].Name) != index {
		t.Error("the second ADD made another interface")
	}
	if n.interfaces()[first.Interfaces[0].Name].UUID != uuid {
		t.Error("the second ADD made another port")
	}
	c.port()
	c.mustDel()
}

func addAfterHalf(t *testing.T, n *node) {
	// Interrupted after the veth, before the port: only the devices exist.
	c := n.sandbox(n.pod("half", 50), newID())
	left := sandbox.Interface{NetNS: c.path, Name: "eth0", HostName: sandbox.HostName(c.id, "eth0", 0), MAC: net.HardwareAddr{2, 9, 9, 9, 9, 9}, MTU: 1000}
	must(t, left.Create())
	c.mustAdd()
	must(t, c.check())

	// Interrupted after the port, before addresses.
	c.do(func() error {
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
	if err := c.check(); err == nil {
		t.Fatal("CHECK did not report the missing address")
	}
	c.mustAdd()
	must(t, c.check())
	c.mustDel()
	c.hasNoPort()
}

func addAfterLostDevice(t *testing.T, n *node) {
	c := n.sandbox(n.pod("lost", 60), newID())
	before := c.mustAdd().Interfaces[0].Name
	must(t, sandbox.Remove(before))
	after := c.mustAdd().Interfaces[0].Name
	if before == after {
		t.Error("the new device has the name that Open vSwitch held")
	}
	if name, _ := c.port(); name != after {
		t.Errorf("the port is %s, the device %s", name, after)
	}
	must(t, c.check())
	must(t, sandbox.Remove(after))
	if again := c.mustAdd().Interfaces[0].Name; again != before {
		t.Errorf("the third device is %s, not %s", again, before)
	}
	must(t, c.check())
	c.mustDel()
	c.hasNoPort()
}

func addReplaces(t *testing.T, n *node) {
	pod := n.pod("sandboxes", 70)
	first, second := n.sandbox(pod, newID()), n.sandbox(pod, newID())
	first.mustAdd()
	second.mustAdd()
	first.hasNoPort()
	name, _ := second.port()
	first.mustDel()
	if still, _ := second.port(); still != name {
		t.Errorf("the DEL of the first container changed the port of the second: %s is %s", name, still)
	}
	must(t, second.check())
	second.mustDel()
}

func addInParallel(t *testing.T, n *node) {
	const pods = 20
	containers := make([]*container, pods)
	for i := range containers {
		containers[i] = n.sandbox(n.pod(fmt.Sprintf("burst-%d", i), 100+i), newID())
	}
	each := func(what string, f func(*container) error) {
		var wait sync.WaitGroup
		for _, c := range containers {
			wait.Go(func() {
				if err := f(c); err != nil {
					t.Errorf("%s of %s: %v", what, c.pod.Name, err)
				}
			})
		}
		wait.Wait()
	}
	each("ADD", func(c *container) error { _, err := c.add(); return err })
	for _, c := range containers {
		c.port()
	}
	each("CHECK", (*container).check)
	each("DEL", (*container).del)
	for _, c := range containers {
		c.hasNoPort()
	}
}

func addSimilarIDs(t *testing.T, n *node) {
	prefix := newID()[:12]
	one, two := n.sandbox(n.pod("one", 130), prefix+newID()[:52]), n.sandbox(n.pod("two", 131), prefix+newID()[:52])
	one.mustAdd()
	two.mustAdd()
	must(t, one.check())
	must(t, two.check())
	one.mustDel()
	must(t, two.check())
	two.mustDel()
}

func addAbandoned(t *testing.T, n *node) {
	c := n.sandbox(n.createPod("abandoned"), newID())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.addWithin(ctx); err == nil {
		t.Fatal("ADD of a pod without addresses succeeded")
	}
	defer eventually.Record(t, time.Now()) // a DEL that waited for the abandoned ADD would take 100 seconds
	c.mustDel()
}

func addRoutes(t *testing.T, n *node) {
	pod := n.pod("routes", 140)
	base := pod.DeepCopy()
	pod.Annotations["ovn.kubernetes.io/routes"] = `[{"dst":"192.0.2.0/24","gw":"10.16.0.9"},{"dst":"fd00:99::/64"}]`
	must(t, n.api.Patch(t.Context(), pod, client.MergeFrom(base)))
	c := n.sandbox(pod, newID())
	n.eventually("the agent has seen the annotation", func() bool {
		result := c.mustAdd()
		return len(result.Routes) == 4
	})
	must(t, c.check())
	for to, via := range map[string]string{"192.0.2.1": "10.16.0.9", "fd00:99::1": "fd00:10:16::1", "203.0.113.1": "10.16.0.1"} {
		c.do(func() error {
			routes, err := netlink.RouteGet(net.ParseIP(to))
			if err == nil && routes[0].Gw.String() != via {
				t.Errorf("%s is reached via %s, not %s", to, routes[0].Gw, via)
			}
			return err
		})
	}
	c.mustDel()

	bad := n.createPod("bad-routes")
	base = bad.DeepCopy()
	bad.Annotations = map[string]string{"ovn.kubernetes.io/routes": `[{"dst":`}
	must(t, n.api.Patch(t.Context(), bad, client.MergeFrom(base)))
	n.annotate(bad, 141)
	if _, err := n.sandbox(bad, newID()).add(); err == nil || !strings.Contains(err.Error(), "ovn.kubernetes.io/routes") {
		t.Errorf("ADD with a bad annotation: %v", err)
	}
}

func addWithoutNamespace(t *testing.T, n *node) {
	c := n.sandbox(n.pod("no-namespace", 150), newID())
	c.vanish()
	_, err := c.add()
	if err == nil {
		t.Fatal("ADD without a namespace succeeded")
	}
	c.hasNoPort()
	c.mustDel()
}

func delAlways(t *testing.T, n *node) {
	c := n.sandbox(n.pod("gone", 160), newID())
	c.mustDel() // before ADD
	c.mustAdd()
	c.vanish()
	c.mustDel()
	c.hasNoPort()
	c.mustDel()
	unknown := n.sandboxIn(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "unknown", Namespace: "nowhere", UID: "u"}}, newID(), c.ns)
	unknown.path = ""
	unknown.mustDel()
}

func checkNotices(t *testing.T, n *node) {
	c := n.sandbox(n.pod("checked", 170), newID())
	host := c.mustAdd().Interfaces[0].Name
	damage := map[string]func() error{
		"a route": func() error {
			return netlink.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: podGWs[0].AsSlice()})
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
		must(t, c.check())
		c.do(f)
		if err := c.check(); err == nil {
			t.Errorf("CHECK does not notice that %s was changed", what)
		}
		c.mustAdd()
	}
	n.detach(host)
	n.eventually("CHECK reports the missing port", func() bool { return c.check() != nil })
	c.mustDel()
}

func gcRemoves(t *testing.T, n *node) {
	kept, lost, other := n.sandbox(n.pod("kept", 180), newID()), n.sandbox(n.pod("lost-2", 181), newID()), n.sandbox(n.pod("other", 182), newID())
	other.list = n.renamed("other-network")
	for _, c := range []*container{kept, lost, other} {
		c.mustAdd()
	}
	attachments := []types.GCAttachment{{ContainerID: kept.id, IfName: "eth0"}}
	must(t, kept.cni.GCNetworkList(t.Context(), kept.list, &libcni.GCArgs{ValidAttachments: attachments}))
	lost.hasNoPort()
	must(t, kept.check())
	must(t, other.check())
	for _, list := range []string{"", `"cni.dev/attachments": [{"containerID": "` + kept.id + `", "ifname": "eth0"}],`} {
		err := kept.gc(list)
		if (err == nil) != (list != "") {
			t.Errorf("GC with %q: %v", list, err)
		}
		must(t, kept.check())
	}
	kept.mustDel()
	other.mustDel()
}

// gc executes the plugin as a runtime without libcni does, with additional keys in the configuration.
func (c *container) gc(more string) error {
	command := exec.Command(filepath.Join(c.options.CNIBinDir, "kube-ovn"))
	command.Env = []string{"CNI_COMMAND=GC", "CNI_PATH=" + c.options.CNIBinDir}
	command.Stdin = strings.NewReader(fmt.Sprintf(`{%s"cniVersion":"1.1.0","name":"kube-ovn","type":"kube-ovn","server_socket":%q}`, more, c.options.CNISocket))
	out, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// renamed returns the agent's conflist with another network name.
func (n *node) renamed(name string) *libcni.NetworkConfigList {
	n.Helper()
	content, err := os.ReadFile(filepath.Join(n.options.CNIConfDir, "01-kube-ovn.conflist"))
	must(n.TB, err)
	list, err := libcni.ConfListFromBytes([]byte(strings.Replace(string(content), `"name": "kube-ovn"`, `"name": "`+name+`"`, 1)))
	must(n.TB, err)
	return list
}

func versions(t *testing.T, n *node) {
	c := n.sandbox(n.pod("versions", 190), newID())
	content, err := os.ReadFile(filepath.Join(n.options.CNIConfDir, "01-kube-ovn.conflist"))
	must(t, err)
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		list, err := libcni.ConfListFromBytes([]byte(fmt.Sprintf(
			`{"name":"kube-ovn","cniVersion":%q,"plugins":[{"type":"kube-ovn","server_socket":%q},{"type":"portmap"}]}`, version, n.options.CNISocket)))
		must(t, err)
		result, err := c.cni.AddNetworkList(t.Context(), list, c.runtime())
		must(t, err)
		if result.Version() != version {
			t.Errorf("the result has version %s, want %s", result.Version(), version)
		}
		c.list = list
		if version != "0.3.1" { // version 0.3.1 has no CHECK
			must(t, c.check())
		}
		c.mustDel()
	}
	if list, err := libcni.ConfListFromBytes(content); err != nil || list.CNIVersion != "1.1.0" {
		t.Errorf("a runtime of today chooses version %s of the conflist (%v)", list.CNIVersion, err)
	}
}

func linkIndex(t *testing.T, name string) int {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	return link.Attrs().Index
}
