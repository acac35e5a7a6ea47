// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/egress"
	"github.com/kiln-net/kiln/controllers/egressaddress"
	"github.com/kiln-net/kiln/controllers/ippool"
	"github.com/kiln-net/kiln/controllers/lbrule"
	"github.com/kiln-net/kiln/controllers/loadbalancer"
	"github.com/kiln-net/kiln/controllers/namespace"
	"github.com/kiln-net/kiln/controllers/node"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/controllers/ovnnat"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/controllers/routergateway"
	"github.com/kiln-net/kiln/controllers/service"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/controllers/trafficmirror"
	"github.com/kiln-net/kiln/controllers/transit"
	"github.com/kiln-net/kiln/controllers/underlay"
	"github.com/kiln-net/kiln/controllers/unimplemented"
	"github.com/kiln-net/kiln/controllers/vip"
	"github.com/kiln-net/kiln/controllers/vpc"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/svc"
)

// controller adds its reconcilers and sources to a manager.
type controller interface {
	SetupWithManager(context.Context, ctrl.Manager) error
}

// addControllers adds all controllers with their shared parts. They wait at the gate until the process leads.
func (p *process) addControllers(ctx context.Context, engine *northbound.Engine) (err error) {
	if p.shared, err = reconciler.NewShared(ctx, p.manager, engine, p.options.Membership == v1alpha1.MembershipOpen); err != nil {
		return err
	}
	derived, err := p.derived()
	if err != nil {
		return err
	}
	for _, r := range append(p.restored(), derived...) {
		if err := r.SetupWithManager(ctx, p.manager); err != nil {
			return fmt.Errorf("set up %T: %w", r, err)
		}
	}
	return nil
}

// restored makes the controllers whose state must be complete before the gate opens.
func (p *process) restored() []controller {
	s := p.shared
	p.pods = &pod.Reconciler{
		Client: s.Client, Northbound: s.Engine, Allocator: s.Allocator, Namespaces: s.Namespaces, Pools: s.Pools, Vips: s.Vips, Grants: s.Grants, Networks: s.Networks,
		Sets: s.Sets, SecurePorts: p.options.PortSecurity == kubeovnv1.PortSecurityEnforced, Recorder: s.Recorder, Gate: s.Gate, KeepMachines: p.options.KeepVMIP,
		Limits: &p.limits, Workers: podWorkers, IPWritePace: ipobject.DefaultPace,
	}
	p.vips = &vip.Reconciler{Client: s.Client, Northbound: s.Engine, Allocator: s.Allocator, Networks: s.Networks, Vips: s.Vips, Grants: s.Grants, Recorder: s.Recorder, Gate: s.Gate}
	p.eips = &ovneip.Reconciler{Client: s.Client, Allocator: s.Allocator, Networks: s.Networks, Recorder: s.Recorder, Gate: s.Gate}
	p.services = &service.Reconciler{
		Client: s.Client, Live: s.Live, Services: s.Services, Grants: s.Grants, Northbound: s.Engine, Allocator: s.Allocator, Networks: s.Networks, Recorder: s.Recorder, Gate: s.Gate,
		Workers: serviceWorkers, ByNodes: p.options.PodAccess == v1alpha1.PodAccessNode,
	}
	p.policies = &policy.Reconciler{
		Client: s.Client, Northbound: s.Engine, Sets: s.Sets, Grants: s.Grants, Recorder: s.Recorder, Gate: s.Gate, Ignore: p.options.NetworkPolicies == v1alpha1.NetworkPoliciesIgnored,
	}
	return []controller{p.pods, p.vips, p.eips, p.services, p.policies}
}

