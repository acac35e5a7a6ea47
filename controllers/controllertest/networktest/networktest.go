// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package networktest provides the controllers that run next to the controllers under test.
package networktest

import (
	"context"

	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/node"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/pod/retention"
	"github.com/kiln-net/kiln/controllers/routergateway"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/controllers/vpc"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/svc"
)

// Pods returns the reconciler of pods.
func Pods(p *controllertest.Process) *pod.Reconciler {
	return &pod.Reconciler{
		Client: p.Client, Northbound: p.Engine, Allocator: p.Allocator, Namespaces: p.Namespaces, Pools: p.Pools, Vips: p.Vips, Grants: p.Grants,
		Networks: p.Networks, Sets: p.Sets, Recorder: p.Recorder, Gate: p.Gate, Workers: 8,
	}
}

// Vpcs returns the reconciler of VPCs.
func Vpcs(p *controllertest.Process) *vpc.Reconciler {
	return &vpc.Reconciler{
		Client: p.Client, Northbound: p.Engine, Networks: p.Networks, Namespaces: p.Namespaces, Recorder: p.Recorder, Gate: p.Gate,
	}
}

// Subnets returns the reconciler of the subnets of VPCs.
func Subnets(p *controllertest.Process, vpcs *vpc.Reconciler) *subnet.Reconciler {
	return &subnet.Reconciler{
		Client: p.Client, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Namespaces: p.Namespaces, Recorder: p.Recorder, Gate: p.Gate,
		Routers:  &routergateway.Ports{Client: p.Client, Northbound: p.Engine, Allocator: p.Allocator},
		Detached: vpcs.Detached, ServiceCIDRs: Services(p),
	}
}

// External returns the reconciler of the external ports of VPCs.
func External(p *controllertest.Process) *routergateway.External {
	return &routergateway.External{
		Client: p.Client, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate, WaysOut: p.WaysOut,
		ServiceCIDRs: Services(p), Settings: &routergateway.Settings{},
	}
}

// Nodes returns the reconciler of nodes.
func Nodes(p *controllertest.Process) *node.Reconciler {
	return &node.Reconciler{
		Client: p.Client, Live: p.Live, Northbound: p.Engine, Allocator: p.Allocator, Networks: p.Networks, ServiceCIDRs: Services(p), Recorder: p.Recorder, Gate: p.Gate,
	}
}

// Services returns the CIDRs of Services.
func Services(p *controllertest.Process) svc.CIDRs {
	cidrs, _ := ipfamily.ParseCIDRs("10.96.0.0/12,fd00:10:96::/108")
	return svc.CIDRs{Configured: cidrs, Reader: p.Client}
}

// Restore creates the default VPC and its subnets, and restores the allocations of ports. pods and join are CIDRs in the format of cidrBlock.
func Restore(ctx context.Context, p *controllertest.Process, pods, join string) error {
	var defaults subnet.Defaults
	var err error
	if defaults.PodCIDRs, err = ipfamily.ParseCIDRs(pods); err != nil {
		return err
	}
	if defaults.JoinCIDRs, err = ipfamily.ParseCIDRs(join); err != nil {
		return err
	}
	if err := vpc.CreateDefault(ctx, p.Client); err != nil {
		return err
	}
	if err := subnet.CreateDefaults(ctx, p.Client, defaults); err != nil {
		return err
	}
	return retention.Restore(ctx, p.Client, p.Engine, p.Allocator)
}
