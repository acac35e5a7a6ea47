// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/podset"
)

// indexMachine finds the pods that run a virtual machine by the machine's name.
const indexMachine = "pod.machine"

// subject has the inputs of a pass: a port, and the pods that have it.
type subject struct {
	port kubeovnv1.Port
	// pod is nil if it does not exist. Then the port may have an allocation that is retained.
	pod *corev1.Pod
	// machine is the virtual machine that the pod runs, or "". The port has the machine's name.
	machine string
	// others are the targets of the machine's migrations.
	others []*corev1.Pod
	// published: the pod's annotations have the result of its allocation.
	published bool
	// asks is nil unless the pod is on the pod network.
	asks *asks
}

// asks is what the pod of a subject is and asks for, read once per pass. Invalid requests are left out.
type asks struct {
	address.Claim
	secure             bool     // its port drops packets from addresses other than its own
	forwards           bool     // its port gets the frames to unknown MAC addresses
	groups, keptGroups []string // security groups that it names, and that it is in according to its results
	limits             kubeovnv1.LimitRequest
	dhcp               map[ipfamily.Family]map[string]string
	invalidDHCP        error
}

func (r *Reconciler) asksOf(s *subject) *asks {
	a := &asks{
		Claim:  address.ClaimOf(s.port, s.pod, r.keeper.PodType(s.pod)),
		secure: kubeovnv1.IsTrue(s.pod.Annotations, kubeovnv1.AnnotationPortSecurity), forwards: kubeovnv1.IsTrue(s.pod.Annotations, kubeovnv1.AnnotationLayer2Forward),
		groups: kubeovnv1.ParseSecurityGroups(s.pod.Annotations), keptGroups: kubeovnv1.KeptSecurityGroups(s.pod),
		limits: kubeovnv1.ParseLimits(s.pod.Annotations, s.port.Provider),
	}
	a.dhcp, a.invalidDHCP = readDHCP(s.pod.Annotations)
	return a
}

// machineOf returns the virtual machine that a pod runs; empty for other pods. During a migration two pods run the machine.
func (r *Reconciler) machineOf(pod *corev1.Pod) string {
	if !r.KeepMachines {
		return ""
	}
	return kubeovnv1.MachineOf(pod)
}

// subject returns the subject with a pod.
func (r *Reconciler) subject(pod *corev1.Pod, others ...*corev1.Pod) *subject {
	machine := r.machineOf(pod)
	return &subject{
		port: kubeovnv1.NewPort(pod.Namespace, cmp.Or(machine, pod.Name), kubeovnv1.ProviderOVN), pod: pod, machine: machine, others: others,
		published: kubeovnv1.IsPublished(pod),
	}
}

// subjectOf returns the subject of a reconcile key. A machine's pods are reconciled under the machine's key, and a port without a pod's name under
// that of its pod, if there is one: subjectOf enqueues that key for another one, and returns done. A pod that runs no machine has precedence over a machine of the same name.
func (r *Reconciler) subjectOf(ctx context.Context, key types.NamespacedName) (s *subject, done bool, err error) {
	if key.Namespace == "" { // of a reservation
		return &subject{port: kubeovnv1.Port{Provider: kubeovnv1.ProviderOVN, Name: key.Name}}, r.redirectToOwner(key.Name), nil
	}
	s = &subject{port: kubeovnv1.NewPort(key.Namespace, key.Name, kubeovnv1.ProviderOVN)}
	pod, err := r.get(ctx, key)
	if err != nil {
		return nil, false, fmt.Errorf("get pod: %w", err)
	}
	if pod != nil {
		s = r.subject(pod)
	}
	if r.machineSeen.Load() && (pod == nil || s.machine != "" || !allocations.OnPodNetwork(pod)) {
		if s.machine != "" && s.port.Owner != key.Name {
			r.redirect(ctx, s)
			return nil, true, nil
		}
		pods, err := r.runners(ctx, key)
		if err != nil {
			return nil, false, err
		}
		if len(pods) > 0 {
			if pod != nil {
				r.leaveSets(podset.KeyOf(pod, s.port.Provider), pod)
			}
			s = r.subject(pods[0], pods[1:]...)
		}
	}
	if s.pod != nil && allocations.OnPodNetwork(s.pod) {
		s.asks = r.asksOf(s)
		r.ports.own(s, r.keeper.Retained(s.port.Name))
	}
	return s, false, nil
}

