// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/gateway"
	"github.com/kiln-net/kiln/controllers/ippool"
	"github.com/kiln-net/kiln/controllers/lbrule"
	"github.com/kiln-net/kiln/controllers/namespace"
	"github.com/kiln-net/kiln/controllers/node"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/controllers/service"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/controllers/vip"
	"github.com/kiln-net/kiln/controllers/vpc"
	"github.com/kiln-net/kiln/controllers/vpcgateway"
	"github.com/kiln-net/kiln/internal/grants"
	"github.com/kiln-net/kiln/internal/ippools"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/vipusers"
)

// controllerInputs are the indexes of the cache that several controllers share.
type controllerInputs struct {
	namespaces   *lookup.Namespaces
	networks     *lookup.Networks
	pools        *ippools.Lookup
	vips         *vipusers.Index
	services     *lookup.Services
	grants       *grants.Rules
	sets         *podset.Index
	serviceCIDRs svc.CIDRs
	leases       *gateway.LeaseStates
}

func (p *controllerProcess) newInputs(ctx context.Context) (in controllerInputs, err error) {
	c, indexer := p.manager.GetClient(), p.manager.GetFieldIndexer()
	if in.namespaces, err = lookup.NewNamespaces(ctx, indexer, c); err != nil {
		return in, err
	}
	if in.networks, err = lookup.NewNetworks(ctx, indexer, c); err != nil {
		return in, err
	}
	if in.pools, err = ippools.NewLookup(ctx, indexer, c); err != nil {
		return in, err
	}
	if in.vips, err = vipusers.New(ctx, p.manager.GetCache(), c); err != nil {
		return in, err
	}
	if in.services, err = lookup.NewServices(ctx, indexer, c); err != nil {
		return in, err
	}
	if in.serviceCIDRs, err = svc.NewCIDRs(p.manager.GetRESTMapper(), c, p.options.serviceCIDRs); err != nil {
		return in, err
	}
	clients, err := kubernetes.NewForConfig(p.config)
	if err != nil {
		return in, fmt.Errorf("make a client of Leases: %w", err)
	}
	if in.leases, err = gateway.NewLeaseStates(clients.CoordinationV1().RESTClient(), p.options.own.Namespace); err != nil {
		return in, err
	}
	in.grants, in.sets = grants.NewRules(c, in.namespaces, p.options.membership == v1alpha1.MembershipOpen), podset.New()
	return in, nil
}

// controller is a reconciler that registers itself.
type controller interface {
	SetupWithManager(context.Context, ctrl.Manager) error
}

func (p *controllerProcess) addControllers(ctx context.Context, engine *northbound.Engine) error {
	in, err := p.newInputs(ctx)
	if err != nil {
		return err
	}
	c, recorder := p.manager.GetClient(), p.manager.GetEventRecorder(k8s.EventRecorder)
	for _, r := range append(p.restored(in, engine, c, recorder), p.derived(in, engine, c, recorder)...) {
		if err := r.SetupWithManager(ctx, p.manager); err != nil {
			return err
		}
	}
	return nil
}

// restored makes the controllers whose state lead restores before the gate opens.
func (p *controllerProcess) restored(in controllerInputs, engine *northbound.Engine, c client.Client, recorder events.EventRecorder) []controller {
	p.pods = &pod.Reconciler{
		Client: c, Northbound: engine, Allocator: p.allocator, Namespaces: in.namespaces, Pools: in.pools, Vips: in.vips, Grants: in.grants, Networks: in.networks,
		Sets: in.sets, SecurePorts: p.options.portSecurity == kubeovnv1.PortSecurityEnforced, Recorder: recorder, Gate: p.gate, KeepMachines: p.options.keepVMIP,
		Workers: podWorkers, IPWritePace: ipobject.DefaultPace,
	}
	p.vips = &vip.Reconciler{Client: c, Northbound: engine, Allocator: p.allocator, Vips: in.vips, Recorder: recorder, Gate: p.gate}
	p.eips = &ovneip.Reconciler{Client: c, Allocator: p.allocator, Recorder: recorder, Gate: p.gate}
	p.services = &service.Reconciler{
		Client: c, Live: p.manager.GetAPIReader(), Services: in.services, Grants: in.grants, Northbound: engine, Recorder: recorder, Gate: p.gate, Workers: serviceWorkers,
	}
	p.policies = &policy.Reconciler{Client: c, Northbound: engine, Sets: in.sets, Recorder: recorder, Gate: p.gate}
	return []controller{p.pods, p.vips, p.eips, p.services, p.policies}
}

// derived makes the controllers that keep no state between reconciliations.
func (p *controllerProcess) derived(in controllerInputs, engine *northbound.Engine, c client.Client, recorder events.EventRecorder) []controller {
	vpcs := &vpc.Reconciler{Client: c, Northbound: engine, Networks: in.networks, Namespaces: in.namespaces, Recorder: recorder, Gate: p.gate}
	return []controller{
		vpcs,
		&subnet.Reconciler{
			Client: c, Northbound: engine, Allocator: p.allocator, Networks: in.networks, Recorder: recorder, Gate: p.gate,
			Detached: vpcs.Detached, ServiceCIDRs: in.serviceCIDRs,
		},
		&node.Reconciler{Client: c, Northbound: engine, Allocator: p.allocator, Recorder: recorder, Gate: p.gate},
		&namespace.Reconciler{Client: c, Namespaces: in.namespaces, Gate: p.gate},
		&ippool.Reconciler{Client: c, Northbound: engine, Allocator: p.allocator, Pools: in.pools, Recorder: recorder, Gate: p.gate},
		&gateway.Reconciler{Client: c, Northbound: engine, Recorder: recorder, Gate: p.gate, Leases: in.leases},
		&vpcgateway.Reconciler{
			Client: c, Northbound: engine, Allocator: p.allocator, Networks: in.networks, Recorder: recorder, Gate: p.gate, Leases: in.leases,
			ServiceCIDRs: in.serviceCIDRs, ClusterAccess: p.options.clusterAccess,
		},
		&lbrule.Reconciler{
			Client: c, Live: p.manager.GetAPIReader(), Northbound: engine, Allocator: p.allocator, Networks: in.networks, Services: in.services,
			Grants: in.grants, Recorder: recorder, Gate: p.gate,
		},
	}
}
