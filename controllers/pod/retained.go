// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// retainedLeases are the leases that no pod has: leases of absent pods whose workload will recreate them by name, and reservations
// by users. Outside this process only their IP objects record them.
type retainedLeases struct {
	mu      sync.Mutex
	leases  map[types.NamespacedName]string // values of IPSpec.PodType, empty for a user's reservation
	byOwner map[types.NamespacedName]map[types.NamespacedName]struct{}
}

func (k *retainedLeases) put(key types.NamespacedName, podType string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(key)
	if k.leases == nil {
		k.leases, k.byOwner = map[types.NamespacedName]string{}, map[types.NamespacedName]map[types.NamespacedName]struct{}{}
	}
	k.leases[key] = podType
	owner, _ := statefulSetOf(key)
	if k.byOwner[owner] == nil {
		k.byOwner[owner] = map[types.NamespacedName]struct{}{}
	}
	k.byOwner[owner][key] = struct{}{}
}

// podType returns the workload kind for which a lease is retained; false if the lease is not retained.
func (k *retainedLeases) podType(key types.NamespacedName) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	podType, ok := k.leases[key]
	return podType, ok
}

func (k *retainedLeases) forget(key types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(key)
}

func (k *retainedLeases) drop(key types.NamespacedName) {
	owner, _ := statefulSetOf(key)
	delete(k.leases, key)
	delete(k.byOwner[owner], key)
	if len(k.byOwner[owner]) == 0 {
		delete(k.byOwner, owner)
	}
}

// ofType lists the retained leases of a workload kind.
func (k *retainedLeases) ofType(podType string) []types.NamespacedName {
	k.mu.Lock()
	defer k.mu.Unlock()
	var keys []types.NamespacedName
	for key, t := range k.leases {
		if t == podType {
			keys = append(keys, key)
		}
	}
	return keys
}

// of lists the absent pods of an owner.
func (k *retainedLeases) of(owner types.NamespacedName) []types.NamespacedName {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := make([]types.NamespacedName, 0, len(k.byOwner[owner]))
	for key := range k.byOwner[owner] {
		keys = append(keys, key)
	}
	return keys
}

// onPodGone removes the port of a pod that was deleted or needs none. It frees the addresses, unless a workload or an IP object retains
// them. waits is true if these are an IP object's reservation that cannot get its addresses yet and is on the waiting list.
func (r *Reconciler) onPodGone(ctx context.Context, key types.NamespacedName) (waits bool, err error) {
	port := portOf(key)
	ip, err := r.ipObjects.find(ctx, port)
	if err != nil {
		return false, err
	}
	if isReservation(ip) {
		return r.reserve(ctx, key, ip)
	}
	lease, held := r.Allocator.Lookup(port)
	isNodes, err := r.isNodes(ctx, port)
	if err != nil {
		return false, err
	}
	if !held || ofNode(lease) || isNodes {
		return false, r.freeLease(ctx, key)
	}
	_, away := r.retained.podType(key)
	podType, err := r.wantedAgain(ctx, key, ip)
	if err != nil {
		return false, err
	}
	if podType == "" || away && ip == nil && r.ipObjects.complete.Load() { // the user has deleted the IP object, which frees the address
		return false, r.freeLease(ctx, key)
	}
	if err := r.ipObjects.ensure(ctx, retainedIPOf(ip, port, podType, lease)); err != nil {
		return false, err // keep the port: without the IP object, a new leader could not restore the lease
	}
	r.retained.put(key, podType)
	// From now on, events of the workload find the lease in retained. An earlier event has already changed the cache, so check again.
	if podType, err = r.wantedAgain(ctx, key, ip); err != nil {
		return false, err
	}
	if podType == "" {
		return false, r.freeLease(ctx, key)
	}
	if err := r.removePort(ctx, key); err != nil {
		return false, err
	}
	r.retain(ctx, port, lease)
	return false, nil
}

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
	port := portOf(key)
	lease, held := r.Allocator.Lookup(port)
	if held && ofNode(lease) {
		return false, nil // the lease belongs to a node
	}
	if err := r.removePort(ctx, key); err != nil {
		return false, err
	}
	request, p := reservedBy(ip)
	if p == nil && held && len(request.Addresses) > 0 && r.Allocator.Fits(port, request) {
		r.reserved(ctx, key, ip, lease)
		return false, nil
	}
	if held { // a deleted pod of that name
		r.Allocator.Release(port)
		r.retained.forget(key)
	}
	if p == nil {
		var err error
		if lease, err = r.allocate(ctx, nil, port, request); err != nil {
			message, users := explain(request.Subnet, err)
			if !users {
				return false, fmt.Errorf("reserve addresses: %w", err)
			}
			p = &problem{message: message, subnets: []string{request.Subnet}}
		}
	}
	if p != nil {
		r.wait(ip, key, p)
		return true, nil
	}
	r.reserved(ctx, key, ip, lease)
	return false, nil
}

func (r *Reconciler) reserved(ctx context.Context, key types.NamespacedName, ip *kubeovnv1.IP, lease ipam.Lease) {
	r.retained.put(key, "")
	r.retain(ctx, portOf(key), lease)
	if !isUpToDate(ip, retainedIPOf(ip, portOf(key), "", lease)) {
		r.ipQueue.Add(ctrl.Request{NamespacedName: key})
	}
}

// inherits reports whether a pod takes over the lease under its name: an IP object reserves it, or the pod belongs to a StatefulSet or a
// virtual machine and replaces the previous pod.
func (r *Reconciler) inherits(ctx context.Context, pod *corev1.Pod, port string, lease ipam.Lease) (bool, error) {
	if _, away := r.retained.podType(r.portKey(pod)); away { // false while a virtual machine migrates: its source pod still has the lease
		if unambiguous, err := r.staysUnambiguous(ctx, pod, lease); !unambiguous || err != nil {
			return false, err
		}
	}
	ip, err := r.ipObjects.find(ctx, port)
	if err != nil || isReservation(ip) || r.podTypeOf(pod) == "" {
		return isReservation(ip), err
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
	if r.ipObjects.cached.Load() {
		reader = r.Client
	}
	var ips kubeovnv1.IPList
	if err := reader.List(ctx, &ips, thatRetain()); err != nil {
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
		r.pending.Add(ctrl.Request{NamespacedName: keyOf(ip.Name)})
	}
	r.ipObjects.early = found
	return nil
}

func (r *Reconciler) restoreOne(ctx context.Context, ip *kubeovnv1.IP) {
	key := keyOf(ip.Name)
	request, p := reservedBy(ip)
	_, held := r.Allocator.Lookup(ip.Name)
	if p != nil || len(request.Addresses) == 0 {
		return
	}
	if !held {
		lease := ipam.Lease{Subnet: request.Subnet, Addresses: request.Addresses, MAC: request.MAC}
		if err := r.Allocator.Restore(ip.Name, lease); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "cannot restore a lease", "port", ip.Name, "from", "IP object")
			return
		}
	}
	if pod, err := r.podAt(ctx, key); err == nil && pod == nil {
		r.retained.put(key, ip.Spec.PodType)
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
	r.ipQueue.drop(key)
	r.vpcPods.drop(portOf(key))
	return nil
}
