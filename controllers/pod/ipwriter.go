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

// ipObjectWriter keeps one IP object per pod with a lease. It is asynchronous: no pod waits for its IP object.
type ipObjectWriter struct {
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
	// queue adds a pod to those whose IP objects are created at the pace of IPWritePace.
	queue func(pod types.NamespacedName)
	// decide requeues a pod, or a reservation, in the controller of pods, which decides about the lease.
	decide func(ctrl.Request)
	// warn emits a warning event on an IP object.
	warn func(ip *kubeovnv1.IP, message string)
	// done is called after each pass.
	done func(pod types.NamespacedName)
}

// ipObjectWorkers is the number of concurrent reconciles of IP objects, deletions and repairs included.
const ipObjectWorkers = 16

// setupIPObjects adds the controller of IP objects. It writes no rows, so Gate.WaitWritten does not wait for it.
func (r *Reconciler) setupIPObjects(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("ip").
		WatchesRawSource(r.Gate.After(source.Kind[client.Object](mgr.GetCache(), &kubeovnv1.IP{}, r.ipObjects.onIP()))).
		WatchesRawSource(r.Gate.After(r.ipObjects.synced(mgr.GetCache()))).
		WatchesRawSource(&r.ipQueue).
		WatchesRawSource(r.Gate.After(k8s.Orphans(mgr.GetCache(), r.Gate, &kubeovnv1.IP{}, r.ipObjects.staleObjects))).
		WithOptions(k8s.Workers(ipObjectWorkers)).
		Complete(r.Gate.Reconciler(r.ipObjects))
	if err != nil {
		return fmt.Errorf("add the controller of IPs: %w", err)
	}
	return nil
}

// synced sets cached once the cache has all IP objects. On a standby that is before it leads.
func (w *ipObjectWriter) synced(informers cache.Informers) source.Source {
	return source.Func(func(ctx context.Context, _ queue) error {
		if _, err := informers.GetInformer(ctx, &kubeovnv1.IP{}); err != nil {
			return fmt.Errorf("wait for IPs: %w", err)
		}
		w.cached.Store(true)
		return nil
	})
}