// redirectToOwner enqueues the owner of a port, if it has one.
func (r *Reconciler) redirectToOwner(port string) bool {
	h, known := r.ports.named(port)
	if known {
		r.pending.AddKey(h.Key())
	}
	return known
}

// redirect enqueues the virtual machine that a pod runs.
func (r *Reconciler) redirect(ctx context.Context, s *subject) {
	if !allocations.OnPodNetwork(s.pod) {
		r.leaveSets(podset.KeyOf(s.pod, s.port.Provider), s.pod)
	}
	namesake, err := r.get(ctx, s.port.Key())
	if err == nil && namesake != nil && r.machineOf(namesake) == "" && allocations.OnPodNetwork(namesake) {
		k8s.Warn(r.Recorder, s.pod, reasonNoAddress, fmt.Sprintf("port name %s belongs to a pod: delete the pod, or choose another name for the machine", s.port.Name))
	}
	r.pending.AddKey(s.port.Key())
}

// get returns the newest known state of a pod, nil if it does not exist. The caller must not change it.
func (r *Reconciler) get(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := r.Client.Get(ctx, key, pod, client.UnsafeDisableDeepCopy); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return r.podWrites.newest(pod), nil
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

// seen records that a pod exists, and whether it runs a virtual machine: before the first such pod, passes skip the lookup by machine.
func (r *Reconciler) seen(pod *corev1.Pod) {
	s := r.subject(pod)
	if s.machine != "" {
		r.machineSeen.Store(true)
	}
	if allocations.OnPodNetwork(pod) {
		r.ports.own(s, r.keeper.Retained(s.port.Name))
	}
}

// machinePodGone requeues the virtual machine of a deleted pod. Its IP object may name the pod's node.
func (r *Reconciler) machinePodGone(pod *corev1.Pod, q k8s.Queue) {
	if s := r.subject(pod); s.machine != "" {
		r.podWrites.forget(client.ObjectKeyFromObject(pod))
		q.Add(ctrl.Request{NamespacedName: s.port.Key()})
		r.ipObjects.Check(s.port.Name)
	}
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
		if pod := r.podWrites.newest(&list.Items[i]); allocations.OnPodNetwork(pod) && (pod.DeletionTimestamp == nil || kubeovnv1.IsPublished(pod)) {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, allocations.CompareRunners)
	return pods, nil
}

// podAt returns the pod on the pod network that has a port, nil if there is none.
func (r *Reconciler) podAt(ctx context.Context, port kubeovnv1.Port) (*corev1.Pod, error) {
	if port.Owner == "" {
		return nil, nil
	}
	pod, err := k8s.Find[corev1.Pod](ctx, r.Client, port.Key(), client.UnsafeDisableDeepCopy)
	switch {
	case err != nil:
		return nil, fmt.Errorf("get pod %s: %w", port.Key(), err)
	case pod != nil && r.machineOf(pod) == "" && allocations.OnPodNetwork(pod):
		return pod, nil
	case !r.KeepMachines:
		return nil, nil
	}
	pods, err := r.runners(ctx, port.Key())
	if len(pods) == 0 || err != nil {
		return nil, err
	}
	return pods[0], nil
}

// existsLive reports whether the API server has a pod that is missing in the cache. It looks up only pods that noteCacheMisses has recorded.
func (r *Reconciler) existsLive(ctx context.Context, key types.NamespacedName) (bool, error) {
	if _, missing := r.cacheMisses.Load(key); !missing {
		return false, nil
	}
	_, err := r.pods.Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		r.cacheMisses.Delete(key)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask the API server for the pod: %w", err)
	}
	return true, nil
}
