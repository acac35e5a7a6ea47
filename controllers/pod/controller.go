// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pod gives every pod on the pod network its logical switch port, its addresses and its IP object.
package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/controllers/pod/retention"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ippools"
	"github.com/kiln-net/kiln/internal/address/vipusers"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/keylock"
	"github.com/kiln-net/kiln/internal/limits"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
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
	// Limits are the settings of the OVNCluster about limits of pods; nil for none.
	Limits *limits.Cluster
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
	// MaxRetained replaces the number of addresses that a namespace may retain for absent pods if it is not zero.
	MaxRetained int
	// Workers is the number of concurrent reconciles of pods.
	Workers int
	// IPWritePace is the pace at which IP objects are written; the zero value writes them at once.
	IPWritePace ipobject.Pace

	addresses   address.Chooser
	keeper      retention.Keeper
	ipObjects   ipobject.Writer
	ports       ports
	inUse       keylock.Locks // by name of port
	podWrites   podWrites
	latencies   latencies
	pending     pendingPorts
	machineSeen atomic.Bool // true after the first pod that runs a virtual machine
	warner      warner
	cacheMisses sync.Map        // keys of ports that existed at the start and whose pods were missing in the cache
	pods        metadata.Getter // for patches: it needs no REST mapping, and requests metadata only
	patching    chan struct{}   // holds one value for each patch in flight
}

// Reconcile brings the port, the allocation and the annotations of one pod up to date, or removes port and allocation if no pod needs them.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s, done, err := r.subjectOf(ctx, req.NamespacedName)
	if done || err != nil {
		return ctrl.Result{}, err
	}
	unlock, err := r.inUse.Lock(ctx, s.port.Name) // a reservation has another key than the pod that may get its port
	if err != nil {
		return ctrl.Result{}, err
	}
	defer unlock()
	if s.port.Owner == "" && r.redirectToOwner(s.port.Name) {
		return ctrl.Result{}, nil
	}
	if r.awaitsName(s) {
		return ctrl.Result{}, nil
	}
	if s.pod == nil {
		if exists, err := r.existsLive(ctx, req.NamespacedName); exists || err != nil {
			return ctrl.Result{RequeueAfter: k8s.Periodic(reconciler.LateAfter)}, err
		}
	}
	// A terminating pod keeps its port until it is deleted, but gets no new one.
	if s.pod == nil || !allocations.OnPodNetwork(s.pod) || s.pod.DeletionTimestamp != nil && !r.owns(s) {
		return ctrl.Result{}, r.disconnect(ctx, s)
	}
	c, err := r.connect(ctx, s)
	var p *address.Problem
	if errors.As(err, &p) {
		r.Sets.Stall(podset.KeyOf(s.pod, s.port.Provider))
		r.wait(ctx, s.pod, s.port, p)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("find an address: %w", err)
	}
	r.pending.remove(s.port.Name)
	rows, revision := r.rows(c)
	r.warner.warn(ctx, c, always)
	switch err := r.Northbound.Apply(ctx, translate.PodOwner(s.port), rows); {
	case errors.Is(err, northbound.ErrWaiting):
		return ctrl.Result{}, nil // for the subnet's switch, or a set of the node or of a policy: each requeues the pod
	case err != nil:
		if northbound.IsRefusal(err) {
			r.Sets.Stall(podset.KeyOf(s.pod, s.port.Provider))
			k8s.Warn(r.Recorder, s.pod, reasonNoAddress, fmt.Sprintf("the northbound database refuses the port of this pod: %v", err))
		}
		return ctrl.Result{}, fmt.Errorf("apply port: %w", err)
	}
	r.Sets.Applied(podset.KeyOf(s.pod, s.port.Provider), revision)
	r.latencies.reached(s.pod.UID, stageCommitted)
	return ctrl.Result{}, r.publish(ctx, c)
}

// disconnect removes the port of a pod that was deleted or needs none, and frees its addresses unless they are retained.
func (r *Reconciler) disconnect(ctx context.Context, s *subject) error {
	r.leaveSets(podset.Key{NamespacedName: s.port.Key(), Provider: s.port.Provider}, s.pod)
	waits, err := r.release(ctx, s.port)
	if err == nil && !waits {
		r.pending.remove(s.port.Name)
	}
	if err == nil && !waits && s.port.Owner != "" {
		for _, other := range r.ports.drop(s.port) {
			r.pending.AddKey(other.Key())
		}
	}
	return err
}

// release removes a port that no pod has, and frees its addresses unless they are retained. waits is true if these are an IP object's reservation that cannot
// get its addresses yet and is on the waiting list.
func (r *Reconciler) release(ctx context.Context, port kubeovnv1.Port) (waits bool, err error) {
	decision, err := r.keeper.Gone(ctx, port)
	if err != nil || decision.State == retention.Held {
		return false, err
	}
	if err := r.removePort(ctx, port); err != nil {
		return false, err
	}
	ip, err := r.keeper.Enter(ctx, port, decision)
	var p *address.Problem
	if errors.As(err, &p) {
		r.wait(ctx, ip, port, p)
		return true, nil
	}
	if known, is := r.ports.named(port.Name); is && port.Owner == "" { // a pod got the name meanwhile
		r.pending.AddKey(known.Key())
	}
	return false, err
}

// removePort removes a port. It does not free the allocation.
func (r *Reconciler) removePort(ctx context.Context, port kubeovnv1.Port) error {
	if port.Owner != "" {
		if err := r.Northbound.Apply(ctx, translate.PodOwner(port), nil); err != nil {
			return fmt.Errorf("remove port: %w", err)
		}
		r.podWrites.forget(port.Key())
		r.ports.set(port, func(h *holding) { h.pod = "" })
	}
	r.ipObjects.Drop(port.Name)
	r.addresses.Drop(port.Name)
	return nil
}

// wait puts the port of a pod, or of a reservation, on the waiting list until the problem may have changed, and reports the problem once.
func (r *Reconciler) wait(ctx context.Context, o client.Object, port kubeovnv1.Port, p *address.Problem) {
	r.latencies.end(o.GetUID())
	again, news := r.pending.add(port, o.GetUID(), p)
	if again {
		r.pending.AddKey(port.Key())
	}
	if !news {
		return
	}
	r.ipObjects.Check(port.Name) // a reservation's condition has the problem
	if p.Quiet {
		logr.FromContextOrDiscard(ctx).V(1).Info("a pod waits", "reason", p.Error())
	} else {
		k8s.Warn(r.Recorder, o, reasonNoAddress, p.Error())
	}
}
