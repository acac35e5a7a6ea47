// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipobject keeps one IP object per pod with a lease, for users and for the next process. It is asynchronous: no pod waits for its
// IP object.
package ipobject

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"github.com/kiln-net/kiln/internal/leases"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Writer is the controller of IP objects. Its exported fields are required, but for Pace; the zero value of Pace writes IP objects at once.
type Writer struct {
	Client     client.Client
	Northbound reconciler.Northbound
	Allocator  *ipam.Allocator
	Retained   *leases.Retained
	Gate       *reconciler.StartGate
	Pace       Pace
	// PodAt returns the pod on the pod network that has a port, nil if there is none; TypeOf the kind of workload that retains its
	// addresses.
	PodAt  func(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error)
	TypeOf func(pod *corev1.Pod) string
	// Decide requeues a pod, or a reservation, in the controller of pods, which decides about the lease.
	Decide func(types.NamespacedName)
	// Warn emits a warning event on an IP object.
	Warn func(ip *kubeovnv1.IP, message string)

	queue  writeQueue
	writes ipWrites
	// early are the IP objects that SetEarly has set. They are used until all IP objects are in the cache.
	early map[string]*kubeovnv1.IP
	// cached is true once the cache has all IP objects.
	cached atomic.Bool
	// complete is true once lookups of IP objects can use the cache.
	complete atomic.Bool
}

// workers is the number of concurrent reconciles of IP objects, deletions and repairs included.
const workers = 16

// SetupWithManager adds the controller of IP objects. It writes no rows, so Gate.WaitWritten does not wait for it.
func (w *Writer) SetupWithManager(mgr ctrl.Manager) error {
	exportMetrics()
	w.queue.pace = w.Pace
	return ctrl.NewControllerManagedBy(mgr).
		Named("ip").
		WatchesRawSource(w.Gate.After(source.Kind[client.Object](mgr.GetCache(), &kubeovnv1.IP{}, w.onIP()))).
		WatchesRawSource(w.Gate.After(w.synced(mgr.GetCache()))).
		WatchesRawSource(&w.queue).
		WatchesRawSource(w.Gate.After(reconciler.Orphans(mgr.GetCache(), w.Gate, &kubeovnv1.IP{}, w.staleObjects))).
		WithOptions(k8s.Workers(workers)).
		Complete(w.Gate.Reconciler(w))
}

// synced sets cached once the cache has all IP objects. On a standby that is before it leads.
func (w *Writer) synced(informers cache.Informers) source.Source {
	return source.Func(func(ctx context.Context, _ k8s.Queue) error {
		if _, err := informers.GetInformer(ctx, &kubeovnv1.IP{}); err != nil {
			return fmt.Errorf("wait for IPs: %w", err)
		}
		w.cached.Store(true)
		return nil
	})
}

