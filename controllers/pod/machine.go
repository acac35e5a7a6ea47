// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// indexMachine finds the pods that run a virtual machine by its name.
const indexMachine = "pod.machine"

// labelMigration is on the pod that a machine moves to (KubeVirt, MigrationJobLabel).
const labelMigration = "kubevirt.io/migrationJobUID"

// machineOf is the virtual machine that a pod runs, whose name its port has; empty for other pods. While a machine moves, two pods run it.
func (r *Reconciler) machineOf(pod *corev1.Pod) string {
	if !r.KeepMachines {
		return ""
	}
	return kubeovnv1.MachineOf(pod)
}

// portKey is the key under which a pod's port is worked on.
func (r *Reconciler) portKey(pod *corev1.Pod) types.NamespacedName {
	if machine := r.machineOf(pod); machine != "" {
		return types.NamespacedName{Namespace: pod.Namespace, Name: machine}
	}
	return client.ObjectKeyFromObject(pod)
}

func (r *Reconciler) indexMachines(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, indexMachine, func(o client.Object) []string {
		if machine := r.machineOf(o.(*corev1.Pod)); machine != "" {
			return []string{machine}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index pods by virtual machine: %w", err)
	}
	return nil
}

// machineSeen takes note of there being machines: without any, no pod is looked for by its machine.
func (r *Reconciler) machineSeen(pod *corev1.Pod) {
	if !r.machines.seen.Load() && r.machineOf(pod) != "" {
		r.machines.seen.Store(true)
	}
}

// machinePodGone has the machine of a pod that is gone looked at.
func (r *Reconciler) machinePodGone(pod *corev1.Pod, q queue) {
	if r.machineOf(pod) != "" {
		r.ledger.forget(client.ObjectKeyFromObject(pod))
		q.Add(ctrl.Request{NamespacedName: r.portKey(pod)})
	}
}

// machine says what to do about a key when there are machines. What is of a machine's pod is done under the machine's key; a pod of its own by
// that name goes first. Under the key of a machine it returns the pod that runs it, and those that it moves to.
func (r *Reconciler) machine(ctx context.Context, key types.NamespacedName, pod *corev1.Pod) (runs *corev1.Pod, others []*corev1.Pod, done bool, err error) {
	switch {
	case pod != nil && r.machineOf(pod) == "":
		return pod, nil, false, nil
	case pod != nil:
		if !onPodNetwork(pod) {
			r.leaveSets(key, pod)
		}
		namesake := &corev1.Pod{}
		if r.Client.Get(ctx, r.portKey(pod), namesake, client.UnsafeDisableDeepCopy) == nil && r.machineOf(namesake) == "" && onPodNetwork(namesake) {
			k8s.Warn(r.Recorder, pod, reasonNoAddress, fmt.Sprintf("port name %s is that of a pod: delete it, or choose another name for the machine",
				portOf(r.portKey(pod))))
		}
		r.waiting.Add(ctrl.Request{NamespacedName: r.portKey(pod)})
		return nil, nil, true, nil
	}
	pods, err := r.runners(ctx, key)
	if len(pods) == 0 || err != nil {
		return nil, nil, false, err
	}
	return pods[0], pods[1:], false, nil
}

// runners are the pods on the pod network that run a machine: first the one that it runs in, then those that it moves to.
func (r *Reconciler) runners(ctx context.Context, machine types.NamespacedName) ([]*corev1.Pod, error) {
	var list corev1.PodList
	in, of := client.InNamespace(machine.Namespace), client.MatchingFields{indexMachine: machine.Name}
	if err := r.Client.List(ctx, &list, in, of, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the pods of virtual machine %s: %w", machine, err)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		if pod := r.ledger.newest(&list.Items[i]); onPodNetwork(pod) && (pod.DeletionTimestamp == nil || kubeovnv1.IsPublished(pod)) {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return strings.Compare(a.Labels[labelMigration], b.Labels[labelMigration])
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return pods, nil
}

// podAt is the pod on the pod network that the port under a key is of, nil when there is none.
func (r *Reconciler) podAt(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := r.Client.Get(ctx, key, pod, client.UnsafeDisableDeepCopy)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("get pod %s: %w", key, err)
	case err == nil && r.machineOf(pod) == "" && onPodNetwork(pod):
		return pod, nil
	case err == nil && r.machineOf(pod) == "" || !r.KeepMachines:
		return nil, nil
	}
	pods, err := r.runners(ctx, key)
	if len(pods) == 0 || err != nil {
		return nil, err
	}
	return pods[0], nil
}

// isMachines reports whether a lease is a machine's: what is known of it says so, or its port, which no pod's UID is on.
func (r *Reconciler) isMachines(key types.NamespacedName, ip *kubeovnv1.IP) bool {
	if !r.KeepMachines {
		return false
	}
	if podType, kept := r.kept.podType(key); kept {
		return podType == kubeovnv1.PodTypeVirtualMachine
	}
	if row := northbound.Get[nb.LogicalSwitchPort](r.Northbound, translate.PodPortRef(key.Namespace, key.Name)); row != nil {
		lease, ok := translate.ReadPortLease(row)
		return ok && lease.UID == ""
	}
	return ip != nil && ip.Spec.PodType == kubeovnv1.PodTypeVirtualMachine
}
