// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipobject keeps one IP object per port with an allocation, for users and for the next process. It is asynchronous: no pod waits for its
// IP object.
package ipobject

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Writer is the controller of IP objects: only it writes them. Its exported fields are required, but for Pace; the zero value of Pace writes IP objects at
// once. A reconcile key is the name of an IP object, which is the name of its port.
type Writer struct {
	Client      client.Client
	Northbound  *northbound.Engine
	Allocator   *ipam.Allocator
	Allocations Allocations
	// Networks finds the rules for external addresses that name an IP object.
	Networks *lookup.Networks
	Gate     *reconciler.StartGate
	Pace     Pace
	// Warn emits a warning event on an IP object.
	Warn func(ip *kubeovnv1.IP, message string)

	writeQueue

	writes ipWrites
	// early are the IP objects that SetEarly has set. They are used until all IP objects are in the cache.
	early map[string]*kubeovnv1.IP
	// cached is true once the cache has all IP objects.
	cached atomic.Bool
	// complete is true once lookups of IP objects can use the cache.
	complete atomic.Bool
}

// Allocations decides about allocations. All methods are safe for concurrent use.
type Allocations interface {
	// Want returns the wanted IP object of a port with an allocation, nil while that is not decided. have is the existing one, or nil.
	Want(ctx context.Context, port string, have *kubeovnv1.IP, allocation ipam.Allocation) (*kubeovnv1.IP, error)
	// Obstacle returns why a port has to wait for its addresses, "" if it does not wait.
	Obstacle(port string) string
	// Decide requests a decision about the allocation of a port. ip is the IP object, which may be deleted.
	Decide(port string, ip *kubeovnv1.IP)
	// IsAbsent reports whether no pod has the allocation of a port.
	IsAbsent(port string) bool
	// Recorded is called when the IP object of a port without a pod is up to date.
	Recorded(port string)
}

// workers is the number of concurrent reconciles of IP objects, deletions and repairs included.
const workers = 16

// SetupWithManager adds the controller of IP objects. It writes no rows, so Gate.WaitWritten does not wait for it.
func (w *Writer) SetupWithManager(mgr ctrl.Manager) error {
	exportMetrics()
	w.pace = w.Pace
	return ctrl.NewControllerManagedBy(mgr).
		Named("ip").
		WatchesRawSource(w.Gate.After(source.Kind[client.Object](mgr.GetCache(), &kubeovnv1.IP{}, w.onIP()))).
		WatchesRawSource(w.Gate.After(w.synced(mgr.GetCache()))).
		WatchesRawSource(&w.writeQueue).
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

// onIP enqueues IP objects that differ from their allocation: others have changed them, or the pod was deleted.
func (w *Writer) onIP() handler.EventHandler {
	check := func(ctx context.Context, ip *kubeovnv1.IP, q k8s.Queue) {
		w.writes.newest(ip.Name, ip)
		if w.isStale(ctx, ip) || w.Allocations.IsAbsent(ip.Name) { // the write that records an absent pod's allocation may have had no answer
			q.Add(requestFor(ip.Name))
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q k8s.Queue) {
			// staleObjects checks all cached IP objects once the allocator has the allocations, and sets complete before it reads them. This source
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
			if w.Allocations.IsAbsent(ip.Name) || allocations.IsReservation(ip) {
				w.Allocations.Decide(ip.Name, ip)
			}
			if w.holds(ip.Name) {
				q.Add(requestFor(ip.Name))
			}
		},
	}
}

func requestFor(port string) ctrl.Request { return k8s.RequestOf(types.NamespacedName{Name: port}) }

// staleObjects lists the IP objects that differ from their allocations, and queues missing IP objects. From then on Update checks
// ports one by one.
func (w *Writer) staleObjects(ctx context.Context) ([]types.NamespacedName, error) {
	for name, ip := range w.early { // IP objects deleted since then cause no event
		w.Allocations.Decide(name, ip)
	}
	w.complete.Store(true)
	var ips kubeovnv1.IPList
	if err := w.Client.List(ctx, &ips, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list IPs: %w", err)
	}
	w.queueMissing(ctx)
	var stale []types.NamespacedName
	for i := range ips.Items {
		if w.isStale(ctx, &ips.Items[i]) {
			stale = append(stale, types.NamespacedName{Name: ips.Items[i].Name})
		}
	}
	return stale, nil
}

// queueMissing queues the IP objects of pods' ports that have an allocation, but no IP object.
func (w *Writer) queueMissing(ctx context.Context) {
	var ports []string
	northbound.Each(w.Northbound, translate.KindPod, func(_ desired.Owner, row *nb.LogicalSwitchPort) { ports = append(ports, row.Name) })
	for _, port := range ports {
		if !w.holds(port) {
			continue
		}
		if ip, _, err := w.newest(ctx, port); err == nil && ip == nil {
			w.queue(ctx, port)
		}
	}
}

// holds reports whether a pod, or a reservation, has an allocation.
func (w *Writer) holds(port string) bool {
	allocation, held := w.Allocator.Lookup(port)
	return held && !allocations.OfNode(allocation)
}

// isStale reports whether an IP object needs a change or a deletion. It is false for IP objects of nodes.
func (w *Writer) isStale(ctx context.Context, ip *kubeovnv1.IP) bool {
	if _, isPods := PortOf(ip); !isPods && !allocations.IsReservation(ip) {
		return false
	}
	allocation, held := w.Allocator.Lookup(ip.Name)
	if !held || allocations.OfNode(allocation) {
		return true
	}
	want, err := w.Allocations.Want(ctx, ip.Name, ip, allocation)
	return err != nil || want == nil || !isUpToDate(ip, want)
}

// Update queues the IP object of a port, unless its newest known state is up to date. Until all IP objects are in the cache it does nothing: no pod
// waits for that, and staleObjects finds the differences later.
func (w *Writer) Update(ctx context.Context, port string) {
	if !w.complete.Load() {
		return
	}
	if have, _, err := w.newest(ctx, port); err != nil || have == nil || w.isStale(ctx, have) {
		w.queue(ctx, port)
	}
}

// queue queues the IP object of a port for writing. It does not wait for new pods if a rule for an external address names it: the address has no rows without it.
func (w *Writer) queue(ctx context.Context, port string) {
	if rules, err := w.Networks.NATRulesBy(ctx, "ip/"+port); err != nil || len(rules) > 0 {
		w.Check(port)
		return
	}
	w.put(port)
}

// Check enqueues an IP object that may need a change, ahead of the objects that Update has queued.
func (w *Writer) Check(port string) { w.Add(port) }

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

// Reconcile brings the IP object of one port up to date with its allocation.
func (w *Writer) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	port := req.Name
	defer w.done(port)
	have, believed, err := w.newest(ctx, port)
	if err != nil {
		return ctrl.Result{}, err
	}
	allocation, held := w.Allocator.Lookup(port)
	if !held || allocations.OfNode(allocation) {
		return ctrl.Result{}, w.withoutAllocation(ctx, port, have)
	}
	want, err := w.Allocations.Want(ctx, port, have, allocation)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("decide about the IP of port %s: %w", port, err)
	}
	if want == nil {
		if have != nil {
			w.Allocations.Decide(port, have)
		}
		return ctrl.Result{}, nil
	}
	if err := w.write(ctx, have, want); err != nil {
		return ctrl.Result{}, err
	}
	if w.Allocations.IsAbsent(port) {
		if have, _, err = w.newest(ctx, port); err == nil && have != nil && isUpToDate(have, want) {
			w.Allocations.Recorded(port)
		}
	}
	return ctrl.Result{RequeueAfter: believed}, err
}

