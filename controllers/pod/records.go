// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// Labels of IP objects. The subnet's name is a label, too, as users of Kube-OVN select by it.
const (
	labelSubnet = "ovn.kubernetes.io/subnet"
	labelNode   = "ovn.kubernetes.io/node-name"
)

// recorder keeps one IP object per pod that holds a lease. It works behind the path of pods: nothing waits for it.
type recorder struct {
	client     client.Client
	northbound k8s.Northbound
	allocator  *ipam.Allocator
	answers    answers
	// complete says that IP objects can be looked up without waiting for them.
	complete atomic.Bool
	// hold asks for a pass that creates an IP object, in time.
	hold func(pod types.NamespacedName)
	// done is called after each pass.
	done func(pod types.NamespacedName)
}

// recordWorkers is how many IP objects are worked on at a time, deletions and repairs included.
const recordWorkers = 16

func (r *Reconciler) setupRecords(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("ip").
		WatchesRawSource(r.Gate.Behind(source.Kind[client.Object](mgr.GetCache(), &kubeovnv1.IP{}, r.recorder.onIP()))).
		WatchesRawSource(&r.records).
		WatchesRawSource(r.Gate.Behind(k8s.Orphans(mgr.GetCache(), r.Gate, &kubeovnv1.IP{}, r.recorder.strays))).
		WithOptions(controller.Options{MaxConcurrentReconciles: recordWorkers}).
		Complete(r.Gate.Reconciler(r.recorder))
	if err != nil {
		return fmt.Errorf("add the controller of IPs: %w", err)
	}
	return nil
}