// onIP enqueues pods whose IP object differs from their lease: others have changed it, or the pod was deleted.
func (w *ipObjectWriter) onIP() handler.EventHandler {
	check := func(ctx context.Context, ip *kubeovnv1.IP, q queue) {
		w.writes.newest(ip.Name, ip)
		if key, ok := w.isStale(ctx, ip); ok {
			q.Add(ctrl.Request{NamespacedName: key})
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			// staleObjects checks all cached IP objects once the allocator has the leases, and sets complete before it reads them. This source
			// starts at about the same time, so its initial list may contain an IP object that staleObjects has not seen.
			if !e.IsInInitialList || w.complete.Load() {
				check(ctx, e.Object.(*kubeovnv1.IP), q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { check(ctx, e.ObjectNew.(*kubeovnv1.IP), q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			w.writes.forget(e.Object.GetName())
			ip := e.Object.(*kubeovnv1.IP)
			key := ctrl.Request{NamespacedName: keyOf(ip.Name)}
			if _, kept := w.retained.podType(key.NamespacedName); kept || isReservation(ip) {
				w.decide(key)
			}
			if w.holds(key.NamespacedName) {
				q.Add(key)
			}
		},
	}
}

// staleObjects lists the pods whose IP objects differ from their leases, and queues missing IP objects. From then on hasCurrentObject checks
// pods one by one.
func (w *ipObjectWriter) staleObjects(ctx context.Context) ([]types.NamespacedName, error) {
	for name := range w.early { // IP objects deleted since then cause no event
		w.decide(ctrl.Request{NamespacedName: keyOf(name)})
	}
	w.complete.Store(true)
	var ips kubeovnv1.IPList
	if err := w.client.List(ctx, &ips, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list IPs: %w", err)
	}
	w.queueMissing(ctx)
	var pods []types.NamespacedName
	for i := range ips.Items {
		if key, ok := w.isStale(ctx, &ips.Items[i]); ok {
			pods = append(pods, key)
		}
	}
	return pods, nil
}

// queueMissing queues the IP objects of pods that have a port and a lease, but no IP object.
func (w *ipObjectWriter) queueMissing(ctx context.Context) {
	for _, owner := range w.northbound.Owners(translate.KindPod) {
		pod := types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}
		if !w.holds(pod) {
			continue
		}
		if ip, _, err := w.newest(ctx, translate.PodPort(pod.Namespace, pod.Name)); err == nil && ip == nil {
			w.queue(pod)
		}
	}
}

// holds reports whether a pod, or a reservation, has a lease.
func (w *ipObjectWriter) holds(key types.NamespacedName) bool {
	lease, held := w.allocator.Lookup(portOf(key))
	return held && !ofNode(lease)
}

// isStale returns the key of an IP object, and reports whether the object needs a change or a deletion.
func (w *ipObjectWriter) isStale(ctx context.Context, ip *kubeovnv1.IP) (types.NamespacedName, bool) {
	key := keyOf(ip.Name)
	if _, ofPod := podOfIP(ip); !ofPod && !isReservation(ip) {
		return key, false // of a node, or of no pod
	}
	return key, !w.isCurrent(ctx, ip, key)
}

// isCurrent reports whether an IP object is up to date with its lease.
func (w *ipObjectWriter) isCurrent(ctx context.Context, ip *kubeovnv1.IP, key types.NamespacedName) bool {
	lease, held := w.allocator.Lookup(ip.Name)
	if !held || ofNode(lease) {
		return false
	}
	want, err := w.wantedObject(ctx, key, ip, lease)
	return err == nil && want != nil && isUpToDate(ip, want)
}

// wantedObject returns the wanted IP object of a lease, nil if the controller of pods has yet to decide about the lease.
func (w *ipObjectWriter) wantedObject(ctx context.Context, key types.NamespacedName, have *kubeovnv1.IP, lease ipam.Lease) (*kubeovnv1.IP, error) {
	podType, isRetained := w.retained.podType(key) // a pod of this name may exist, and wait
	if !isRetained {
		pod, err := w.podAt(ctx, key)
		if pod == nil || err != nil {
			return nil, err
		}
		return ipOf(pod, key, w.typeOf(pod), lease), nil
	}
	if podType == "" && !isReservation(have) {
		return nil, nil
	}
	return retainedIPOf(have, portOf(key), podType, lease), nil
}

// hasCurrentObject reports whether the newest known IP object of a pod is up to date with its lease. Until all IP objects are in the cache
// it returns true: no pod waits for that, and staleObjects finds the differences later.
func (w *ipObjectWriter) hasCurrentObject(ctx context.Context, a *attachment) bool {
	if !w.complete.Load() {
		return true
	}
	want := ipOf(a.pod, a.key, w.typeOf(a.pod), a.lease)
	have, _, err := w.newest(ctx, want.Name)
	return err == nil && have != nil && isUpToDate(have, want)
}

// find works before all IP objects are in the cache: until then it returns only IP objects that retain addresses. After that it equals
// newest.
func (w *ipObjectWriter) find(ctx context.Context, port string) (*kubeovnv1.IP, error) {
	if !w.complete.Load() {
		return w.early[port], nil
	}
	ip, _, err := w.newest(ctx, port)
	return ip, err
}

// newest returns the newest known state of an IP object, nil if there is none, and how long this overrides the cache. The caller must not
// change it.
func (w *ipObjectWriter) newest(ctx context.Context, name string) (*kubeovnv1.IP, time.Duration, error) {
	ip := &kubeovnv1.IP{}
	if err := w.client.Get(ctx, client.ObjectKey{Name: name}, ip, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return nil, 0, fmt.Errorf("get IP %s: %w", name, err)
		}
		ip = nil
	}
	newest, believed := w.writes.newest(name, ip)
	return newest, believed, nil
}

// Reconcile brings the IP object of one pod, or of a reservation, up to date with its lease.
func (w *ipObjectWriter) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	defer w.done(req.NamespacedName)
	port := portOf(req.NamespacedName)
	have, believed, err := w.newest(ctx, port)
	if err != nil {
		return ctrl.Result{}, err
	}
	lease, held := w.allocator.Lookup(port)
	switch {
	case (!held || ofNode(lease)) && isReservation(have):
		w.decide(req)
		return ctrl.Result{}, nil
	case !held || ofNode(lease):
		return ctrl.Result{}, w.remove(ctx, have, req.NamespacedName)
	}
	want, err := w.wantedObject(ctx, req.NamespacedName, have, lease)
	switch {
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("get pod: %w", err)
	case want == nil:
		if have != nil {
			w.decide(req)
		}
		return ctrl.Result{}, nil
	case have == nil && want.Spec.NodeName == "":
		return ctrl.Result{}, nil // the user has deleted it, and the controller of pods is about to release the lease
	}
	return ctrl.Result{RequeueAfter: believed}, w.write(ctx, have, want)
}

// ensure writes an IP object, unless it is up to date.
func (w *ipObjectWriter) ensure(ctx context.Context, want *kubeovnv1.IP) error {
	have, _, err := w.newest(ctx, want.Name)
	if err != nil {
		return err
	}
	return w.write(ctx, have, want)
}

// write changes an IP object, nil for none, into the wanted one. A change of immutable fields needs a deletion and a creation; for a
// user's reservation write warns instead.
func (w *ipObjectWriter) write(ctx context.Context, have, want *kubeovnv1.IP) error {
	switch {
	case have == nil:
		return w.create(ctx, want)
	case isUpToDate(have, want):
		return nil
	case canBecome(have, want):
		return w.change(ctx, have, want)
	case isReservation(have):
		w.warn(have, fmt.Sprintf("the pod has %s of subnet %s already: delete the pod for this to count", want.Spec.IPAddress, want.Spec.Subnet))
		return nil
	}
	if err := w.delete(ctx, have); err != nil {
		return err
	}
	return w.create(ctx, want)
}

func (w *ipObjectWriter) remove(ctx context.Context, ip *kubeovnv1.IP, pod types.NamespacedName) error {
	if ip == nil || ip.Spec.Namespace != pod.Namespace || ip.Spec.PodName != pod.Name {
		return nil
	}
	return w.delete(ctx, ip)
}

func (w *ipObjectWriter) delete(ctx context.Context, ip *kubeovnv1.IP) error {
	err := w.client.Delete(ctx, ip, client.Preconditions{UID: &ip.UID, ResourceVersion: &ip.ResourceVersion})
	switch {
	case apierrors.IsConflict(err):
		return nil // stale cache: the event of the change retries
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("delete IP %s: %w", ip.Name, err)
	}
	w.writes.deleted(ip)
	_, _, err = w.newest(ctx, ip.Name)
	return err
}

func (w *ipObjectWriter) create(ctx context.Context, want *kubeovnv1.IP) error {
	if err := w.client.Create(ctx, want, k8s.FieldOwner); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return nil // the event of the existing object retries
		}
		return fmt.Errorf("create IP %s: %w", want.Name, err)
	}
	return w.wrote(ctx, want)
}

func (w *ipObjectWriter) change(ctx context.Context, have, want *kubeovnv1.IP) error {
	next := changed(have, want)
	err := k8s.Patch(ctx, w.client, have, next)
	if apierrors.IsNotFound(err) {
		return nil // the event of its deletion retries
	}
	if err != nil {
		return err
	}
	return w.wrote(ctx, next)
}

// wrote stores the server's response, unless the cache already has it.
func (w *ipObjectWriter) wrote(ctx context.Context, ip *kubeovnv1.IP) error {
	w.writes.wrote(ip)
	_, _, err := w.newest(ctx, ip.Name)
	return err
}
