// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package loadbalancer assigns addresses of the OVNCluster's pools to Services of type LoadBalancer.
package loadbalancer

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/svc"
)

// Reconciler assigns addresses. It reconciles one Service at a time.
type Reconciler struct {
	Client       client.Client
	Pools        *Pools
	Networks     *lookup.Networks
	Services     *lookup.Services
	ServiceCIDRs svc.CIDRs
	Recorder     events.EventRecorder
	Gate         *reconciler.StartGate
	// UnservedDelay is the time after which a Service of type LoadBalancer without an address has an event; a minute if it is 0.
	UnservedDelay time.Duration

	unserved reconciler.Reports[types.NamespacedName, string]
	holders  *holders
	requests k8s.RequestSource
}

// Restore records the addresses in the status of Services. Call it before the first reconciliation. Of two Services with one address, the older one
// has it.
func (r *Reconciler) Restore(ctx context.Context) error {
	services, err := r.withClass(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(services, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, s := range services {
		if r.concerns(s) {
			r.holders.set(client.ObjectKeyFromObject(s), slices.DeleteFunc(r.Pools.of(*s.Spec.LoadBalancerClass).assigned(s), func(a netip.Addr) bool { return r.holders.of(a).Name != "" }))
		}
	}
	return nil
}

// withClass returns the Services that have a class, or the condition of this controller.
func (r *Reconciler) withClass(ctx context.Context) ([]*corev1.Service, error) {
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list, client.MatchingFields{indexClass: hasClass}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Services with a class: %w", err)
	}
	services := make([]*corev1.Service, 0, len(list.Items))
	for i := range list.Items {
		services = append(services, &list.Items[i])
	}
	return services, nil
}

// concerns reports whether the controller has assigned addresses to a Service, or has to.
func (r *Reconciler) concerns(s *corev1.Service) bool {
	return balances(s) && !svc.ByOvnEip(s) && (r.Pools.of(*s.Spec.LoadBalancerClass) != nil || marked(s))
}

func balances(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass != nil
}

func marked(s *corev1.Service) bool {
	return apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionAddressAssigned) != nil
}

// assigned returns the addresses in the status of a Service. If an earlier controller of the class wrote them, it returns only addresses that
// the pool, which may be nil, could have assigned.
func (p *pool) assigned(s *corev1.Service) []netip.Addr {
	var texts []string
	for i := range s.Status.LoadBalancer.Ingress {
		texts = append(texts, s.Status.LoadBalancer.Ingress[i].IP)
	}
	return slices.DeleteFunc(ipfamily.ValidAddrs(texts...), func(a netip.Addr) bool {
		return !marked(s) && (p == nil || !p.contains(a) || !p.spec.Permits(s.Namespace))
	})
}

// Reconcile assigns the addresses of one Service, or records that its addresses are free.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.NamespacedName == everyService {
		return ctrl.Result{}, r.enqueueAll(ctx)
	}
	s, err := k8s.Find[corev1.Service](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get Service: %w", err)
	}
	if s == nil || !r.concerns(s) {
		r.release(req.NamespacedName)
		if s != nil && svc.ByOvnEip(s) { // its addresses and its condition are of the controller that writes the rows of Services
			return ctrl.Result{}, nil
		}
		if s == nil || !marked(s) {
			return r.reportUnserved(req.NamespacedName, s), nil
		}
		base := s.DeepCopy()
		apimeta.RemoveStatusCondition(&s.Status.Conditions, kubeovnv1.ConditionAddressAssigned)
		return ctrl.Result{}, k8s.PatchStatus(ctx, r.Client, base, s)
	}
	r.unserved.Forget(req.NamespacedName)
	r.holders.waits(req.NamespacedName, true) // before the search: an address that becomes free afterwards enqueues the Service
	result, err := r.assign(ctx, s)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("assign addresses to Service: %w", err)
	}
	r.holders.waits(req.NamespacedName, waits(result))
	r.hold(req.NamespacedName, result.Addresses)
	return ctrl.Result{}, result.Patch(ctx, r.Client, r.Recorder, s)
}

// ReasonNoPool is the event of a Service of type LoadBalancer that no pool serves.
const ReasonNoPool = "NoPool"

// unservedDelay is the default of UnservedDelay. Another controller of load balancers has this time to show that it serves the Service.
const unservedDelay = time.Minute

// reportUnserved reports an event on a Service of type LoadBalancer that no pool serves, and that shows no trace of another controller: an address, a
// condition or a finalizer. s is nil if the Service does not exist.
func (r *Reconciler) reportUnserved(key types.NamespacedName, s *corev1.Service) ctrl.Result {
	if s == nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil ||
		len(s.Status.LoadBalancer.Ingress)+len(s.Status.Conditions)+len(s.Finalizers) > 0 {
		r.unserved.Forget(key)
		return ctrl.Result{}
	}
	if left := cmp.Or(r.UnservedDelay, unservedDelay) - time.Since(s.CreationTimestamp.Time); left > 0 {
		return ctrl.Result{RequeueAfter: left}
	}
	message := "the Service gets no address: it has no loadBalancerClass, and Kiln serves classes of pools, and " + kubeovnv1.ClassOvnEip + ", only: "
	if class := s.Spec.LoadBalancerClass; class != nil {
		message = fmt.Sprintf("the Service gets no address: no pool of the OVNCluster has the class %s: ", *class)
	}
	message += "create the Service again with a class of spec.services.loadBalancerPools, or install a controller that serves it"
	if r.unserved.New(key, message) {
		k8s.Warn(r.Recorder, s, ReasonNoPool, message)
	}
	return ctrl.Result{}
}

func (r *Reconciler) release(key types.NamespacedName) {
	r.holders.waits(key, false)
	r.hold(key, nil)
}

// hold records the addresses of a Service, and enqueues those that wait for the ones that it has no more.
func (r *Reconciler) hold(key types.NamespacedName, addresses []netip.Addr) {
	r.enqueue(r.holders.set(key, addresses))
}

func (r *Reconciler) enqueue(services []types.NamespacedName) {
	for _, key := range services {
		r.requests.AddKey(key)
	}
}

// enqueueAll enqueues all Services with a class after a change of the pools.
func (r *Reconciler) enqueueAll(ctx context.Context) error {
	r.holders.freed()
	services, err := r.withClass(ctx)
	if err != nil {
		return err
	}
	for _, s := range services {
		r.requests.AddKey(client.ObjectKeyFromObject(s))
	}
	return nil
}
