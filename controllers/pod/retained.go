// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/leases"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// onPodGone removes the port of a pod that was deleted or needs none. It frees the addresses, unless a workload or an IP object retains
// them. waits is true if these are an IP object's reservation that cannot get its addresses yet and is on the waiting list.
func (r *Reconciler) onPodGone(ctx context.Context, key types.NamespacedName) (waits bool, err error) {
	port := leases.PortOf(key)
	ip, err := r.ipObjects.Find(ctx, port)
	if err != nil {
		return false, err
	}
	if leases.IsReservation(ip) {
		return r.reserve(ctx, key, ip)
	}
	lease, held := r.Allocator.Lookup(port)
	isNodes, err := r.isNodes(ctx, port)
	if err != nil {
		return false, err
	}
	if !held || leases.OfNode(lease) || isNodes {
		return false, r.freeLease(ctx, key, "the pod no longer needs a port")
	}
	_, away := r.retained.PodType(key)
	podType, err := r.wantedAgain(ctx, key, ip)
	if err != nil {
		return false, err
	}
	if podType == "" || away && ip == nil && r.ipObjects.Complete() { // the user has deleted the IP object, which frees the address
		return false, r.freeLease(ctx, key, notRetained)
	}
	if most := cmp.Or(r.MaxRetained, maxRetained); !away && r.retained.ForWorkloads(key.Namespace) >= most {
		r.warnOfBudget(ctx, key, most)
		return false, r.freeLease(ctx, key, "the namespace retains too many addresses of absent pods")
	}
	if err := r.ipObjects.Ensure(ctx, ipobject.Retained(ip, port, podType, lease)); err != nil {
		return false, err // keep the port: without the IP object, a new leader could not restore the lease
	}
	r.retained.Put(key, podType)
	// From now on, events of the workload find the lease in retained. An earlier event has already changed the cache, so check again.
	if podType, err = r.wantedAgain(ctx, key, ip); err != nil {
		return false, err
	}
	if podType == "" {
		return false, r.freeLease(ctx, key, notRetained)
	}
	if err := r.removePort(ctx, key); err != nil {
		return false, err
	}
	r.retain(ctx, port, lease)
	leases.LogRetained(logr.FromContextOrDiscard(ctx), port, lease, "a "+podType+" may create the pod again")
	return false, nil
}

// maxRetained is the number of addresses of absent pods up to which a namespace retains another one. No quota counts absent pods, so a tenant
// could otherwise fill a subnet by deleting pods. Pods that are deleted at the same time may exceed it by the number of workers. A retained address is never freed because
// of it.
const maxRetained = 1000

// reasonNotRetained is the reason of the event on the workload, or else the namespace, of a pod whose addresses are not retained.
const reasonNotRetained = "AddressNotRetained"

// warnOfBudget reports that the addresses of a deleted pod are freed. Its text is the same for all pods of a workload, so that they share one event.
func (r *Reconciler) warnOfBudget(ctx context.Context, key types.NamespacedName, most int) {
	var about client.Object = &corev1.Namespace{}
	owner, ordinal := leases.StatefulSetOf(key)
	set := &appsv1.StatefulSet{}
	if ordinal >= 0 && r.Client.Get(ctx, owner, set, client.UnsafeDisableDeepCopy) == nil {
		about = set
	} else if err := r.Client.Get(ctx, client.ObjectKey{Name: key.Namespace}, about, client.UnsafeDisableDeepCopy); err != nil {
		return // the namespace is deleted, too
	}
	k8s.Warn(r.Recorder, about, reasonNotRetained, fmt.Sprintf("namespace %s retains %d addresses of absent pods: further deleted pods get other addresses when they are created again. "+
		"Scale down or delete workloads whose pods cannot start", key.Namespace, most))
}

// notRetained is why the addresses of a deleted or finished pod are freed.
const notRetained = "the pod is deleted or finished, and no workload retains them"

// wantedAgain returns the kind of workload that will recreate a pod of this name, so that its addresses are retained; empty if none will.
func (r *Reconciler) wantedAgain(ctx context.Context, key types.NamespacedName, ip *kubeovnv1.IP) (string, error) {
	if r.isMachines(key, ip) {
		if !r.machines.mayExist(key) {
			return "", nil
		}
		return kubeovnv1.PodTypeVirtualMachine, nil
	}
	wanted, err := r.wantedBySet(ctx, key)
	if !wanted || err != nil {
		return "", err
	}
	return kubeovnv1.PodTypeStatefulSet, nil
}

// reserve holds the addresses that an IP object reserves while no pod of its name exists. waits is true if it cannot get them yet.
func (r *Reconciler) reserve(ctx context.Context, key types.NamespacedName, ip *kubeovnv1.IP) (waits bool, err error) {
	port := leases.PortOf(key)
	lease, held := r.Allocator.Lookup(port)
	if held && leases.OfNode(lease) {
		return false, nil // the lease belongs to a node
	}
	if err := r.removePort(ctx, key); err != nil {
		return false, err
	}
	request, err := leases.RequestOf(ip)
	if err == nil && held && len(request.Addresses) > 0 && r.Allocator.Fits(port, request) {
		return false, r.reserved(ctx, key, ip, lease)
	}
	if held { // a deleted pod of that name
		leases.Release(logr.FromContextOrDiscard(ctx), r.Allocator, port, "the IP object reserves others")
		r.retained.Forget(key)
	}
	if err != nil {
		r.wait(ctx, ip, key, &problem{message: err.Error()})
		return true, r.ipObjects.SetReady(ctx, ip, err.Error())
	}
	if lease, err = r.allocate(ctx, nil, port, request); err != nil {
		message, users := explain(request.Subnet, err)
		if !users {
			return false, fmt.Errorf("reserve addresses: %w", err)
		}
		r.wait(ctx, ip, key, &problem{message: message, subnets: []string{request.Subnet}})
		return true, r.ipObjects.SetReady(ctx, ip, message)
	}
	leases.LogGiven(logr.FromContextOrDiscard(ctx), port, lease, leases.SourceReservation)
	return false, r.reserved(ctx, key, ip, lease)
}

