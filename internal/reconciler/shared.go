// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ippools"
	"github.com/kiln-net/kiln/internal/address/vipusers"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/keylock"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/podset"
)

// Shared are the parts that several reconcilers of a process use.
type Shared struct {
	Client     client.Client // the manager's client
	Live       client.Reader // reads from the API server, not from the cache
	Recorder   events.EventRecorder
	Engine     *northbound.Engine
	Allocator  *ipam.Allocator
	Namespaces *lookup.Namespaces
	Networks   *lookup.Networks
	Pools      *ippools.Lookup
	Grants     *grants.Rules
	Vips       *vipusers.Index
	Services   *lookup.Services
	Sets       *podset.Index
	Gate       *StartGate
	// WaysOut locks a VPC while the owner of its default routes is decided: its external ports or its gateway router.
	WaysOut *keylock.Locks
}

// NewShared returns the parts for a manager, with an empty allocator and a closed gate. It adds the indexes that lookups need.
// openMembership lets every namespace use custom VPCs, private and external subnets, IPPools with namespaces, security groups, Vips and OvnEips. The allocator
// follows the number of ports that a switch can have.
func NewShared(ctx context.Context, mgr ctrl.Manager, engine *northbound.Engine, openMembership bool) (*Shared, error) {
	c, indexer := mgr.GetClient(), mgr.GetFieldIndexer()
	s := &Shared{
		Client: c, Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder(k8s.EventRecorder), Engine: engine, Allocator: ipam.New(), Sets: podset.New(),
		Gate: NewStartGate(), WaysOut: &keylock.Locks{},
	}
	var err error
	if s.Namespaces, err = lookup.NewNamespaces(ctx, indexer, c); err != nil {
		return nil, err
	}
	if s.Networks, err = lookup.NewNetworks(ctx, indexer, c); err != nil {
		return nil, err
	}
	if s.Pools, err = ippools.NewLookup(ctx, indexer, c); err != nil {
		return nil, err
	}
	if s.Vips, err = vipusers.New(ctx, mgr.GetCache(), c); err != nil {
		return nil, err
	}
	if s.Services, err = lookup.NewServices(ctx, indexer, c); err != nil {
		return nil, err
	}
	s.Grants = grants.NewRules(c, s.Namespaces, s.Networks, openMembership)
	engine.Subscribe(northbound.KindCapacity, func(desired.Owner) { s.Allocator.LimitPorts(engine.Capacity().Ports) })
	s.Allocator.LimitPorts(engine.Capacity().Ports)
	return s, nil
}
