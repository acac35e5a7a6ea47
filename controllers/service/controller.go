// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package service turns Services into load balancers.
package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/serving/budget"
	"github.com/kiln-net/kiln/internal/svc"
)

// Indexes of the cache.
const (
	// indexService finds EndpointSlices by their Service.
	indexService = "endpointslice.service"
	// indexVpc finds Services by the custom VPC that their annotations name.
	indexVpc = "service.vpc"
)

// Reconciler writes the load balancers of each Service.
type Reconciler struct {
	Client client.Client
	// Live reads pods past the cache.
	Live       client.Reader
	Services   *lookup.Services
	Grants     *grants.Rules
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Networks   *lookup.Networks
	Recorder   events.EventRecorder
	Gate       *reconciler.StartGate
	// ByNodes: OVN gets no load balancers (v1alpha1.PodAccessNode).
	ByNodes bool
	// Workers is how many Services are reconciled at a time.
	Workers int

	// UnnamedDelay is how long a Service has ports that none of its pods has before an event reports them; a minute if it is 0.
	UnnamedDelay time.Duration

	budget   budget.Budget
	requests k8s.RequestSource
	unnamed  unnamed
	reported reconciler.Reports[types.NamespacedName, warnings]
	// awaiting has the Services with ports that wait for former translations of an OvnEip.
	awaiting interest.Index[types.NamespacedName, string]
}

// SetupWithManager registers the reconciler. Its sources are the Service, the EndpointSlices of the Service, other Services at its addresses,
// its VPC with its external ports, the OvnEip with its addresses and other users of this OvnEip, and drift of its rows.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	measured.Store(&r.budget)
	exportMetrics()
	err := mgr.GetFieldIndexer().IndexField(ctx, &discoveryv1.EndpointSlice{}, indexService, func(o client.Object) []string {
		return []string{o.GetLabels()[discoveryv1.LabelServiceName]}
	})
	if err != nil {
		return fmt.Errorf("index EndpointSlices by Service: %w", err)
	}
	err = mgr.GetFieldIndexer().IndexField(ctx, &corev1.Service{}, indexVpc, func(o client.Object) []string {
		if vpc := svc.Vpc(o.(*corev1.Service)); vpc != kubeovnv1.DefaultVpc {
			return []string{vpc}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index Services by VPC: %w", err)
	}
	b, err := r.watchEips(ctx, ctrl.NewControllerManagedBy(mgr), mgr.GetFieldIndexer())
	if err != nil {
		return err
	}
	return b.
		For(&corev1.Service{}).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(r.sharers)).
		Watches(&kubeovnv1.Vpc{}, handler.EnqueueRequestsFromMapFunc(r.ofVpc), builder.WithPredicates(k8s.Changed(viewVpc))).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(serviceOf)).
		WatchesRawSource(&r.requests).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindService)).
		WatchesRawSource(reconciler.Orphans(mgr.GetCache(), r.Gate, &corev1.Service{}, reconciler.OwnersOf(r.Northbound, translate.KindService))).
		WithOptions(r.Gate.Workers(r.Workers)).
		Complete(r.Gate.Reconciler(r))
}

// serviceOf maps an EndpointSlice to its Service.
func serviceOf(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[discoveryv1.LabelServiceName]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

// Reconcile writes the load balancers of one Service.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var out outside
	r.awaiting.Set(req.NamespacedName)
	rows, err := r.rows(ctx, req.NamespacedName, &out)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("gather inputs of Service: %w", err)
	}
	owner := translate.ServiceOwner(req.Namespace, req.Name)
	err = r.Northbound.Apply(ctx, owner, rows)
	waiting := errors.Is(err, northbound.ErrWaiting)
	if waiting && r.leaves(req.NamespacedName, &out) { // the wait for another VPC would keep an address that the Service may no longer have
		if err = r.Northbound.Apply(ctx, owner, nil); err == nil {
			err = r.Northbound.Apply(ctx, owner, rows)
		}
	}
	if err = k8s.Unless(err, northbound.ErrWaiting); err != nil {
		return ctrl.Result{}, fmt.Errorf("apply load balancers: %w", err)
	}
	return ctrl.Result{}, r.settle(ctx, req.NamespacedName, &out, waiting)
}

