// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// recorder keeps one IP object per pod with a lease. It is asynchronous: no pod waits for its IP object.
type recorder struct {
	client     client.Client
	northbound k8s.Northbound
	allocator  *ipam.Allocator
	writes     ipWrites
	retained   *retainedLeases
	// early are the IP objects that retain addresses, by name, as listed at the start. They are used until all IP objects are in the
	// cache.
	early map[string]*kubeovnv1.IP
	// cached is true once the cache has all IP objects.
	cached atomic.Bool
	// complete is true once lookups of IP objects can use the cache.
	complete atomic.Bool
	// podAt returns the pod on the pod network that has a port, nil if there is none; typeOf the kind of workload that retains its
	// addresses.
	podAt  func(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error)
	typeOf func(pod *corev1.Pod) string
	// hold queues an IP object for creation at the pace of RecordPace.
	hold func(pod types.NamespacedName)
	// decide requeues a pod, or a reservation, in the controller of pods, which decides about the lease.
	decide func(ctrl.Request)
	// warn emits a warning event on an IP object.
	warn func(ip *kubeovnv1.IP, message string)
	// done is called after each pass.
	done func(pod types.NamespacedName)
}

// recordWorkers is the number of concurrent reconciles of IP objects, deletions and repairs included.
const recordWorkers = 16

// setupRecords adds the controller of IP objects. It writes no rows, so Gate.WaitWritten does not wait for it.
func (r *Reconciler) setupRecords(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("ip").
		WatchesRawSource(r.Gate.After(source.Kind[client.Object](mgr.GetCache(), &kubeovnv1.IP{}, r.recorder.onIP()))).
		WatchesRawSource(r.Gate.After(r.recorder.synced(mgr.GetCache()))).
		WatchesRawSource(&r.records).
		WatchesRawSource(r.Gate.After(k8s.Orphans(mgr.GetCache(), r.Gate, &kubeovnv1.IP{}, r.recorder.staleObjects))).
		WithOptions(k8s.Workers(recordWorkers)).
		Complete(r.Gate.Reconciler(r.recorder))
	if err != nil {
		return fmt.Errorf("add the controller of IPs: %w", err)
	}
	return nil
}

// synced sets cached once the cache has all IP objects. On a standby that is before it leads.
func (r *recorder) synced(informers cache.Informers) source.Source {
	return source.Func(func(ctx context.Context, _ queue) error {
		if _, err := informers.GetInformer(ctx, &kubeovnv1.IP{}); err != nil {
			return fmt.Errorf("wait for IPs: %w", err)
		}
		r.cached.Store(true)
		return nil
	})
}