// onIP enqueues pods whose IP object is not what their leases want: those that others have written, and those of pods that are gone.
func (r *recorder) onIP() handler.EventHandler {
	check := func(ctx context.Context, ip *kubeovnv1.IP, q queue) {
		r.answers.newest(ip.Name, ip)
		if pod, ok := podOfIP(ip); ok && !r.isRecord(ctx, ip, pod) {
			q.Add(ctrl.Request{NamespacedName: pod})
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if !e.IsInInitialList { // which is looked through once the allocator knows the leases
				check(ctx, e.Object.(*kubeovnv1.IP), q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { check(ctx, e.ObjectNew.(*kubeovnv1.IP), q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			r.answers.forget(e.Object.GetName())
			if pod, ok := podOfIP(e.Object.(*kubeovnv1.IP)); ok && r.holds(pod) {
				q.Add(ctrl.Request{NamespacedName: pod})
			}
		},
	}
}

// strays lists the pods whose IP objects are not what their leases want, and asks for those that are missing. From then on pods are
// looked at one by one (isRecorded).
func (r *recorder) strays(ctx context.Context) ([]types.NamespacedName, error) {
	r.complete.Store(true)
	var ips kubeovnv1.IPList
	if err := r.client.List(ctx, &ips, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list IPs: %w", err)
	}
	r.holdMissing(ctx)
	var pods []types.NamespacedName
	for i := range ips.Items {
		if pod, ok := podOfIP(&ips.Items[i]); ok && !r.isRecord(ctx, &ips.Items[i], pod) {
			pods = append(pods, pod)
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

// podOfIP is the pod of whose first network an IP object is.
func podOfIP(ip *kubeovnv1.IP) (types.NamespacedName, bool) {
	pod := types.NamespacedName{Namespace: ip.Spec.Namespace, Name: ip.Spec.PodName}
	return pod, pod.Namespace != "" && ip.Name == translate.PodPort(pod.Namespace, pod.Name)
}

// holds reports whether a pod has a lease.
func (r *recorder) holds(pod types.NamespacedName) bool {
	lease, held := r.allocator.Lookup(translate.PodPort(pod.Namespace, pod.Name))
	return held && !ofNode(lease)
}

// isRecord reports whether an IP object says what is known of its pod.
func (r *recorder) isRecord(ctx context.Context, ip *kubeovnv1.IP, key types.NamespacedName) bool {
	lease, held := r.allocator.Lookup(ip.Name)
	if !held || ofNode(lease) {
		return false
	}
	pod := &corev1.Pod{}
	if err := r.client.Get(ctx, key, pod, client.UnsafeDisableDeepCopy); err != nil {
		return false
	}
	return says(ip, ipOf(pod, ip.Name, lease))
}

// isRecorded reports whether the pod's IP object, as far as this process knows, says what the pod holds. Until the IP objects were read,
// which no pod waits for, that is left to strays.
func (r *recorder) isRecorded(ctx context.Context, a *attachment) bool {
	if !r.complete.Load() {
		return true
	}
	want := ipOf(a.pod, translate.PodPort(a.pod.Namespace, a.pod.Name), a.lease)
	have, _, err := r.newest(ctx, want.Name)
	return err == nil && have != nil && says(have, want)
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

// Reconcile brings the IP object of one pod up to date with the pod's lease.
func (r *recorder) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	defer r.done(req.NamespacedName)
	port := translate.PodPort(req.Namespace, req.Name)
	have, believed, err := r.newest(ctx, port)
	if err != nil {
		return ctrl.Result{}, err
	}
	lease, held := r.allocator.Lookup(port)
	if !held || ofNode(lease) {
		return ctrl.Result{}, r.remove(ctx, have, req.NamespacedName)
	}
	pod := &corev1.Pod{}
	if err := r.client.Get(ctx, req.NamespacedName, pod, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err) // it is about to release its lease
	}
	want := ipOf(pod, port, lease)
	switch {
	case have == nil:
		return ctrl.Result{}, r.create(ctx, want)
	case !says(have, want):
		return ctrl.Result{RequeueAfter: believed}, r.change(ctx, have, want)
	}
	return ctrl.Result{RequeueAfter: believed}, nil
}

func (r *recorder) remove(ctx context.Context, ip *kubeovnv1.IP, pod types.NamespacedName) error {
	if ip == nil || ip.Spec.Namespace != pod.Namespace || ip.Spec.PodName != pod.Name {
		return nil
	}
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
	next := have.DeepCopy()
	next.Spec = want.Spec
	next.Spec.ContainerID = have.Spec.ContainerID
	if have.Spec.Subnet != want.Spec.Subnet {
		delete(next.Labels, have.Spec.Subnet)
	}
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, want.Labels)
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

// says reports whether an IP object has all that is wanted of it.
func says(have, want *kubeovnv1.IP) bool {
	for label, value := range want.Labels {
		if got, ok := have.Labels[label]; !ok || got != value {
			return false
		}
	}
	spec := have.Spec
	spec.ContainerID = ""
	return equality.Semantic.DeepEqual(spec, want.Spec)
}

// ipOf is the IP object of a pod.
func ipOf(pod *corev1.Pod, port string, lease ipam.Lease) *kubeovnv1.IP {
	ip := &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: port, Labels: labelsOf(lease.Subnet, pod.Spec.NodeName)},
		Spec: kubeovnv1.IPSpec{
			PodName:    pod.Name,
			Namespace:  pod.Namespace,
			Subnet:     lease.Subnet,
			NodeName:   pod.Spec.NodeName,
			IPAddress:  ipfamily.Join(lease.Addresses),
			MACAddress: lease.MAC.String(),
		},
	}
	byFamily := map[ipfamily.Family]*string{ipfamily.IPv4: &ip.Spec.V4IPAddress, ipfamily.IPv6: &ip.Spec.V6IPAddress}
	for _, address := range lease.Addresses {
		*byFamily[ipfamily.Of(address)] = address.String()
	}
	return ip
}

// labelsOf leaves out names that are too long for labels.
func labelsOf(subnet, node string) map[string]string {
	labels := map[string]string{}
	if len(validation.IsValidLabelValue(subnet)) == 0 {
		labels[labelSubnet] = subnet
		labels[subnet] = ""
	}
	if len(validation.IsValidLabelValue(node)) == 0 {
		labels[labelNode] = node
	}
	return labels
}
