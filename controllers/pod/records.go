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

// recorder keeps one IP object per pod that holds a lease. It works behind the path of pods: nothing waits for it.
type recorder struct {
	client     client.Client
	northbound k8s.Northbound
	allocator  *ipam.Allocator
	answers    answers
	kept       *kept
	// early are the IP objects that keep addresses, as they were at the start. They count until all IP objects are read.
	early map[string]*kubeovnv1.IP
	// cached says that the cache has all IP objects.
	cached atomic.Bool
	// complete says that IP objects can be looked up without waiting for them.
	complete atomic.Bool
	// podAt is the pod on the pod network that a port is of, nil when there is none; typeOf the kind of workload that keeps its addresses.
	podAt  func(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error)
	typeOf func(pod *corev1.Pod) string
	// hold asks for a pass that creates an IP object, in time.
	hold func(pod types.NamespacedName)
	// decide has it decided again what a pod, or a reservation, holds.
	decide func(ctrl.Request)
	// warn tells the user of an IP object what is wrong.
	warn func(ip *kubeovnv1.IP, message string)
	// done is called after each pass.
	done func(pod types.NamespacedName)
}

// recordWorkers is how many IP objects are worked on at a time, deletions and repairs included.
const recordWorkers = 16

// setupRecords adds the controller of IP objects. It writes no rows, so Gate.WaitWritten does not wait for it.
func (r *Reconciler) setupRecords(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("ip").
		WatchesRawSource(r.Gate.Behind(source.Kind[client.Object](mgr.GetCache(), &kubeovnv1.IP{}, r.recorder.onIP()))).
		WatchesRawSource(r.Gate.Behind(r.recorder.synced(mgr.GetCache()))).
		WatchesRawSource(&r.records).
		WatchesRawSource(r.Gate.Behind(k8s.Orphans(mgr.GetCache(), r.Gate, &kubeovnv1.IP{}, r.recorder.strays))).
		WithOptions(k8s.Workers(recordWorkers)).
		Complete(r.Gate.Reconciler(r.recorder))
	if err != nil {
		return fmt.Errorf("add the controller of IPs: %w", err)
	}
	return nil
}

// synced takes note of when the cache has all IP objects: on a standby that is before it leads.
func (r *recorder) synced(informers cache.Informers) source.Source {
	return source.Func(func(ctx context.Context, _ queue) error {
		if _, err := informers.GetInformer(ctx, &kubeovnv1.IP{}); err != nil {
			return fmt.Errorf("wait for IPs: %w", err)
		}
		r.cached.Store(true)
		return nil
	})
}

