// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/leases"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// indexMachine finds the pods that run a virtual machine by the machine's name.
const indexMachine = "pod.machine"

// labelMigration is on the target pod of a migration (KubeVirt, MigrationJobLabel).
const labelMigration = "kubevirt.io/migrationJobUID"

// machineOf returns the virtual machine that a pod runs; empty for other pods. The port has the machine's name. During a migration two
// pods run the machine.
func (r *Reconciler) machineOf(pod *corev1.Pod) string {
	if !r.KeepMachines {
		return ""
	}
	return kubeovnv1.MachineOf(pod)
}

// portKey returns the reconcile key of a pod's port.
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

// machineSeen records that a pod runs a virtual machine. Before the first such pod, reconciles skip the lookup by machine.
func (r *Reconciler) machineSeen(pod *corev1.Pod) {
	if !r.machines.seen.Load() && r.machineOf(pod) != "" {
		r.machines.seen.Store(true)
	}
}

// machinePodGone requeues the virtual machine of a deleted pod.
func (r *Reconciler) machinePodGone(pod *corev1.Pod, q k8s.Queue) {
	if r.machineOf(pod) != "" {
		r.podWrites.forget(client.ObjectKeyFromObject(pod))
		q.Add(ctrl.Request{NamespacedName: r.portKey(pod)})
	}
}

// machine resolves a reconcile key if there are virtual machines. A machine's pods are reconciled under the machine's key, so machine
// enqueues that key for the key of such a pod, and returns done. Under the machine's key it returns the pod that runs the machine, and
// the targets of migrations. A pod of the same name on the pod network that runs no machine has precedence.
func (r *Reconciler) machine(ctx context.Context, key types.NamespacedName, pod *corev1.Pod) (runs *corev1.Pod, others []*corev1.Pod, done bool, err error) {
	switch {
	case pod != nil && r.machineOf(pod) == "":
		if onPodNetwork(pod) {
			return pod, nil, false, nil
		}
	case pod != nil:
		if !onPodNetwork(pod) {
			r.leaveSets(key, pod)
		}
		namesake := &corev1.Pod{}
		if r.Client.Get(ctx, r.portKey(pod), namesake, client.UnsafeDisableDeepCopy) == nil && r.machineOf(namesake) == "" && onPodNetwork(namesake) {
			k8s.Warn(r.Recorder, pod, reasonNoAddress, fmt.Sprintf("port name %s belongs to a pod: delete the pod, or choose another name for the machine",
				leases.PortOf(r.portKey(pod))))
		}
		r.pending.AddKey(r.portKey(pod))
		return nil, nil, true, nil
	}
	pods, err := r.runners(ctx, key)
	if len(pods) == 0 || err != nil {
		return pod, nil, false, err
	}
	if pod != nil {
		r.leaveSets(key, pod)
	}
	return pods[0], pods[1:], false, nil
}

// runners returns the pods on the pod network that run a machine: the current one first, then the targets of migrations.
func (r *Reconciler) runners(ctx context.Context, machine types.NamespacedName) ([]*corev1.Pod, error) {
	var list corev1.PodList
	in, of := client.InNamespace(machine.Namespace), client.MatchingFields{indexMachine: machine.Name}
	if err := r.Client.List(ctx, &list, in, of, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the pods of virtual machine %s: %w", machine, err)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		if pod := r.podWrites.newest(&list.Items[i]); onPodNetwork(pod) && (pod.DeletionTimestamp == nil || kubeovnv1.IsPublished(pod)) {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, compareRunners)
	return pods, nil
}

// compareRunners orders the pods of a machine by age. Of pods of the same second, the target of a migration is last, which has a label; names
// decide between others, so that each pass has the same order.
func compareRunners(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Labels[labelMigration], b.Labels[labelMigration]),
		cmp.Compare(a.Name, b.Name))
}

// podAt returns the pod on the pod network that has the port under a key, nil if there is none.
func (r *Reconciler) podAt(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	pod, err := k8s.Find[corev1.Pod](ctx, r.Client, key, client.UnsafeDisableDeepCopy)
	switch {
	case err != nil:
		return nil, fmt.Errorf("get pod %s: %w", key, err)
	case pod != nil && r.machineOf(pod) == "" && onPodNetwork(pod):
		return pod, nil
	case !r.KeepMachines:
		return nil, nil
	}
	pods, err := r.runners(ctx, key)
	if len(pods) == 0 || err != nil {
		return nil, err
	}
	return pods[0], nil
}

// isMachines reports whether a lease belongs to a virtual machine. The retained lease decides; else the port, which has no pod UID if it
// is a machine's; else the IP object.
func (r *Reconciler) isMachines(key types.NamespacedName, ip *kubeovnv1.IP) bool {
	if !r.KeepMachines {
		return false
	}
	if podType, isRetained := r.retained.PodType(key); isRetained {
		return podType == kubeovnv1.PodTypeVirtualMachine
	}
	if row := northbound.Get[nb.LogicalSwitchPort](r.Northbound, translate.PodPortRef(key.Namespace, key.Name)); row != nil {
		lease, ok := translate.ReadPortLease(row)
		return ok && lease.UID == ""
	}
	return ip != nil && ip.Spec.PodType == kubeovnv1.PodTypeVirtualMachine
}