// rows returns the load balancers of a Service; none after the Service is deleted.
func (r *Reconciler) rows(ctx context.Context, key types.NamespacedName, out *outside) ([]desired.Row, error) {
	service := &corev1.Service{}
	if err := r.Client.Get(ctx, key, service, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.reported.Forget(key)
			r.unnamed.forget(key)
			r.spend(budget.Object{Key: key})
		}
		return nil, client.IgnoreNotFound(err)
	}
	if svc.ByOvnEip(service) {
		out.service = service
	}
	in := translate.ServiceInputs{Service: service}
	var err error
	if in.Slices, err = r.slicesOf(ctx, key); err != nil {
		return nil, err
	}
	if in.Vpc, err = r.vpcOf(ctx, service, in.Slices); err != nil {
		return nil, err
	}
	r.reportUnnamed(service, in.Slices)
	if r.ByNodes {
		out.refuse(ReasonNotServed, "the Service is not served: class %s needs services.podAccess OVN of the OVNCluster", kubeovnv1.ClassOvnEip)
		r.warn(ctx, service, warnings{byNodes: in.Vpc != kubeovnv1.DefaultVpc})
		return nil, nil
	}
	refusal := r.refusal(service, in.Vpc, in.Slices)
	if refusal.verdict != budget.Within {
		out.refuse(ReasonTooLarge, "the Service, or the Services of its namespace, exceed a bound of their cost: see event %s", ReasonTooLarge)
		r.warn(ctx, service, warnings{refusal: refusal})
		return nil, nil
	}
	missing, err := r.missingVpc(ctx, service)
	if err != nil {
		return nil, err
	}
	if err := r.external(ctx, &in, out); err != nil {
		return nil, err
	}
	fronts, taken, err := r.taken(ctx, service, in.Vpc, in.Addresses)
	if err != nil {
		return nil, err
	}
	in.Taken = append(in.Taken, fronts...)
	if service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		in.Before = northbound.Of[nb.LoadBalancer](r.Northbound, translate.ServiceOwner(key.Namespace, key.Name))
	}
	rows := translate.Service(in)
	denied := ""
	if len(rows) > 0 {
		if denied, err = r.Grants.Vpc(ctx, key.Namespace, in.Vpc); err != nil {
			return nil, err
		}
	}
	r.warn(ctx, service, warnings{missingVpc: missing, denied: denied, taken: taken})
	if denied != "" {
		return nil, nil
	}
	return rows, nil
}

// headless reports whether an EndpointSlice is labelled as one of a headless Service. Agents do not serve it (package agent/services).
func headless(s *discoveryv1.EndpointSlice) bool {
	_, is := s.Labels[corev1.IsHeadlessService]
	return is
}

// slicesOf returns the EndpointSlices of a Service, sorted by name, without those that agents do not serve.
func (r *Reconciler) slicesOf(ctx context.Context, key types.NamespacedName) ([]*discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	err := r.Client.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingFields{indexService: key.Name},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list EndpointSlices: %w", err)
	}
	var all []*discoveryv1.EndpointSlice
	for i := range list.Items {
		if !headless(&list.Items[i]) {
			all = append(all, &list.Items[i])
		}
	}
	slices.SortFunc(all, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Reasons of events.
const (
	// ReasonVpcMissing: the Service is not served, because its VPC does not exist.
	ReasonVpcMissing = "VpcMissing"
	// ReasonVpcNotAllowed: the Service is not served, because its VPC does not list its namespace.
	ReasonVpcNotAllowed = "VpcNotAllowed"
	// ReasonAddressInUse: another Service has an address and port that the Service requests.
	ReasonAddressInUse = "AddressInUse"
	// ReasonTooLarge: the Service is not served, because it exceeds a bound of the cost of Services.
	ReasonTooLarge = "ServiceTooLarge"
	// ReasonNotServed: the Service of a custom VPC is not served, because OVN has no load balancers.
	ReasonNotServed = "ServiceNotServed"
)

// warn sends an event for each warning that the previous reconciliation did not have. If the refusal has changed, it enqueues the Services at
// the same addresses: they get the addresses of a refused Service, and lose them when it is served again.
func (r *Reconciler) warn(ctx context.Context, s *corev1.Service, now warnings) {
	text := now.refusal.text
	now.refusal.text = "" // its numbers change with each endpoint, and are no reason for a new event
	before := r.reported.Swap(client.ObjectKeyFromObject(s), now)
	missingVpc, denied, taken := now.missingVpc, now.denied, now.taken
	if text != "" && (now.refusal != before.refusal || before.restored) {
		k8s.Warn(r.Recorder, s, ReasonTooLarge, text)
	}
	if now.refusal != before.refusal {
		for _, other := range r.sharers(ctx, s) {
			r.requests.AddKey(other.NamespacedName)
		}
	}
	if missingVpc != before.missingVpc && missingVpc != "" {
		k8s.Warn(r.Recorder, s, ReasonVpcMissing, fmt.Sprintf("annotation %s names Vpc %s, which does not exist: create it, or name another one",
			kubeovnv1.AnnotationLogicalRouter.Key(), missingVpc))
	}
	if denied != before.denied && denied != "" && missingVpc == "" {
		k8s.Warn(r.Recorder, s, ReasonVpcNotAllowed, "the Service is not served: "+denied)
	}
	if now.byNodes && !before.byNodes {
		k8s.Warn(r.Recorder, s, ReasonNotServed, "the Service is not served: its endpoints are in a custom VPC, which needs services.podAccess OVN of the OVNCluster")
	}
	if taken != before.taken && taken != "" {
		k8s.Warn(r.Recorder, s, ReasonAddressInUse, taken)
	}
}

// warnings are the settings of a Service that Kiln does not apply and reports in events. denied and taken are messages.
type warnings struct {
	missingVpc string
	denied     string
	taken      string
	refusal    refusal
	// byNodes is set for a Service of a custom VPC that OVN would serve.
	byNodes bool
	// restored is set if no event has reported the refusal since the start of the process.
	restored bool
}
