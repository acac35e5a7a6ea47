// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
)

// defineMachines installs the CRD of KubeVirt's VirtualMachine until the test ends.
func (w world) defineMachines() *unstructured.Unstructured {
	w.Helper()
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "virtualmachines.kubevirt.io"},
		"spec": map[string]any{
			"group": "kubevirt.io", "scope": "Namespaced",
			"names": map[string]any{"kind": "VirtualMachine", "listKind": "VirtualMachineList", "plural": "virtualmachines", "singular": "virtualmachine"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
	w.Create(definition)
	w.Cleanup(func() { w.undefine(context.Background(), definition) })
	return definition
}

func (w world) undefine(ctx context.Context, definition *unstructured.Unstructured) {
	w.Helper()
	w.Must(client.IgnoreNotFound(w.Client.Delete(ctx, definition)))
	w.Eventually(func() string {
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(definition), definition.DeepCopy()); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the kind is there: %v", err)
		}
		return ""
	})
}

// machine creates a VirtualMachine.
func (w world) machine(name string) *unstructured.Unstructured {
	w.Helper()
	vm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": map[string]any{"namespace": "default", "name": name},
	}}
	w.Eventually(func() string { // the API server may not serve the CRD yet
		if err := w.Client.Create(w.Context(), vm.DeepCopy()); err != nil {
			return err.Error()
		}
		return ""
	})
	return vm
}

// launcher returns a pod that runs a machine on a node, as KubeVirt creates it.
func launcher(machine, suffix, node string) *corev1.Pod {
	p := newPod("default", "virt-launcher-"+machine+"-"+suffix)
	p.Spec.NodeName = node
	p.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: machine, UID: "c0ffee00-0000-4000-8000-000000000000",
		Controller: new(true),
	}}
	return p
}

// The pod of a machine may have the machine's name: then both have one reconcile key.
func TestAPodWithTheNameOfItsMachineGetsAnAddress(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.start()
	runs := launcher("vm", "a", "n1")
	runs.Name = "vm"
	w.Create(runs)
	if got := w.allocated(runs).Machine; got != "vm" {
		t.Errorf("the results name machine %q", got)
	}
}

// named returns a pod with the machine's name, like the machine's port.
func named(machine string, has *corev1.Pod) *corev1.Pod {
	p := newPod("default", machine)
	p.Annotations = has.Annotations
	return p
}

// chassis waits until a machine's port requests these nodes.
func (w world) chassis(machine, nodes, activation string) {
	w.Helper()
	w.Eventually(func() string {
		port := w.portNow(newPod("default", machine))
		if port == nil {
			return "no port"
		}
		options := port["options"].(map[string]string)
		if _, bound := options["iface-id-ver"]; bound || options["requested-chassis"] != nodes || options["activation-strategy"] != activation {
			return fmt.Sprintf("port of machine %s has options %v, want chassis %s", machine, options, nodes)
		}
		return ""
	})
}

func TestAMachineKeepsItsAddress(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	w.defineMachines()
	vm := w.machine("vm-0") // a name that a StatefulSet's pod could have
	process := w.start()
	first := launcher("vm-0", "a", "n1")
	w.Create(first)
	was := w.allocated(first)
	w.chassis("vm-0", "n1", "")
	if was.Machine != "vm-0" {
		t.Errorf("the pod's annotations have %+v", was)
	}
	if ip := w.ipObject(named("vm-0", first)); ip.Spec.PodType != "VirtualMachine" || ip.Spec.PodName != "vm-0" || ip.Spec.NodeName != "n1" {
		t.Errorf("IP object has %+v", ip.Spec)
	}
	for round, restart := range []bool{false, true, false} {
		w.Delete(first)
		w.away(process, named("vm-0", first))
		if restart {
			process.Stop()
			w.losePorts()
			process = w.start()
			w.away(process, named("vm-0", first))
		}
		w.pod("default", fmt.Sprint("other-", round)) // does not get the retained address
		first = launcher("vm-0", fmt.Sprint(round), w.Nodes[(round+1)%2])
		w.Create(first)
		is := w.allocated(first)
		if joined(is.Addresses) != joined(was.Addresses) || is.MAC.String() != was.MAC.String() {
			t.Errorf("round %d: the machine has %v %s, it had %v %s", round, is.Addresses, is.MAC, was.Addresses, was.MAC)
		}
		w.chassis("vm-0", first.Spec.NodeName, "")
	}
	process.Stop()
	process = w.start() // the port belongs to the machine, not to the pod of that name
	w.chassis("vm-0", first.Spec.NodeName, "")
	if n := process.Transactions(); n != 0 {
		t.Errorf("%d transactions after a restart", n)
	}
	w.Delete(first)
	w.away(process, named("vm-0", first))
	w.Must(w.Client.Delete(w.Context(), vm))
	w.gone(process, named("vm-0", first))
}

func TestADeletedMachineLeavesNothing(t *testing.T) {
	for name, end := range map[string]func(w world, definition, vm *unstructured.Unstructured){
		"its own end":         func(w world, _, vm *unstructured.Unstructured) { w.Must(w.Client.Delete(w.Context(), vm)) },
		"the end of its kind": func(w world, definition, _ *unstructured.Unstructured) { w.undefine(w.Context(), definition) },
	} {
		for _, running := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, controller running %v", name, running), func(t *testing.T) {
				w := newWorld(t)
				w.subnet("ovn-default", "10.16.0.0/24")
				definition := w.defineMachines()
				vm := w.machine("vm")
				process := w.start()
				runs := launcher("vm", "a", "n1")
				w.Create(runs)
				w.allocated(runs)
				w.ipObject(named("vm", runs))
				if running {
					w.Delete(runs)
					w.away(process, named("vm", runs))
					end(w, definition, vm)
				} else {
					process.Stop()
					w.Delete(runs)
					end(w, definition, vm)
					process = w.start()
				}
				w.gone(process, named("vm", runs))
			})
		}
	}
}