// onIP enqueues pods whose IP object differs from their lease: others have changed it, or the pod was deleted.
func (w *Writer) onIP() handler.EventHandler {
	check := func(ctx context.Context, ip *kubeovnv1.IP, q k8s.Queue) {
		w.writes.newest(ip.Name, ip)
		if key, ok := w.isStale(ctx, ip); ok {
			q.Add(ctrl.Request{NamespacedName: key})
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q k8s.Queue) {
			// staleObjects checks all cached IP objects once the allocator has the leases, and sets complete before it reads them. This source
			// starts at about the same time, so its initial list may contain an IP object that staleObjects has not seen.
			if !e.IsInInitialList || w.complete.Load() {
				check(ctx, e.Object.(*kubeovnv1.IP), q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q k8s.Queue) {
			check(ctx, e.ObjectNew.(*kubeovnv1.IP), q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q k8s.Queue) {
			w.writes.forget(e.Object.GetName())
			ip := e.Object.(*kubeovnv1.IP)
			key := leases.KeyOf(ip.Name)
			if _, kept := w.Retained.PodType(key); kept || leases.IsReservation(ip) {
				w.Decide(key)
			}
			if w.holds(key) {
				q.Add(k8s.RequestOf(key))
			}
		},
	}
}

// staleObjects lists the pods whose IP objects differ from their leases, and queues missing IP objects. From then on Update checks
// pods one by one.
func (w *Writer) staleObjects(ctx context.Context) ([]types.NamespacedName, error) {
	for name := range w.early { // IP objects deleted since then cause no event
		w.Decide(leases.KeyOf(name))
	}
	w.complete.Store(true)
	var ips kubeovnv1.IPList
	if err := w.Client.List(ctx, &ips, client.UnsafeDisableDeepCopy); err != nil {
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
func (w *Writer) queueMissing(ctx context.Context) {
	for _, owner := range w.Northbound.Owners(translate.KindPod) {
		pod := types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}
		if !w.holds(pod) {
			continue
		}
		if ip, _, err := w.newest(ctx, translate.PodPort(pod.Namespace, pod.Name)); err == nil && ip == nil {
			w.queue.put(pod)
		}
	}
}

// holds reports whether a pod, or a reservation, has a lease.
func (w *Writer) holds(key types.NamespacedName) bool {
	lease, held := w.Allocator.Lookup(leases.PortOf(key))
	return held && !leases.OfNode(lease)
}

// isStale returns the key of an IP object, and reports whether the object needs a change or a deletion.
func (w *Writer) isStale(ctx context.Context, ip *kubeovnv1.IP) (types.NamespacedName, bool) {
	key := leases.KeyOf(ip.Name)
	if _, isPods := podOfIP(ip); !isPods && !leases.IsReservation(ip) {
		return key, false // of a node, or of no pod
	}
	return key, !w.isCurrent(ctx, ip, key)
}

// isCurrent reports whether an IP object is up to date with its lease.
func (w *Writer) isCurrent(ctx context.Context, ip *kubeovnv1.IP, key types.NamespacedName) bool {
	lease, held := w.Allocator.Lookup(ip.Name)
	if !held || leases.OfNode(lease) {
		return false
	}
	want, err := w.wantedObject(ctx, key, ip, lease)
	return err == nil && want != nil && IsUpToDate(ip, want)
}

// wantedObject returns the wanted IP object of a lease, nil if the controller of pods has yet to decide about the lease.
func (w *Writer) wantedObject(ctx context.Context, key types.NamespacedName, have *kubeovnv1.IP, lease ipam.Lease) (*kubeovnv1.IP, error) {
	podType, isRetained := w.Retained.PodType(key) // a pod of this name may exist, and wait
	if !isRetained {
		pod, err := w.PodAt(ctx, key)
		if pod == nil || err != nil {
			return nil, err
		}
		return ofPod(pod, key, w.TypeOf(pod), lease), nil
	}
	if podType == "" && !leases.IsReservation(have) {
		return nil, nil
	}
	return Retained(have, leases.PortOf(key), podType, lease), nil
}

// Update queues the IP object of a pod, unless its newest known state is up to date with the lease. key is the reconcile key of the pod's
// port. Until all IP objects are in the cache it does nothing: no pod waits for that, and staleObjects finds the differences later.
func (w *Writer) Update(ctx context.Context, pod *corev1.Pod, key types.NamespacedName, lease ipam.Lease) {
	if !w.complete.Load() {
		return
	}
	want := ofPod(pod, key, w.TypeOf(pod), lease)
	have, _, err := w.newest(ctx, want.Name)
	if err != nil || have == nil || !IsUpToDate(have, want) {
		w.queue.put(key)
	}
}

// Check enqueues a pod, or a reservation, whose IP object may need a change, ahead of those that Update has queued.
func (w *Writer) Check(key types.NamespacedName) { w.queue.AddKey(key) }

// Drop takes a pod that no longer needs an IP object out of the queue.
func (w *Writer) Drop(key types.NamespacedName) { w.queue.drop(key) }

// PodCame delays queued IP objects, because a new pod has arrived.
func (w *Writer) PodCame() { w.queue.podCame() }

// Complete reports whether lookups of IP objects can use the cache.
func (w *Writer) Complete() bool { return w.complete.Load() }

// Cached reports whether the cache has all IP objects.
func (w *Writer) Cached() bool { return w.cached.Load() }

// SetEarly sets the IP objects that retain addresses, by name, as listed at the start. Call it before the gate opens.
func (w *Writer) SetEarly(ips map[string]*kubeovnv1.IP) { w.early = ips }

// Find returns the newest known state of an IP object, nil if there is none. It works before all IP objects are in the cache: until then it returns only IP objects that retain addresses. After that it equals
// newest.
func (w *Writer) Find(ctx context.Context, port string) (*kubeovnv1.IP, error) {
	if !w.complete.Load() {
		return w.early[port], nil
	}
	ip, _, err := w.newest(ctx, port)
	return ip, err
}

// newest returns the newest known state of an IP object, nil if there is none, and how long this overrides the cache. The caller must not
// change it.
func (w *Writer) newest(ctx context.Context, name string) (*kubeovnv1.IP, time.Duration, error) {
	ip, err := k8s.Find[kubeovnv1.IP](ctx, w.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, 0, fmt.Errorf("get IP %s: %w", name, err)
	}
	newest, believed := w.writes.newest(name, ip)
	return newest, believed, nil
}

// Reconcile brings the IP object of one pod, or of a reservation, up to date with its lease.
func (w *Writer) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	defer w.queue.done(req.NamespacedName)
	port := leases.PortOf(req.NamespacedName)
	have, believed, err := w.newest(ctx, port)
	if err != nil {
		return ctrl.Result{}, err
	}
	lease, held := w.Allocator.Lookup(port)
	switch {
	case (!held || leases.OfNode(lease)) && leases.IsReservation(have):
		w.Decide(req.NamespacedName)
		return ctrl.Result{}, nil
	case !held || leases.OfNode(lease):
		return ctrl.Result{}, w.remove(ctx, have, req.NamespacedName)
	}
	want, err := w.wantedObject(ctx, req.NamespacedName, have, lease)
	switch {
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("get pod: %w", err)
	case want == nil:
		if have != nil {
			w.Decide(req.NamespacedName)
		}
		return ctrl.Result{}, nil
	case have == nil && want.Spec.NodeName == "":
		return ctrl.Result{}, nil // the user has deleted it, and the controller of pods is about to release the lease
	}
	return ctrl.Result{RequeueAfter: believed}, w.write(ctx, have, want)
}

// Ensure writes an IP object, unless it is up to date.
func (w *Writer) Ensure(ctx context.Context, want *kubeovnv1.IP) error {
	have, _, err := w.newest(ctx, want.Name)
	if err != nil {
		return err
	}
	return w.write(ctx, have, want)
}

// write changes an IP object, nil for none, into the wanted one. A change of immutable fields needs a deletion and a creation; for a
// user's reservation write warns instead.
func (w *Writer) write(ctx context.Context, have, want *kubeovnv1.IP) error {
	switch {
	case have == nil:
		return w.create(ctx, want)
	case IsUpToDate(have, want):
		if leases.IsReservation(have) {
			return w.SetReady(ctx, have, "") // an earlier attempt may have ended before
		}
		return nil
	case canBecome(have, want):
		return w.change(ctx, have, want)
	case leases.IsReservation(have):
		message := fmt.Sprintf("the pod has %s of subnet %s already: delete the pod for this to count", want.Spec.IPAddress, want.Spec.Subnet)
		w.Warn(have, message)
		return w.SetReady(ctx, have, message)
	}
	if err := w.delete(ctx, have); err != nil {
		return err
	}
	return w.create(ctx, want)
}

func (w *Writer) remove(ctx context.Context, ip *kubeovnv1.IP, pod types.NamespacedName) error {
	if ip == nil || ip.Spec.Namespace != pod.Namespace || ip.Spec.PodName != pod.Name {
		return nil
	}
	return w.delete(ctx, ip)
}

func (w *Writer) delete(ctx context.Context, ip *kubeovnv1.IP) error {
	err := w.Client.Delete(ctx, ip, client.Preconditions{UID: &ip.UID, ResourceVersion: &ip.ResourceVersion})
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

func (w *Writer) create(ctx context.Context, want *kubeovnv1.IP) error {
	if err := w.Client.Create(ctx, want, k8s.FieldOwner); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return nil // the event of the existing object retries
		}
		return fmt.Errorf("create IP %s: %w", want.Name, err)
	}
	return w.wrote(ctx, want)
}

func (w *Writer) change(ctx context.Context, have, want *kubeovnv1.IP) error {
	next := changed(have, want)
	err := k8s.Patch(ctx, w.Client, have, next)
	if apierrors.IsNotFound(err) {
		return nil // the event of its deletion retries
	}
	if err != nil {
		return err
	}
	if err := w.wrote(ctx, next); err != nil || !leases.IsReservation(have) {
		return err
	}
	return w.SetReady(ctx, next, "")
}

// SetReady writes the condition Ready of a reservation; obstacle is why its addresses are not reserved, "" if they are.
func (w *Writer) SetReady(ctx context.Context, ip *kubeovnv1.IP, obstacle string) error {
	ready := k8s.NotReady(kubeovnv1.ReasonWaiting, obstacle)
	if obstacle == "" {
		ready = metav1.Condition{
			Type: kubeovnv1.ConditionReady, Status: metav1.ConditionTrue, Reason: kubeovnv1.ReasonApplied, Message: "the addresses are reserved",
		}
	}
	next := ip.DeepCopy()
	k8s.SetConditions(&next.Status.Conditions, next.Generation, ready)
	return k8s.PatchStatus(ctx, w.Client, ip, next)
}

// wrote stores the server's response, unless the cache already has it.
func (w *Writer) wrote(ctx context.Context, ip *kubeovnv1.IP) error {
	w.writes.wrote(ip)
	_, _, err := w.newest(ctx, ip.Name)
	return err
}