// withoutAllocation handles the IP object of a port without an allocation: a reservation waits for its addresses, and another IP object is deleted.
func (w *Writer) withoutAllocation(ctx context.Context, port string, have *kubeovnv1.IP) error {
	if allocations.IsReservation(have) {
		ready := apimeta.FindStatusCondition(have.Status.Conditions, kubeovnv1.ConditionReady)
		if obstacle := w.Allocations.Obstacle(port); obstacle != "" && (ready == nil || ready.Message != obstacle || ready.ObservedGeneration != have.Generation) {
			return w.setReady(ctx, have, obstacle)
		}
		w.Allocations.Decide(port, have)
		return nil
	}
	if have == nil {
		return nil
	}
	if _, isPods := PortOf(have); !isPods {
		return nil
	}
	return w.delete(ctx, have)
}

// write changes an IP object, nil for none, into the wanted one. A change of immutable fields needs a deletion and a creation; for a
// user's reservation write warns instead.
func (w *Writer) write(ctx context.Context, have, want *kubeovnv1.IP) error {
	switch {
	case have == nil:
		return w.create(ctx, want)
	case isUpToDate(have, want):
		if allocations.IsReservation(have) {
			return w.setReady(ctx, have, "") // an earlier attempt may have ended before
		}
		return nil
	case canBecome(have, want):
		return w.change(ctx, have, want)
	case allocations.IsReservation(have):
		message := fmt.Sprintf("the pod has %s of subnet %s already: delete the pod for this to count", want.Spec.IPAddress, want.Spec.Subnet)
		w.Warn(have, message)
		return w.setReady(ctx, have, message)
	}
	if err := w.delete(ctx, have); err != nil {
		return err
	}
	return w.create(ctx, want)
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
	if err := w.wrote(ctx, next); err != nil || !allocations.IsReservation(have) {
		return err
	}
	return w.setReady(ctx, next, "")
}

// setReady writes the condition Ready of a reservation; obstacle is why its addresses are not reserved, "" if they are.
func (w *Writer) setReady(ctx context.Context, ip *kubeovnv1.IP, obstacle string) error {
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
