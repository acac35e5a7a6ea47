// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// sharer creates a pod with a port on a subnet that shares addresses with other pods. It runs a virtual machine unless machine is "".
func (n *network) sharer(name, machine, subnet, vips string) *corev1.Pod {
	n.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{kubeovnv1.AnnotationPortVips.Key(): vips}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	if machine != "" {
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: machine, UID: "1", Controller: new(true)},
		}
	}
	n.Create(p)
	n.publish(p, map[kubeovnv1.Annotation]string{kubeovnv1.AnnotationLogicalSwitch: subnet, kubeovnv1.AnnotationMachine: machine})
	n.Cleanup(func() { _ = client.IgnoreNotFound(n.Client.Delete(n.Context(), p, client.GracePeriodSeconds(0))) })
	return p
}

// publish writes results on a pod, as the pod controller does and users may do.
func (n *network) publish(p *corev1.Pod, results map[kubeovnv1.Annotation]string) {
	n.Helper()
	n.Change(p, func() {
		p.Annotations[kubeovnv1.AnnotationAllocated.Key()], p.Annotations[kubeovnv1.AnnotationPodUID.Key()] = "true", string(p.UID)
		for a, value := range results {
			p.Annotations[a.Key()] = value
		}
	})
}

func TestVipsAreSharedByThePodsThatSaySo(t *testing.T) {
	n := start(t)
	first := n.sharer("first", "", "shop", "10.20.0.100")
	n.sharer("other", "", "elsewhere", "10.20.0.100")
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:20::/64", Vips: []string{"10.20.0.100", "fd00:20::100"}})
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents", "first.default")
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "")
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-ip", "fd00:20::100")
	if got := n.subnet("shop").Status.V4AvailableIPRange; got != "10.20.0.2-10.20.0.99,10.20.0.101-10.20.0.254" {
		t.Errorf("pods can get %s", got)
	}

	second := n.sharer("second", "", "shop", "fd00:20::100, 10.20.0.100")
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents", "first.default,second.default")
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "second.default")
	n.Must(n.Client.Delete(n.Context(), first, client.GracePeriodSeconds(0)))
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents", "second.default")
	n.Get(second)
	n.Change(second, func() { second.Annotations[kubeovnv1.AnnotationPortVips.Key()] = "10.20.0.100" })
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "")

	for _, name := range []string{"virt-launcher-vm-a", "virt-launcher-vm-b"} { // a live migration
		n.sharer(name, "vm", "shop", "fd00:20::100")
	}
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "vm.default")

	n.change(s, func() { s.Spec.Vips = []string{"fd00:20::100"} })
	n.rows("Logical_Switch_Port", "name", "join-ovn-cluster", "ovn-default-ovn-cluster", "shop-ovn-cluster", "shop-vip-fd00:20::100")
}

// TestVipsTakeNoAddressOfAPod adds addresses that a pod, a Vip and nothing hold to the vips of a subnet, and a pod of another tenant names them.
func TestVipsTakeNoAddressOfAPod(t *testing.T) {
	n := startMeasured(t) // the release of an address is an event
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:20::/64"})
	for holder, address := range map[string]string{"web.default": "10.20.0.100", translate.VipHolder("shared"): "fd00:20::100"} {
		n.hold(holder, "shop", address)
	}
	n.sharer("thief", "", "shop", "10.20.0.100,fd00:20::100")
	for _, c := range []struct{ vip, holder string }{{"10.20.0.100", "web.default"}, {"fd00:20::100", "vip/shared"}} {
		n.Get(s)
		n.Change(s, func() { s.Spec.Vips = []string{"10.20.0.99", c.vip} })
		n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "vips: "+c.vip+" ("+c.holder+")")
		n.rows("Logical_Switch_Port", "name", "join-ovn-cluster", "ovn-default-ovn-cluster", "shop-ovn-cluster")
		n.process.Allocator.Release(c.holder)
		n.option("Logical_Switch_Port", "name", "shop-vip-"+c.vip, "options", "virtual-parents", "thief.default")
		n.Get(s)
		n.change(s, func() { s.Spec.Vips = nil })
	}
	n.Get(s)
	n.change(s, func() { s.Spec.Vips = []string{"10.20.0.100"} })
	n.hold("late.default", "shop", "10.20.0.100") // as at a takeover from Kube-OVN
	n.change(s, func() { s.Spec.Vips = []string{"10.20.0.100", "fd00:20::99"} })
}

// Users can write any annotations on a pod, but they can choose no port other than the port of the pod.
func TestPodsShareVipsByTheirOwnPortsOnly(t *testing.T) {
	n := start(t)
	n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24", Vips: []string{"10.20.0.100"}})
	unpublished := n.sharer("unpublished", "", "shop", "10.20.0.100")
	n.Change(unpublished, func() { delete(unpublished.Annotations, kubeovnv1.AnnotationPodUID.Key()) })
	for i, machine := range []string{"a\x00b", "victim", "a,victim", "\n"} {
		p := n.sharer(fmt.Sprintf("hostile-%d", i), "", "shop", "10.20.0.100")
		n.publish(p, map[kubeovnv1.Annotation]string{kubeovnv1.AnnotationMachine: machine})
	}
	for i, machine := range []string{"a\x00b", "a,victim", "..", "UPPER"} { // the API server accepts any name in an owner reference
		n.sharer(fmt.Sprintf("owned-%d", i), machine, "shop", "10.20.0.100")
	}
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents",
		"hostile-0.default,hostile-1.default,hostile-2.default,hostile-3.default,owned-0.default,owned-1.default,owned-2.default,owned-3.default")
}