// onIP enqueues pods whose IP object is not what their leases want: those that others have written, and those of pods that are gone.
func (r *recorder) onIP() handler.EventHandler {
	check := func(ctx context.Context, ip *kubeovnv1.IP, q queue) {
		r.answers.newest(ip.Name, ip)
		if key, ok := r.isStray(ctx, ip); ok {
			q.Add(ctrl.Request{NamespacedName: key})
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			// strays looks through all IP objects of the cache once the allocator knows the leases, and sets complete before it reads them.
			// This source starts at about the same time, so its initial list may hold an IP object that strays has not seen.
			if !e.IsInInitialList || r.complete.Load() {
				check(ctx, e.Object.(*kubeovnv1.IP), q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { check(ctx, e.ObjectNew.(*kubeovnv1.IP), q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			r.answers.forget(e.Object.GetName())
			ip := e.Object.(*kubeovnv1.IP)
			key := ctrl.Request{NamespacedName: keyOf(ip.Name)}
			if _, kept := r.kept.podType(key.NamespacedName); kept || isReservation(ip) {
				r.decide(key)
			}
			if r.holds(key.NamespacedName) {
				q.Add(key)
			}
		},
	}
}

// strays lists the pods whose IP objects are not what their leases want, and asks for those that are missing. From then on pods are
// looked at one by one (isRecorded).
func (r *recorder) strays(ctx context.Context) ([]types.NamespacedName, error) {
	for name := range r.early { // those that are gone by now will cause no event
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
		if key, ok := r.isStray(ctx, &ips.Items[i]); ok {
			pods = append(pods, key)
		}
	}
	return pods, nil
}

// holdMissing asks for the IP objects of pods that have ports and leases, and no IP object.
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

// isStray reports whether there is something to do about an IP object, and under which key.
func (r *recorder) isStray(ctx context.Context, ip *kubeovnv1.IP) (types.NamespacedName, bool) {
	key := keyOf(ip.Name)
	if _, ofPod := podOfIP(ip); !ofPod && !isReservation(ip) {
		return key, false // a node's, or nobody's
	}
	return key, !r.isRecord(ctx, ip, key)
}

// isRecord reports whether an IP object says what is known of its pod.
func (r *recorder) isRecord(ctx context.Context, ip *kubeovnv1.IP, key types.NamespacedName) bool {
	lease, held := r.allocator.Lookup(ip.Name)
	if !held || ofNode(lease) {
		return false
	}
	want, err := r.wanted(ctx, key, ip, lease)
	return err == nil && want != nil && says(ip, want)
}

// wanted is what the IP object of a lease should be, nil when its pod's controller is about to decide about the lease.
func (r *recorder) wanted(ctx context.Context, key types.NamespacedName, have *kubeovnv1.IP, lease ipam.Lease) (*kubeovnv1.IP, error) {
	pod, err := r.podAt(ctx, key)
	if err != nil {
		return nil, err
	}
	if pod != nil {
		return ipOf(pod, key, r.typeOf(pod), lease), nil
	}
	podType, kept := r.kept.podType(key)
	if !kept || podType == "" && !isReservation(have) {
		return nil, nil
	}
	return keptIPOf(have, portOf(key), podType, lease), nil
}

// isRecorded reports whether the pod's IP object, as far as this process knows, says what the pod holds. Until the IP objects were read,
// which no pod waits for, that is left to strays.
func (r *recorder) isRecorded(ctx context.Context, a *attachment) bool {
	if !r.complete.Load() {
		return true
	}
	want := ipOf(a.pod, a.key, r.typeOf(a.pod), a.lease)
	have, _, err := r.newest(ctx, want.Name)
	return err == nil && have != nil && says(have, want)
}

// find is newest for who cannot wait until all IP objects are read: before that it knows those that keep addresses.
func (r *recorder) find(ctx context.Context, port string) (*kubeovnv1.IP, error) {
	if !r.complete.Load() {
		return r.early[port], nil
	}
	ip, _, err := r.newest(ctx, port)
	return ip, err
}

// newest returns the newest that is known of an IP object, nil when there is none, and for how long yet that is believed against the
// cache. It is not to be changed.
func (r *recorder) newest(ctx context.Context, name string) (*kubeovnv1.IP, time.Duration, error) {
	ip := &kubeovnv1.IP{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: name}, ip, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return nil, 0, fmt.Errorf("get IP %s: %w", name, err)
		}
		ip = nil
	}
	newest, believed := r.answers.newest(name, ip)
	return newest, believed, nil
}

// Reconcile brings the IP object of one pod, or of a reservation, up to date with what it holds.
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
		return ctrl.Result{}, nil // its user has deleted it, and the lease is about to be released
	}
	return ctrl.Result{RequeueAfter: believed}, r.write(ctx, have, want)
}

// ensure writes an IP object, if it is not as wanted.
func (r *recorder) ensure(ctx context.Context, want *kubeovnv1.IP) error {
	have, _, err := r.newest(ctx, want.Name)
	if err != nil {
		return err
	}
	return r.write(ctx, have, want)
}

// write makes one IP object of another, nil for none. What the API server lets nobody change is made anew, but for what a user reserved.
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
		return nil // one that has changed comes with the next event
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("delete IP %s: %w", ip.Name, err)
	}
	r.answers.deleted(ip)
	_, _, err = r.newest(ctx, ip.Name)
	return err
}

func (r *recorder) create(ctx context.Context, want *kubeovnv1.IP) error {
	if err := r.client.Create(ctx, want, k8s.FieldOwner); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return nil // it comes with the next event
		}
		return fmt.Errorf("create IP %s: %w", want.Name, err)
	}
	return r.wrote(ctx, want)
}

func (r *recorder) change(ctx context.Context, have, want *kubeovnv1.IP) error {
	next := changed(have, want)
	err := k8s.Patch(ctx, r.client, have, next)
	if apierrors.IsNotFound(err) {
		return nil // its deletion comes with the next event
	}
	if err != nil {
		return err
	}
	return r.wrote(ctx, next)
}

// wrote remembers what the server answered, unless the cache has it by now.
func (r *recorder) wrote(ctx context.Context, ip *kubeovnv1.IP) error {
	r.answers.wrote(ip)
	_, _, err := r.newest(ctx, ip.Name)
	return err
}