// derived makes the other controllers.
func (p *process) derived() ([]controller, error) {
	s := p.shared
	serviceCIDRs, err := svc.NewCIDRs(p.manager.GetRESTMapper(), s.Client, p.options.ServiceCIDRs)
	if err != nil {
		return nil, err
	}
	leases, err := egress.NewLeaseStates(p.clients.CoordinationV1().RESTClient(), p.options.Own.Namespace)
	if err != nil {
		return nil, err
	}
	vpcs := &vpc.Reconciler{
		Client: s.Client, Northbound: s.Engine, Networks: s.Networks, Namespaces: s.Namespaces, Recorder: s.Recorder, Gate: s.Gate, Protection: p.options.Protection,
	}
	p.subnets = &subnet.Reconciler{
		Client: s.Client, Northbound: s.Engine, Allocator: s.Allocator, Networks: s.Networks, Namespaces: s.Namespaces, Recorder: s.Recorder, Gate: s.Gate,
		Routers:  &routergateway.Ports{Client: s.Client, Northbound: s.Engine, Allocator: s.Allocator},
		Detached: vpcs.Detached, ServiceCIDRs: serviceCIDRs, Defaults: p.defaults(), Limits: &p.limits,
	}
	p.balancers = &loadbalancer.Reconciler{
		Client: s.Client, Pools: &p.pools, Networks: s.Networks, Services: s.Services, ServiceCIDRs: serviceCIDRs, Recorder: s.Recorder, Gate: s.Gate,
	}
	return []controller{
		vpcs,
		p.subnets,
		p.balancers,
		&underlay.VlanReconciler{Client: s.Client, Networks: s.Networks, Recorder: s.Recorder, Gate: s.Gate},
		&underlay.ProviderReconciler{Client: s.Client, Recorder: s.Recorder, Gate: s.Gate},
		&node.Reconciler{
			Client: s.Client, Live: s.Live, Northbound: s.Engine, Allocator: s.Allocator, Networks: s.Networks, ServiceCIDRs: serviceCIDRs, Recorder: s.Recorder, Gate: s.Gate,
		},
		&unimplemented.Reconciler{Client: s.Client, Recorder: s.Recorder},
		&namespace.Reconciler{Client: s.Client, Namespaces: s.Namespaces, Pools: s.Pools, Gate: s.Gate},
		&trafficmirror.Reconciler{Client: s.Client, Northbound: s.Engine, Recorder: s.Recorder, Gate: s.Gate},
		&ippool.Reconciler{Client: s.Client, Northbound: s.Engine, Allocator: s.Allocator, Pools: s.Pools, Recorder: s.Recorder, Gate: s.Gate},
		&egress.Reconciler{Client: s.Client, Northbound: s.Engine, Allocator: s.Allocator, Recorder: s.Recorder, Gate: s.Gate, Leases: leases},
		&transit.Reconciler{
			Client: s.Client, Northbound: s.Engine, Allocator: s.Allocator, Networks: s.Networks, Recorder: s.Recorder, Gate: s.Gate, Leases: leases,
			ServiceCIDRs: serviceCIDRs, ClusterAccess: p.options.ClusterAccess, WaysOut: s.WaysOut,
		},
		&egressaddress.Reconciler{
			Client: s.Client, Northbound: s.Engine, Allocator: s.Allocator, Networks: s.Networks, Sets: s.Sets, Recorder: s.Recorder, Gate: s.Gate, Leases: leases,
			ServiceCIDRs: serviceCIDRs, Speakers: &p.speakers,
		},
		&routergateway.External{
			Client: s.Client, Northbound: s.Engine, Allocator: s.Allocator, Networks: s.Networks, Recorder: s.Recorder, Gate: s.Gate, WaysOut: s.WaysOut,
			ServiceCIDRs: serviceCIDRs, Settings: &p.external,
		},
		&ovnnat.Reconciler{Client: s.Client, Live: s.Live, Northbound: s.Engine, Allocator: s.Allocator, Networks: s.Networks, Grants: s.Grants, Sets: s.Sets, Recorder: s.Recorder, Gate: s.Gate},
		&lbrule.Reconciler{
			Client: s.Client, Live: s.Live, Northbound: s.Engine, Allocator: s.Allocator, Networks: s.Networks, Services: s.Services,
			Vips: s.Vips, Grants: s.Grants, Recorder: s.Recorder, Gate: s.Gate,
		},
	}, nil
}
