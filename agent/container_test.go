// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

// createPod creates a pod bound to the node, without an address.
func (n *node) createPod(name string) *corev1.Pod {
	n.Helper()
	return n.createPodOf(name, corev1.PodSpec{Containers: []corev1.Container{{}}})
}

// createPodOf is like createPod, but with a spec, whose containers get names and images.
func (n *node) createPodOf(name string, spec corev1.PodSpec) *corev1.Pod {
	n.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: spec}
	pod.Spec.NodeName = nodeName
	for i, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for j := range list {
			list[j].Name, list[j].Image = fmt.Sprintf("c%d-%d", i, j), "i"
		}
	}
	must(n.TB, n.api.Create(n.Context(), pod))
	return pod
}

// addressesOf returns the addresses of the pod with that number in the default subnet.
func addressesOf(number int) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{10, 16, byte(number >> 8), byte(number)}),
		netip.MustParseAddr(fmt.Sprintf("fd00:10:16::%x", number)),
	}
}

// annotate writes a pod's annotations, as the controller would: both families, of the default subnet.
func (n *node) annotate(pod *corev1.Pod, number int) {
	n.Helper()
	n.annotateIn(pod, number, "ovn-cluster")
}

// annotateIn is like annotate, for a pod of a VPC whose subnet has the same CIDRs as the default one.
func (n *node) annotateIn(pod *corev1.Pod, number int, vpc string) {
	n.Helper()
	subnet := "ovn-default"
	if vpc != v1.DefaultVpc {
		subnet = vpc + "-net"
	}
	s := subnetOf(subnet, ipfamily.Join(podCIDRs[:n.families]))
	if n.api.Get(n.Context(), client.ObjectKeyFromObject(s), s) != nil {
		s.Spec.Vpc, s.Spec.Gateway = vpc, ipfamily.Join(podGWs[:n.families])
		n.create(s)
	}
	n.writeNetwork(pod, v1.PodNetwork{
		UID: pod.UID, Allocated: true, Routed: true, Addresses: addressesOf(number)[:n.families],
		MAC:   net.HardwareAddr{0x02, 0, 0, 0x16, byte(number >> 8), byte(number)},
		CIDRs: podCIDRs[:n.families], Gateways: podGWs[:n.families], LogicalSwitch: subnet, LogicalRouter: vpc,
	})
}

// writeNetwork writes a network into a pod's annotations, as the controller does, and as users can.
func (n *node) writeNetwork(pod *corev1.Pod, network v1.PodNetwork) {
	n.Helper()
	base := pod.DeepCopy()
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	for key, value := range network.Annotations() {
		pod.Annotations[key] = value
	}
	must(n.TB, n.api.Patch(n.Context(), pod, client.MergeFrom(base)))
}

// pod creates an annotated pod.
func (n *node) pod(name string, number int) *corev1.Pod {
	n.Helper()
	pod := n.createPod(name)
	n.annotate(pod, number)
	return pod
}

// container is a sandbox of a pod, as a container runtime handles it.
type container struct {
	*node
	pod  *corev1.Pod
	id   string
	path string
	ns   ns.NetNS
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// sandbox creates a network namespace for a pod. Its methods call the plugin as the runtime would: with the conflist that the agent
// installed.
func (n *node) sandbox(pod *corev1.Pod, id string) *container {
	n.Helper()
	namespace, err := testutils.NewNS()
	must(n.TB, err)
	n.Cleanup(func() { _ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace)) })
	return n.sandboxIn(pod, id, namespace)
}

func (n *node) sandboxIn(pod *corev1.Pod, id string, namespace ns.NetNS) *container {
	n.Helper()
	list, err := libcni.ConfListFromFile(filepath.Join(n.options.CNIConfDir, "01-kube-ovn.conflist"))
	must(n.TB, err)
	return &container{
		node: n, pod: pod, id: id, path: namespace.Path(), ns: namespace, list: list,
		cni: libcni.NewCNIConfigWithCacheDir([]string{n.options.CNIBinDir}, filepath.Join(n.dir, "cache"), nil),
	}
}

func (c *container) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: c.id, NetNS: c.path, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", c.pod.Namespace}, {"K8S_POD_NAME", c.pod.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", c.id}, {"K8S_POD_UID", string(c.pod.UID)},
	}}
}

// patience bounds one operation of the runtime, and waits for events, on a busy machine. It is slightly below the agent's limit of an
// ADD.
const patience = 90 * time.Second

func (c *container) add() (*types100.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.addWithin(ctx)
}

func (c *container) addWithin(ctx context.Context) (*types100.Result, error) {
	result, err := c.cni.AddNetworkList(ctx, c.list, c.runtime())
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(result)
}

func (c *container) mustAdd() *types100.Result {
	c.Helper()
	result, err := c.add()
	must(c.TB, err)
	return result
}

func (c *container) del() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.cni.DelNetworkList(ctx, c.list, c.runtime())
}

func (c *container) mustDel() {
	c.Helper()
	must(c.TB, c.del())
}

func (c *container) check() error {
	return c.cni.CheckNetworkList(context.Background(), c.list, c.runtime())
}

// vanish removes the namespace, as the runtime does after DEL, and as a reboot does.
func (c *container) vanish() {
	c.Helper()
	must(c.TB, errors.Join(c.ns.Close(), testutils.UnmountNS(c.ns)))
	if _, err := os.Stat(c.path); err == nil {
		c.Fatalf("%s is still there", c.path)
	}
}

// port returns the interface of this container in Open vSwitch. The test fails if there is not exactly one.
func (c *container) port() (name string, ids map[string]string) {
	c.Helper()
	for row, iface := range c.interfaces() {
		if iface.ExternalIDs["container_id"] == c.id {
			if name != "" {
				c.Fatalf("container %s has ports %s and %s", c.id, name, row)
			}
			name, ids = row, iface.ExternalIDs
		}
	}
	if name == "" {
		c.Fatalf("container %s has no port", c.id)
	}
	return name, ids
}

func (c *container) hasNoPort() {
	c.Helper()
	for name, iface := range c.interfaces() {
		if iface.ExternalIDs["container_id"] == c.id {
			c.Fatalf("container %s still has port %s", c.id, name)
		}
	}
}

// do runs a function in the container.
func (c *container) do(f func() error) {
	c.Helper()
	must(c.TB, c.ns.Do(func(ns.NetNS) error { return f() }))
}

func errorCode(t testing.TB, err error) uint {
	t.Helper()
	var failed *types.Error
	if !errors.As(err, &failed) {
		t.Fatalf("%v is no CNI error", err)
	}
	return failed.Code
}