func TestAMachineMoves(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	w.defineMachines()
	w.machine("vm")
	process := w.start()
	source, target := launcher("vm", "z", "n1"), launcher("vm", "a", "n2")
	target.Labels = map[string]string{"kubevirt.io/migrationJobUID": "u"}
	w.Create(source)
	was := w.allocated(source)
	w.Create(target)
	if is := w.allocated(target); joined(is.Addresses) != joined(was.Addresses) || is.MAC.String() != was.MAC.String() || is.Machine != "vm" {
		t.Errorf("the target has %+v, the source %+v", is, was)
	}
	w.chassis("vm", "n1,n2", "rarp")
	process.Stop()
	process = w.start()
	w.chassis("vm", "n1,n2", "rarp")

	w.Change(source, func() { source.Labels = map[string]string{"note": "over"} })
	source.Status.Phase = corev1.PodSucceeded
	w.Must(w.Client.Status().Update(w.Context(), source))
	w.chassis("vm", "n2", "")
	onTarget := func() string {
		if ip := w.ipObject(named("vm", target)); ip.Spec.NodeName != "n2" {
			return fmt.Sprintf("IP object has %+v", ip.Spec)
		}
		return ""
	}
	w.Eventually(onTarget) // KubeVirt keeps the completed source
	w.Delete(source)
	back := launcher("vm", "b", "n1")
	back.Labels = map[string]string{"kubevirt.io/migrationJobUID": "v"}
	w.Create(back)
	w.chassis("vm", "n2,n1", "rarp")
	w.Delete(back) // the migration fails
	w.chassis("vm", "n2", "")
	w.Eventually(onTarget)
	w.Delete(target)
	w.away(process, named("vm", target))
}

func TestAPodOfTheNameOfAMachineGoesFirst(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	plain := w.pod("default", "vm")
	runs := launcher("vm", "a", "n2")
	w.Create(runs)
	w.warned(runs, "port name vm.default belongs to a pod")
	w.Delete(plain)
	w.allocated(runs)
	w.chassis("vm", "n2", "")
	_ = process
}

// A pod off the pod network needs no port, so it does not take the port of the machine of its name.
func TestAPodOffTheNetworkLeavesTheMachineItsPort(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.start()
	host, pending := newPod("default", "vm"), newPod("default", "vm2")
	host.Spec.HostNetwork, pending.Spec.NodeName = true, ""
	w.Create(host, pending)
	for _, name := range []string{"vm", "vm2"} {
		runs := launcher(name, "a", "n2")
		w.Create(runs)
		w.allocated(runs)
		w.chassis(name, "n2", "")
	}
}

// The new launcher exists before the controller has seen the deletion of the old one, and has to wait.
func TestThePortOfAMachineGoesWithItsPod(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	w.defineMachines()
	w.machine("vm")
	process := w.start()
	first := launcher("vm", "a", "n1")
	w.Create(first)
	was := w.allocated(first)
	w.ipObject(named("vm", first))
	process.Stop()
	w.Delete(first)
	second := launcher("vm", "b", "n2")
	second.Annotations = map[string]string{kubeovnv1.AnnotationIPPool.Key(): "nowhere"}
	w.Create(second)
	process = w.start()
	w.warned(second, "nowhere")
	w.withoutPort(process, named("vm", first))
	w.Change(second, func() { delete(second.Annotations, kubeovnv1.AnnotationIPPool.Key()) })
	if is := w.allocated(second); joined(is.Addresses) != joined(was.Addresses) {
		t.Errorf("the machine had %s, and has %s", joined(was.Addresses), joined(is.Addresses))
	}
	w.chassis("vm", "n2", "")
}

// After a migration, the allocation of addresses avoids those of the machine on its new node.
func TestAMachineOfACustomVPCIsApartOnItsNewNode(t *testing.T) {
	w := newWorld(t)
	w.tenants("blue", "red")
	w.subnet("ovn-default", "10.16.0.0/24")
	w.subnet("blue-net", "10.17.0.0/24", of("blue"))
	w.subnet("red-net", "10.17.0.0/24", of("red"))
	w.defineMachines()
	w.machine("vm")
	w.start()
	in := map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): "blue-net"}
	source, target := launcher("vm", "z", "n1"), launcher("vm", "a", "n2")
	target.Labels = map[string]string{"kubevirt.io/migrationJobUID": "u"}
	source.Annotations, target.Annotations = in, maps.Clone(in)
	w.Create(source)
	w.allocated(source)
	w.Create(target)
	w.allocated(target)
	w.chassis("vm", "n1,n2", "rarp")
	source.Status.Phase = corev1.PodSucceeded
	w.Must(w.Client.Status().Update(w.Context(), source))
	w.chassis("vm", "n2", "")
	w.has(w.on("n2", "red-net", "r1"), "10.17.0.3")
}

func TestMachinesThatKeepNothing(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.defineMachines()
	w.machine("vm")
	process := w.Start(stepsWith(ipobject.Pace{}, func(r *pod.Reconciler) { r.KeepMachines = false }))
	runs := launcher("vm", "a", "n1")
	w.Create(runs)
	w.allocated(runs)
	if ip := w.ipObject(runs); ip.Spec.PodType != "" {
		t.Errorf("IP object has %+v", ip.Spec)
	}
	w.Delete(runs)
	w.gone(process, runs)
}
