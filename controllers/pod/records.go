// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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

// recorder keeps one IP object per pod that holds a lease. It works beside the path of pods: nothing waits for it.
type recorder struct {
	client    client.Client
	allocator *ipam.Allocator
}

func (r *Reconciler) setupRecords(mgr ctrl.Manager) error {
	records := &recorder{client: r.Client, allocator: r.Allocator}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("ip").
		Watches(&kubeovnv1.IP{}, handler.EnqueueRequestsFromMapFunc(podOfIP)).
		WatchesRawSource(&r.records).
		WithOptions(controller.Options{MaxConcurrentReconciles: max(1, r.Workers/4)}).
		Complete(r.Gate.Reconciler(records))
	if err != nil {
		return fmt.Errorf("add the controller of IPs: %w", err)
	}
	return nil
}

// podOfIP maps the IP object of a pod's first network to the pod.
func podOfIP(_ context.Context, o client.Object) []reconcile.Request {
	ip := o.(*kubeovnv1.IP)
	if ip.Spec.Namespace == "" || ip.Name != translate.PodPort(ip.Spec.Namespace, ip.Spec.PodName) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: ip.Spec.Namespace, Name: ip.Spec.PodName}}}
}

// Reconcile brings the IP object of one pod up to date with the pod's lease.
func (r *recorder) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	port := translate.PodPort(req.Namespace, req.Name)
	lease, held := r.allocator.Lookup(port)
	if !held || ofNode(lease) {
		return ctrl.Result{}, r.remove(ctx, port, req.NamespacedName)
	}
	pod := &corev1.Pod{}
	if err := r.client.Get(ctx, req.NamespacedName, pod, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err) // it is about to release its lease
	}
	return ctrl.Result{}, r.record(ctx, ipOf(pod, port, lease))
}

func (r *recorder) remove(ctx context.Context, port string, pod types.NamespacedName) error {
	ip := &kubeovnv1.IP{}
	err := r.client.Get(ctx, client.ObjectKey{Name: port}, ip, client.UnsafeDisableDeepCopy)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if ip.Spec.Namespace != pod.Namespace || ip.Spec.PodName != pod.Name {
		return nil
	}
	err = r.client.Delete(ctx, ip, client.Preconditions{UID: &ip.UID, ResourceVersion: &ip.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete IP %s: %w", port, err)
	}
	return nil // one that has changed comes with the next event
}

func (r *recorder) record(ctx context.Context, want *kubeovnv1.IP) error {
	have := &kubeovnv1.IP{}
	err := r.client.Get(ctx, client.ObjectKeyFromObject(want), have, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get IP %s: %w", want.Name, err)
	}
	if err != nil {
		if err := r.client.Create(ctx, want, k8s.FieldOwner); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("create IP %s: %w", want.Name, err)
		}
		return nil // one that exists already comes with the next event
	}
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
	return client.IgnoreNotFound(k8s.Patch(ctx, r.client, have, next))
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
