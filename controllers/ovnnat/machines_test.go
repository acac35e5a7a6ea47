// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// launcher returns a pod of namespace shop that has the port of virtual machine vm. A target of a migration has the label of KubeVirt.
func (w *world) launcher(name string, target bool, requests ...string) *corev1.Pod {
	w.Helper()
	return w.newPodOf(func(pod *corev1.Pod) {
		pod.Name, pod.Annotations[kubeovnv1.AnnotationMachine.Key()] = "virt-launcher-vm-"+name, "vm"
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "vm", UID: "c0ffee00-0000-4000-8000-000000000000", Controller: new(true),
		}}
		if target {
			pod.Labels = map[string]string{"kubevirt.io/migrationJobUID": "u"}
		}
	}, requests...)
}

func (w *world) complete(pod *corev1.Pod) {
	w.Helper()
	w.Get(pod)
	pod.Status.Phase = corev1.PodSucceeded
	w.Must(w.Client.Status().Update(w.Context(), pod))
}

// is waits until podrules rests, and expects that a rule is the same object as before.
func (w *world) is(rule *kubeovnv1.OvnFip, when string) {
	w.Helper()
	w.Rests("podrules")
	now := &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: rule.Name}}
	if !w.Get(now) || now.UID != rule.UID || now.DeletionTimestamp != nil {
		w.Errorf("%s: the rule %s was deleted, or created again", when, rule.Name)
	}
}

func TestTheRuleOfAVirtualMachineStaysWhenItMigrates(t *testing.T) {
	w := newWorld(t)
	w.eip("web", at("192.0.2.9", ""), forShop)
	w.eip("other", at("192.0.2.10", ""), forShop)
	source := w.launcher("z", false, "eip", "192.0.2.9")
	ip := w.ip("vm", "net", "n1", "10.50.0.5", "")
	rule := &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "vm.shop"}}
	w.Ready(rule)
	if got := rule.Annotations[kubeovnv1.PodOfRule]; got != "shop/vm" {
		t.Errorf("the rule is of %s", got)
	}
	target := w.launcher("a", true, "eip", "192.0.2.9")
	w.is(rule, "with a target")
	w.request(target, kubeovnv1.AnnotationEip, "192.0.2.10")
	w.is(rule, "with a target that requests another address")
	w.request(target, kubeovnv1.AnnotationEip, "192.0.2.9")
	w.run()
	w.is(rule, "after a restart")

	w.complete(source)
	w.Change(ip, func() { ip.Spec.NodeName = "n2" })
	w.is(rule, "on the target")
	w.Delete(source)
	w.is(rule, "without the source")
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
	failed := w.launcher("b", true, "eip", "192.0.2.10")
	w.is(rule, "with another target")
	w.Delete(failed)
	w.is(rule, "after a failed migration")
	w.Delete(target)
	w.Gone(rule)
	w.nat()
}

func TestThePodWithTheIPOfAVirtualMachineDecides(t *testing.T) {
	w := newWorld(t)
	w.eip("web", at("192.0.2.9", ""), forShop)
	w.eip("other", at("192.0.2.10", ""), forShop)
	w.ip("vm", "net", "n1", "10.50.0.5", "")
	source := w.launcher("z", false)
	target := w.launcher("a", true, "eip", "192.0.2.9", "snat", "192.0.2.200")
	w.Rests("podrules")
	w.nat()
	w.request(source, kubeovnv1.AnnotationEip, "192.0.2.10")
	w.nat("dnat_and_snat 192.0.2.10 10.50.0.5")
	w.complete(source)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
	w.warned(target, "no OvnEip has 192.0.2.200")

	// The end of a source without requests is an event, too.
	second := w.launcher("b", true)
	w.Delete(target)
	w.nat()
	third := w.launcher("c", true, "eip", "192.0.2.9")
	w.Rests("podrules")
	w.nat()
	w.Delete(second)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
	w.Delete(third)
	w.nat()
}