// onIP enqueues pods whose IP object differs from their lease: others have changed it, or the pod was deleted.
func (r *recorder) onIP() handler.EventHandler {
	check := func(ctx context.Context, ip *kubeovnv1.IP, q queue) {
		r.writes.newest(ip.Name, ip)
		if key, ok := r.isStale(ctx, ip); ok {
			q.Add(ctrl.Request{NamespacedName: key})
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			// staleObjects checks all cached IP objects once the allocator has the leases, and sets complete before it reads them. This source
			// starts at about the same time, so its initial list may contain an IP object that staleObjects has not seen.
			if !e.IsInInitialList || r.complete.Load() {
				check(ctx, e.Object.(*kubeovnv1.IP), q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { check(ctx, e.ObjectNew.(*kubeovnv1.IP), q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			r.writes.forget(e.Object.GetName())
			ip := e.Object.(*kubeovnv1.IP)
			key := ctrl.Request{NamespacedName: keyOf(ip.Name)}
			if _, kept := r.retained.podType(key.NamespacedName); kept || isReservation(ip) {
				r.decide(key)
			}
			if r.holds(key.NamespacedName) {
				q.Add(key)
			}
		},
	}
}

// staleObjects lists the pods whose IP objects differ from their leases, and queues missing IP objects. From then on isRecorded checks pods one
// by one.
func (r *recorder) staleObjects(ctx context.Context) ([]types.NamespacedName, error) {
	for name := range r.early { // IP objects deleted since then cause no event
		r.decide(ctrl.Request{NamespacedName: keyOf(name)})
	}
	r.complete.Store(true)
	var ips kubeovnv1.IPList
	if err := r.client.List(ctx, &ips, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list IPs: %w", err)
	}
	r.holdMissing(ctx)
	var pods []types.NamespacedName
	for i := range ips.Items {
		if key, ok := r.isStale(ctx, &ips.Items[i]); ok {
			pods = append(pods, key)
		}
	}
	return pods, nil
}

// holdMissing queues the IP objects of pods that have a port and a lease, but no IP object.
func (r *recorder) holdMissing(ctx context.Context) {
	for _, owner := range r.northbound.Owners(translate.KindPod) {
		pod := types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}
		if !r.holds(pod) {
			continue
		}
		if ip, _, err := r.newest(ctx, translate.PodPort(pod.Namespace, pod.Name)); err == nil && ip == nil {
			r.hold(pod)
		}
	}
}

// holds reports whether a pod, or a reservation, has a lease.
func (r *recorder) holds(key types.NamespacedName) bool {
	lease, held := r.allocator.Lookup(portOf(key))
	return held && !ofNode(lease)
}

// isStale returns the key of an IP object, and reports whether the object needs a change or a deletion.
func (r *recorder) isStale(ctx context.Context, ip *kubeovnv1.IP) (types.NamespacedName, bool) {
	key := keyOf(ip.Name)
	if _, ofPod := podOfIP(ip); !ofPod && !isReservation(ip) {
		return key, false // of a node, or of no pod
	}
	return key, !r.isRecord(ctx, ip, key)
}

// isRecord reports whether an IP object is up to date with its lease.
func (r *recorder) isRecord(ctx context.Context, ip *kubeovnv1.IP, key types.NamespacedName) bool {
	lease, held := r.allocator.Lookup(ip.Name)
	if !held || ofNode(lease) {
		return false
	}
	want, err := r.wanted(ctx, key, ip, lease)
	return err == nil && want != nil && says(ip, want)
}

// wanted returns the wanted IP object of a lease, nil if the controller of pods has yet to decide about the lease.
func (r *recorder) wanted(ctx context.Context, key types.NamespacedName, have *kubeovnv1.IP, lease ipam.Lease) (*kubeovnv1.IP, error) {
	podType, kept := r.retained.podType(key) // a pod of this name may exist, and wait
	if !kept {
		pod, err := r.podAt(ctx, key)
		if pod == nil || err != nil {
			return nil, err
		}
		return ipOf(pod, key, r.typeOf(pod), lease), nil
	}
	if podType == "" && !isReservation(have) {
		return nil, nil
	}
	return retainedIPOf(have, portOf(key), podType, lease), nil
}

// isRecorded reports whether the newest known IP object of a pod is up to date with its lease. Until all IP objects are in the cache it
// returns true: no pod waits for that, and staleObjects finds the differences later.
func (r *recorder) isRecorded(ctx context.Context, a *attachment) bool {
	if !r.complete.Load() {
		return true
	}
	want := ipOf(a.pod, a.key, r.typeOf(a.pod), a.lease)
	have, _, err := r.newest(ctx, want.Name)
	return err == nil && have != nil && says(have, want)
}

// find works before all IP objects are in the cache: until then it returns only IP objects that retain addresses. After that it equals
// newest.
func (r *recorder) find(ctx context.Context, port string) (*kubeovnv1.IP, error) {
	if !r.complete.Load() {
		return r.early[port], nil
	}
	ip, _, err := r.newest(ctx, port)
	return ip, err
}

// newest returns the newest known state of an IP object, nil if there is none, and how long this overrides the cache. The caller must not
// change it.
func (r *recorder) newest(ctx context.Context, name string) (*kubeovnv1.IP, time.Duration, error) {
	ip := &kubeovnv1.IP{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: name}, ip, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return nil, 0, fmt.Errorf("get IP %s: %w", name, err)
		}
		ip = nil
	}
	newest, believed := r.writes.newest(name, ip)
	return newest, believed, nil
}

// Reconcile brings the IP object of one pod, or of a reservation, up to date with its lease.
func (r *recorder) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	defer r.done(req.NamespacedName)
	port := portOf(req.NamespacedName)
	have, believed, err := r.newest(ctx, port)
	if err != nil {
		return ctrl.Result{}, err
	}
	lease, held := r.allocator.Lookup(port)
	switch {
	case (!held || ofNode(lease)) && isReservation(have):
		r.decide(req)
		return ctrl.Result{}, nil
	case !held || ofNode(lease):
		return ctrl.Result{}, r.remove(ctx, have, req.NamespacedName)
	}
	want, err := r.wanted(ctx, req.NamespacedName, have, lease)
	switch {
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("get pod: %w", err)
	case want == nil:
		if have != nil {
			r.decide(req)
		}
		return ctrl.Result{}, nil
	case have == nil && want.Spec.NodeName == "":
		return ctrl.Result{}, nil // the user has deleted it, and the controller of pods is about to release the lease
	}
	return ctrl.Result{RequeueAfter: believed}, r.write(ctx, have, want)
}