// reserved records that no pod has the lease of a reservation.
func (r *Reconciler) reserved(ctx context.Context, key types.NamespacedName, ip *kubeovnv1.IP, lease ipam.Lease) error {
	r.retained.Put(key, "")
	r.retain(ctx, leases.PortOf(key), lease)
	if !ipobject.IsUpToDate(ip, ipobject.Retained(ip, leases.PortOf(key), "", lease)) {
		r.ipObjects.Check(key) // also sets the condition
		return nil
	}
	return r.ipObjects.SetReady(ctx, ip, "")
}

// notReserved reports on the reservation of a waiting pod, if it has one, that the pod cannot have the addresses.
func (r *Reconciler) notReserved(ctx context.Context, key types.NamespacedName, p *problem) error {
	port := leases.PortOf(key)
	if _, held := r.Allocator.Lookup(port); held {
		return nil
	}
	ip, err := r.ipObjects.Find(ctx, port)
	if err != nil || !leases.IsReservation(ip) {
		return err
	}
	return r.ipObjects.SetReady(ctx, ip, p.Error())
}

// inherits reports whether a pod takes over the lease under its name: an IP object reserves it, or the pod belongs to a StatefulSet or a
// virtual machine and replaces the previous pod.
func (r *Reconciler) inherits(ctx context.Context, pod *corev1.Pod, port string, lease ipam.Lease) (bool, error) {
	if _, away := r.retained.PodType(r.portKey(pod)); away { // false while a virtual machine migrates: its source pod still has the lease
		if unambiguous, err := r.staysUnambiguous(ctx, pod, lease); !unambiguous || err != nil {
			return false, err
		}
	}
	ip, err := r.ipObjects.Find(ctx, port)
	if _, away := r.retained.PodType(r.portKey(pod)); err == nil && kubeovnv1.IsMirror(pod.Annotations) && (away || leases.IsReservation(ip)) {
		return false, mirrorName()
	}
	if err != nil || leases.IsReservation(ip) || r.podTypeOf(pod) == "" {
		return leases.IsReservation(ip), err
	}
	request, err := kubeovnv1.ParsePodRequest(pod.Annotations)
	if err != nil {
		return false, &problem{message: err.Error()}
	}
	wants, err := r.requestsOf(ctx, pod, request)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(wants, func(want ipam.Request) bool { return want.Subnet == lease.Subnet && r.Allocator.Fits(port, want) }), nil
}

// restoreRetained restores the leases that IP objects retain, for absent pods or for no pod. It enqueues their keys; once the gate is open,
// their passes free the leases that need not be retained.
func (r *Reconciler) restoreRetained(ctx context.Context, live client.Reader) error {
	reader := live
	if r.ipObjects.Cached() {
		reader = r.Client
	}
	var ips kubeovnv1.IPList
	if err := reader.List(ctx, &ips, leases.ThatRetain()); err != nil {
		return fmt.Errorf("list IPs that keep addresses: %w", err)
	}
	found := make(map[string]*kubeovnv1.IP, len(ips.Items))
	for i := range ips.Items {
		ip := &ips.Items[i]
		if ip.Spec.Subnet == kubeovnv1.JoinSubnet || ip.DeletionTimestamp != nil {
			continue
		}
		found[ip.Name] = ip
		r.restoreOne(ctx, ip)
		r.pending.AddKey(leases.KeyOf(ip.Name))
	}
	r.ipObjects.SetEarly(found)
	return nil
}

func (r *Reconciler) restoreOne(ctx context.Context, ip *kubeovnv1.IP) {
	key := leases.KeyOf(ip.Name)
	request, err := leases.RequestOf(ip)
	_, held := r.Allocator.Lookup(ip.Name)
	if err != nil || len(request.Addresses) == 0 {
		return
	}
	if !held {
		lease := ipam.Lease{Subnet: request.Subnet, Addresses: request.Addresses, MAC: request.MAC}
		if err := r.Allocator.Restore(ip.Name, lease); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "cannot restore a lease", "port", ip.Name, "from", "IP object")
			return
		}
		leases.LogGiven(ctrl.LoggerFrom(ctx), ip.Name, lease, leases.SourceRestored)
	}
	if pod, err := r.podAt(ctx, key); err == nil && pod == nil {
		r.retained.Put(key, ip.Spec.PodType)
		lease, _ := r.Allocator.Lookup(ip.Name)
		r.retain(ctx, ip.Name, lease)
	}
}

// removePort removes the port of a pod. It does not free the lease.
func (r *Reconciler) removePort(ctx context.Context, key types.NamespacedName) error {
	if err := r.Northbound.Apply(ctx, translate.PodOwner(key.Namespace, key.Name), nil); err != nil {
		return fmt.Errorf("remove port: %w", err)
	}
	r.podWrites.forget(key)
	r.ipObjects.Drop(key)
	r.vpcPods.drop(leases.PortOf(key))
	return nil
}
