// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"fmt"
	"net"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// CreatePod creates a pod bound to the node, without an address.
func (n *Node) CreatePod(name string) *corev1.Pod {
	n.Helper()
	return n.CreatePodOf(name, corev1.PodSpec{Containers: []corev1.Container{{}}})
}

// CreatePodOf is like CreatePod, but with a spec, whose containers get names and images.
func (n *Node) CreatePodOf(name string, spec corev1.PodSpec) *corev1.Pod {
	n.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: spec}
	pod.Spec.NodeName = NodeName
	for i, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for j := range list {
			list[j].Name, list[j].Image = fmt.Sprintf("c%d-%d", i, j), "i"
		}
	}
	must.Succeed(n.TB, n.API.Create(n.Context(), pod))
	return pod
}

// AddressesOf returns the addresses of the pod with that number in the default subnet.
func AddressesOf(number int) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{10, 16, byte(number >> 8), byte(number)}),
		netip.MustParseAddr(fmt.Sprintf("fd00:10:16::%x", number)),
	}
}

// Annotate writes a pod's annotations, as the controller would: both families, of the default subnet.
func (n *Node) Annotate(pod *corev1.Pod, number int) {
	n.Helper()
	n.AnnotateIn(pod, number, "ovn-cluster")
}

// AnnotateIn is like Annotate, for a pod of a VPC whose subnet has the same CIDRs as the default one.
func (n *Node) AnnotateIn(pod *corev1.Pod, number int, vpc string) {
	n.Helper()
	subnet := "ovn-default"
	if vpc != v1.DefaultVpc {
		subnet = vpc + "-net"
	}
	s := SubnetOf(subnet, ipfamily.Join(PodCIDRs[:n.Families]))
	if n.API.Get(n.Context(), client.ObjectKeyFromObject(s), s) != nil {
		s.Spec.Vpc, s.Spec.Gateway = vpc, ipfamily.Join(PodGWs[:n.Families])
		n.Create(s)
	}
	n.WriteNetwork(pod, v1.PodNetwork{
		UID: pod.UID, Allocated: true, Routed: true, Addresses: AddressesOf(number)[:n.Families],
		MAC:   net.HardwareAddr{0x02, 0, 0, 0x16, byte(number >> 8), byte(number)},
		CIDRs: PodCIDRs[:n.Families], Gateways: PodGWs[:n.Families], LogicalSwitch: subnet, LogicalRouter: vpc,
	})
}

// WriteNetwork writes a network into a pod's annotations, as the controller does, and as users can.
func (n *Node) WriteNetwork(pod *corev1.Pod, network v1.PodNetwork) {
	n.Helper()
	base := pod.DeepCopy()
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	for key, value := range network.Annotations() {
		pod.Annotations[key] = value
	}
	must.Succeed(n.TB, n.API.Patch(n.Context(), pod, client.MergeFrom(base)))
}

// Pod creates an annotated pod.
func (n *Node) Pod(name string, number int) *corev1.Pod {
	n.Helper()
	pod := n.CreatePod(name)
	n.Annotate(pod, number)
	return pod
}

// Ports of the test pods. Nothing listens on DeadPort.
const (
	ProbePort uint16 = 8080
	DeadPort  uint16 = 8081
)

// Probing returns the spec of a pod with TCP probes, in one container per port.
func Probing(ports ...uint16) corev1.PodSpec {
	var spec corev1.PodSpec
	for _, port := range ports {
		probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(int32(port))}}}
		spec.Containers = append(spec.Containers, corev1.Container{ReadinessProbe: probe})
	}
	return spec
}

// Tenant adds a pod of a custom VPC with probes of ProbePort and DeadPort.
func (n *Node) Tenant(name string, number int) *Container {
	n.Helper()
	return n.TenantOf(name, number, "blue", Probing(ProbePort, DeadPort))
}

// TenantOf adds a pod of a custom VPC.
func (n *Node) TenantOf(name string, number int, vpc string, spec corev1.PodSpec) *Container {
	n.Helper()
	pod := n.CreatePodOf(name, spec)
	n.AnnotateIn(pod, number, vpc)
	return n.Added(pod)
}

// Added creates the sandbox of a pod and attaches it until the test ends.
func (n *Node) Added(pod *corev1.Pod) *Container {
	n.Helper()
	c := n.Sandbox(pod, NewID())
	c.MustAdd()
	n.Cleanup(c.MustDel)
	return c
}