// ensure writes an IP object, unless it is up to date.
func (r *recorder) ensure(ctx context.Context, want *kubeovnv1.IP) error {
	have, _, err := r.newest(ctx, want.Name)
	if err != nil {
		return err
	}
	return r.write(ctx, have, want)
}

// write changes an IP object, nil for none, into the wanted one. A change of immutable fields needs a deletion and a creation; for a
// user's reservation write warns instead.
func (r *recorder) write(ctx context.Context, have, want *kubeovnv1.IP) error {
	switch {
	case have == nil:
		return r.create(ctx, want)
	case says(have, want):
		return nil
	case canBecome(have, want):
		return r.change(ctx, have, want)
	case isReservation(have):
		r.warn(have, fmt.Sprintf("the pod has %s of subnet %s already: delete the pod for this to count", want.Spec.IPAddress, want.Spec.Subnet))
		return nil
	}
	if err := r.delete(ctx, have); err != nil {
		return err
	}
	return r.create(ctx, want)
}

func (r *recorder) remove(ctx context.Context, ip *kubeovnv1.IP, pod types.NamespacedName) error {
	if ip == nil || ip.Spec.Namespace != pod.Namespace || ip.Spec.PodName != pod.Name {
		return nil
	}
	return r.delete(ctx, ip)
}

func (r *recorder) delete(ctx context.Context, ip *kubeovnv1.IP) error {
	err := r.client.Delete(ctx, ip, client.Preconditions{UID: &ip.UID, ResourceVersion: &ip.ResourceVersion})
	switch {
	case apierrors.IsConflict(err):
		return nil // stale cache: the event of the change retries
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("delete IP %s: %w", ip.Name, err)
	}
	r.writes.deleted(ip)
	_, _, err = r.newest(ctx, ip.Name)
	return err
}

func (r *recorder) create(ctx context.Context, want *kubeovnv1.IP) error {
	if err := r.client.Create(ctx, want, k8s.FieldOwner); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return nil // the event of the existing object retries
		}
		return fmt.Errorf("create IP %s: %w", want.Name, err)
	}
	return r.wrote(ctx, want)
}

func (r *recorder) change(ctx context.Context, have, want *kubeovnv1.IP) error {
	next := changed(have, want)
	err := k8s.Patch(ctx, r.client, have, next)
	if apierrors.IsNotFound(err) {
		return nil // the event of its deletion retries
	}
	if err != nil {
		return err
	}
	return r.wrote(ctx, next)
}

// wrote stores the server's response, unless the cache already has it.
func (r *recorder) wrote(ctx context.Context, ip *kubeovnv1.IP) error {
	r.writes.wrote(ip)
	_, _, err := r.newest(ctx, ip.Name)
	return err
}
