// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ippool applies IPPools to the allocator, publishes the pools' addresses, and reports their use.
package ippool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ippools"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// Reconciler sets the pools of a subnet in the allocator (ippools.Divide). While the spec of a pool is invalid, its last valid spec stays applied.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Pools      *ippools.Lookup
	Recorder   events.EventRecorder
	Gate       *reconciler.StartGate
	// UsageDelay is the delay between a change in a subnet's use and the status update of its pools; zero means 1 s.
	UsageDelay time.Duration

	// subnets maps the name of each known pool to its subnet, to free the pool after its deletion.
	subnets sync.Map
}

// Reconcile applies one pool, and with it all pools of its subnet.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pool, err := k8s.Find[kubeovnv1.IPPool](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get IPPool: %w", err)
	}
	if pool == nil {
		return ctrl.Result{}, r.forget(ctx, req.Name)
	}
	r.subnets.Store(pool.Name, pool.Spec.Subnet)
	if pool.DeletionTimestamp == nil {
		if err := k8s.AddFinalizer(ctx, r.Client, pool); err != nil {
			return ctrl.Result{}, err
		}
	} else if r.unused(pool) {
		return ctrl.Result{}, r.end(ctx, pool)
	}
	var done result
	done.problem, done.err = r.divide(ctx, pool.Spec.Subnet, pool.Name, "")
	done.valid = done.problem == nil && k8s.Unless(done.err, errWaiting) == nil
	switch last := pool.Status.ValidatedSpec; {
	case done.err != nil:
	case done.valid:
		done.unnamed, done.err = r.publish(ctx, pool)
	case done.problem.Reason == validation.ReasonSubnetMissing: // no address of the pool exists
		done.err = r.apply(ctx, pool.Name, nil)
	case last != nil:
		retained := *pool
		retained.Spec = *last
		done.unnamed, done.err = r.publish(ctx, &retained)
	}
	return ctrl.Result{}, errors.Join(k8s.Unless(done.err, errWaiting), r.patchStatus(ctx, pool, done))
}

// result is the outcome of applying a pool.
type result struct {
	// problem is the reason why the spec is invalid, unnamed the reason why its address set is not published; nil if there is none.
	problem, unnamed *validation.Problem
	// valid: the allocator has the addresses of the current spec, or gets them with the subnet.
	valid bool
	err   error
}

// publish applies the pool's address set, if the pool requests one. It returns a problem if an older pool has the name of the set.
func (r *Reconciler) publish(ctx context.Context, pool *kubeovnv1.IPPool) (*validation.Problem, error) {
	rows := translate.IPPool(pool)
	if len(rows) == 0 {
		return nil, r.apply(ctx, pool.Name, nil)
	}
	namesakes, err := r.Pools.OfSet(ctx, translate.PoolSet(pool.Name))
	if err != nil {
		return nil, err
	}
	if len(namesakes) > 0 && lookup.Precedes(namesakes[0], pool) {
		older := namesakes[0]
		return validation.SameSet(translate.PoolSet(pool.Name), older.Name), r.apply(ctx, pool.Name, nil)
	}
	if len(namesakes) > 0 && !slices.ContainsFunc(namesakes, func(p *kubeovnv1.IPPool) bool { return p.Name == pool.Name }) {
		// It withdraws its set once the status has the spec of this pool, whose event enqueues both (siblings).
		return nil, fmt.Errorf("%w for the younger IPPool %s to give up address set %s", errWaiting, namesakes[0].Name, translate.PoolSet(pool.Name))
	}
	return nil, r.apply(ctx, pool.Name, rows)
}

// errWaiting means that the allocator does not have the subnet yet. The subnet's events requeue the pool.
var errWaiting = errors.New("waiting")

// unused reports whether no port holds an address of a pool.
func (r *Reconciler) unused(pool *kubeovnv1.IPPool) bool {
	usage := r.Allocator.PoolUsage(pool.Spec.Subnet, pool.Name)
	return usage.IPv4().Using == 0 && usage.IPv6().Using == 0
}

// end returns a pool's addresses to its subnet, and removes the finalizer.
func (r *Reconciler) end(ctx context.Context, pool *kubeovnv1.IPPool) error {
	if err := r.forget(ctx, pool.Name); err != nil {
		return err
	}
	return k8s.RemoveFinalizer(ctx, r.Client, pool)
}

// forget returns the addresses of a deleted pool to its subnet, even if the pool was deleted without its finalizer.
func (r *Reconciler) forget(ctx context.Context, name string) error {
	if subnet, seen := r.subnets.Load(name); seen {
		if _, err := r.divide(ctx, subnet.(string), name, name); k8s.Unless(err, errWaiting) != nil {
			return err
		}
	}
	if err := r.apply(ctx, name, nil); err != nil {
		return err
	}
	r.subnets.Delete(name)
	return nil
}

// divide sets the subnet's pools in the allocator, except the pool named by ends. It returns the problem of the pool with the given name.
func (r *Reconciler) divide(ctx context.Context, subnet, name, ends string) (*validation.Problem, error) {
	s, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: subnet}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get subnet %s: %w", subnet, err)
	}
	if s == nil {
		return validation.Problemf(validation.ReasonSubnetMissing, "subnet %s does not exist: create it, or a pool of another one", subnet), nil
	}
	all, err := r.Pools.OfSubnet(ctx, subnet)
	if err != nil {
		return nil, err
	}
	pools := make([]*kubeovnv1.IPPool, 0, len(all))
	for _, pool := range all {
		if pool.Name != ends {
			pools = append(pools, pool)
		}
	}
	inForce, problems := ippools.Divide(s, pools)
	divided := make([]ipam.Pool, 0, len(inForce))
	for _, p := range inForce {
		divided = append(divided, ipam.Pool(p))
	}
	if err := r.Allocator.SetPools(subnet, divided); errors.Is(err, ipam.ErrNoSubnet) {
		return problems[name], fmt.Errorf("%w for subnet %s to be applied", errWaiting, subnet)
	} else if err != nil {
		return problems[name], fmt.Errorf("set addresses apart: %w", err)
	}
	return problems[name], nil
}

func (r *Reconciler) apply(ctx context.Context, name string, rows []desired.Row) error {
	if err := r.Northbound.Apply(ctx, translate.IPPoolOwner(name), rows); err != nil {
		return fmt.Errorf("apply the address set: %w", err)
	}
	return nil
}
