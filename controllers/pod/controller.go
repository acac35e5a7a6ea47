// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pod gives every pod on the pod network its logical switch port, its addresses and its IP object.
package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/grants"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ippools"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/leases"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/vipusers"
)

// Reconciler keeps one logical switch port per pod on the pod network, and keeps the pod's annotations in line with it. An address is
// allocated before its port is committed and stays allocated until the port is removed.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Namespaces *lookup.Namespaces
	Pools      *ippools.Lookup
	Vips       *vipusers.Index
	// Grants reports which VPCs, subnets, IPPools, Vips and security groups the pods of a namespace may name.
	Grants *grants.Rules
	// SecurePorts makes ports of subnets without portSecurity drop packets from addresses other than their own.
	SecurePorts bool
	// Networks finds hosts and subnets with the same addresses. If it is nil, allocations do not check for them.
	Networks *lookup.Networks
	// Sets are the pod sets of policies. A change in them enqueues pods.
	Sets     *podset.Index
	Recorder events.EventRecorder
	// Gate is open once Restore has filled the allocator.
	Gate *reconciler.StartGate
	// KeepMachines names the ports of KubeVirt virtual machines after the machine, and retains their addresses.
	KeepMachines bool
	// MaxRetained replaces maxRetained if it is not zero.
	MaxRetained int
	// Workers is the number of concurrent reconciles of pods.
	Workers int
	// IPWritePace is the pace at which IP objects are written; the zero value writes them at once.
	IPWritePace ipobject.Pace

	podWrites   podWrites
	vpcPods     vpcPods
	latencies   latencies
	pending     pendingPods
	retained    leases.Retained
	machines    machines
	missing     reconciler.Reports[types.UID, string] // security groups that the pod names and is not in, by pod
	unshared    reconciler.Reports[types.UID, string] // addresses of port_vips that the subnet does not list, by pod
	invalid     reconciler.Reports[types.UID, string] // requests that are not valid, by pod
	cacheMisses sync.Map                              // keys of ports that existed at the start and whose pods were missing in the cache
	ipObjects   ipobject.Writer
	pods        metadata.Getter // for patches: it needs no REST mapping, and requests metadata only
	patching    chan struct{}   // holds one value for each patch in flight
}

// Reconcile brings one pod's port, lease and annotations up to date, or removes port and lease if the pod needs none.
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
		if exists, err := r.existsLive(ctx, req.NamespacedName); exists || err != nil {
			return ctrl.Result{RequeueAfter: reconciler.LateAfter()}, err
		}
	}
	if pod == nil || !r.needsPort(pod) {
		r.leaveSets(req.NamespacedName, pod)
		waits, err := r.onPodGone(ctx, req.NamespacedName)
		if err == nil && !waits {
			r.pending.remove(req.NamespacedName)
		}
		return ctrl.Result{}, err
	}
	a, err := r.attach(ctx, pod)
	var p *problem
	if errors.As(err, &p) {
		r.wait(ctx, pod, req.NamespacedName, p)
		return ctrl.Result{}, r.notReserved(ctx, req.NamespacedName, p)
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("find an address: %w", err)
	}
	r.pending.remove(req.NamespacedName)
	groups, err := r.Grants.Groups(ctx, pod)
	if err != nil {
		return ctrl.Result{}, err
	}
	a.groups = groups.In
	in := a.port(others)
	var revision int
	in.Policy, revision = r.joinSets(pod, &groups)
	r.warnOfRequests(pod)
	r.warnOfGroups(pod, &groups)
	r.warnOfShared(pod, a.subnet)
	switch err := r.Northbound.Apply(ctx, translate.PodOwner(in.Namespace, in.Name), translate.Pod(in)); {
	case errors.Is(err, northbound.ErrWaiting):
		return ctrl.Result{}, nil // for the subnet's switch, or a set of the node or of a policy: each requeues the pod
	case err != nil:
		if northbound.IsRefusal(err) {
			k8s.Warn(r.Recorder, pod, reasonNoAddress, fmt.Sprintf("the northbound database refuses the port of this pod: %v", err))
		}
		return ctrl.Result{}, fmt.Errorf("apply port: %w", err)
	}
	r.Sets.Applied(client.ObjectKeyFromObject(pod), revision)
	r.latencies.reached(pod.UID, stageCommitted)
	if err := r.publish(ctx, pod, a.network(), specIn(a.subnet)); err != nil {
		return ctrl.Result{}, err
	}
	for _, other := range others {
		if err := r.publish(ctx, other, a.networkFor(other), specIn(a.subnet)); err != nil {
			return ctrl.Result{}, err
		}
	}
	r.ipObjects.Update(ctx, a.pod, a.key, a.lease)
	return ctrl.Result{}, nil
}

// get returns the newest known state of a pod, nil if it does not exist. The caller must not change it.
func (r *Reconciler) get(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := r.Client.Get(ctx, key, pod, client.UnsafeDisableDeepCopy); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return r.podWrites.newest(pod), nil
}

// needsPort reports whether the pod needs a port. A terminating pod keeps its port until it is deleted, but gets no new one.
func (r *Reconciler) needsPort(pod *corev1.Pod) bool {
	return onPodNetwork(pod) && (pod.DeletionTimestamp == nil || r.owns(pod))
}

// onPodNetwork reports whether a pod uses the pod network: it is scheduled, not finished, and not on the host network.
func onPodNetwork(pod *corev1.Pod) bool {
	return !pod.Spec.HostNetwork && pod.Spec.NodeName != "" && !finished(pod)
}

// finished reports whether no container of the pod will run again.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// freeLease removes a pod's port, and then frees its addresses. The reason is for the log.
func (r *Reconciler) freeLease(ctx context.Context, key types.NamespacedName, reason string) error {
	if err := r.removePort(ctx, key); err != nil {
		return err
	}
	r.retained.Forget(key)
	port := leases.PortOf(key)
	if lease, ok := r.Allocator.Lookup(port); ok && !leases.OfNode(lease) {
		leases.Release(logr.FromContextOrDiscard(ctx), r.Allocator, port, reason)
	} else if ip, err := r.ipObjects.Find(ctx, port); ip == nil || err != nil { // DeleteSubnet may have removed the lease
		return err
	}
	r.ipObjects.Check(key)
	return nil
}

// wait puts a pod, or a reservation, on the waiting list until the problem may have changed, and reports the problem once.
func (r *Reconciler) wait(ctx context.Context, o client.Object, key types.NamespacedName, p *problem) {
	r.latencies.end(o.GetUID())
	again, news := r.pending.add(key, o.GetUID(), p)
	if again {
		r.pending.AddKey(key)
	}
	switch {
	case !news:
	case p.quiet:
		logr.FromContextOrDiscard(ctx).V(1).Info("a pod waits", "reason", p.Error())
	default:
		k8s.Warn(r.Recorder, o, reasonNoAddress, p.Error())
	}
}
