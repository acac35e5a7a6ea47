// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pod gives every pod on the pod network its logical switch port, its addresses and its IP object.
package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/selection"
	"github.com/kiln-net/kiln/internal/selection/podset"
)

// Reconciler keeps one logical switch port per pod on the pod network, and the pod's annotations true to it. An address is in use
// from before its port is committed until after the port is gone.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Namespaces *selection.Namespaces
	Pools      *selection.Pools
	Vips       *selection.Vips
	// Grants reports which VPCs, subnets and IPPools the pods of a namespace may name.
	Grants *selection.Grants
	// SecurePorts makes ports of subnets without portSecurity drop packets from addresses other than their own.
	SecurePorts bool
	// Networks finds hosts and subnets with the same addresses. If it is nil, allocations do not check for them.
	Networks *selection.Networks
	// Sets are the pod sets of policies. A change in them enqueues pods.
	Sets     *podset.Index
	Recorder events.EventRecorder
	// Gate is open once Restore has filled the allocator.
	Gate *k8s.Gate
	// KeepMachines has the ports of KubeVirt's virtual machines named by these, and keeps their addresses.
	KeepMachines bool
	// Workers is how many pods are worked on at a time.
	Workers int
	// RecordPace says when IP objects are written; the zero value means at once.
	RecordPace RecordPace

	ledger   ledger
	tenants  tenants
	journeys journeys
	waiting  waiting
	kept     kept
	machines machines
	missing  sync.Map // groups in the last warning of a pod, by its UID
	unshared sync.Map // addresses of port_vips in the last warning of a pod, by its UID
	invalid  sync.Map // requests in the last warning of a pod, by its UID
	unseen   sync.Map // keys of ports from before the start whose pods the cache did not have then
	records  backlog
	recorder *recorder
	pods     metadata.Getter // to patch: it looks nothing up for a request, and asks for the metadata only
	patching chan struct{}   // holds one value for each patch under way
}

// Reconcile brings one pod's port, lease and annotations up to date, or takes them away when the pod needs none.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pod, err := r.get(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get pod: %w", err)
	}
	var others []*corev1.Pod
	if r.machines.seen.Load() {
		var done bool
		if pod, others, done, err = r.machine(ctx, req.NamespacedName, pod); done || err != nil {
			return ctrl.Result{}, err
		}
	}
	if pod == nil {
		if late, err := r.isLate(ctx, req.NamespacedName); late || err != nil {
			return ctrl.Result{RequeueAfter: k8s.LateAfter()}, err
		}
	}
	if pod == nil || !r.needsPort(pod) {
		r.leaveSets(req.NamespacedName, pod)
		return ctrl.Result{}, r.vacate(ctx, req.NamespacedName)
	}
	a, err := r.attach(ctx, pod)
	var p *problem
	if errors.As(err, &p) {
		r.wait(pod, req.NamespacedName, p)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("find an address: %w", err)
	}
	r.waiting.remove(req.NamespacedName)
	in := a.port(others)
	var revision int
	in.Policy, revision = r.joinSets(pod)
	r.warnOfRequests(pod)
	r.warnOfGroups(ctx, pod)
	r.warnOfShared(pod, a.subnet)
	switch err := r.Northbound.Apply(ctx, translate.PodOwner(in.Namespace, in.Name), translate.Pod(in)); {
	case errors.Is(err, northbound.ErrWaiting):
		return ctrl.Result{}, nil // for the subnet's switch, or a set of the node or of a policy, which enqueue the pod
	case err != nil:
		if northbound.IsRefusal(err) {
			k8s.Warn(r.Recorder, pod, reasonNoAddress, fmt.Sprintf("the northbound database refuses the port of this pod: %v", err))
		}
		return ctrl.Result{}, fmt.Errorf("apply port: %w", err)
	}
	r.Sets.Applied(client.ObjectKeyFromObject(pod), revision)
	r.journeys.reached(pod.UID, legCommitted)
	if err := r.publish(ctx, pod, a.network(), specIn(a.subnet)); err != nil {
		return ctrl.Result{}, err
	}
	for _, other := range others {
		if err := r.publish(ctx, other, a.networkFor(other), specIn(a.subnet)); err != nil {
			return ctrl.Result{}, err
		}
	}
	if !r.recorder.isRecorded(ctx, a) {
		r.records.hold(req.NamespacedName)
	}
	return ctrl.Result{}, nil
}

// get returns the newest that is known of a pod, nil when there is none. It is not to be changed.
func (r *Reconciler) get(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := r.Client.Get(ctx, key, pod, client.UnsafeDisableDeepCopy); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return r.ledger.newest(pod), nil
}

// needsPort reports whether the pod lives on the pod network. A terminating pod keeps its port until it is gone and gets none anew.
func (r *Reconciler) needsPort(pod *corev1.Pod) bool {
	return onPodNetwork(pod) && (pod.DeletionTimestamp == nil || r.owns(pod))
}

// onPodNetwork reports whether a pod has a place on the pod network: it is on a node, its containers may run, and it has a network of
// its own.
func onPodNetwork(pod *corev1.Pod) bool {
	return !pod.Spec.HostNetwork && pod.Spec.NodeName != "" && !finished(pod)
}

// finished reports whether no container of the pod will ever run again.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// release takes a pod's port away and, once it is gone, frees its addresses.
func (r *Reconciler) release(ctx context.Context, key types.NamespacedName) error {
	r.waiting.remove(key)
	if err := r.detach(ctx, key); err != nil {
		return err
	}
	r.kept.forget(key)
	port := portOf(key)
	if lease, ok := r.Allocator.Lookup(port); ok && !ofNode(lease) {
		r.Allocator.Release(port)
	} else if ip, err := r.recorder.find(ctx, port); ip == nil || err != nil { // the lease may have gone with its subnet
		return err
	}
	r.records.Add(ctrl.Request{NamespacedName: key})
	return nil
}

// wait reports, once, what keeps a pod, or a reservation, from an address, and lets it be until that may have changed.
func (r *Reconciler) wait(o client.Object, key types.NamespacedName, p *problem) {
	r.journeys.end(o.GetUID())
	again, news := r.waiting.add(key, o.GetUID(), p)
	if again {
		r.waiting.Add(ctrl.Request{NamespacedName: key})
	}
	if news && !p.quiet {
		k8s.Warn(r.Recorder, o, reasonNoAddress, p.Error())
	}
}
