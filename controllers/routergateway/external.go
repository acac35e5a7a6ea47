// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routergateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/keylock"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/validation"
)

// External keeps the ports of VPCs' routers in external subnets, which Vpcs request by enableExternal and extraExternalSubnets. An OvnEip of type lrp, which it
// creates if there is none, has the addresses of each.
type External struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Networks   *lookup.Networks
	Recorder   events.EventRecorder
	Gate       *reconciler.StartGate
	// WaysOut is locked while the owner of a VPC's default routes is decided.
	WaysOut *keylock.Locks
	// ServiceCIDRs returns the cluster's CIDRs of Services.
	ServiceCIDRs svc.CIDRs
	// Settings of the OVNCluster.
	Settings *Settings
}

// connection is the outcome for one external subnet that a VPC requests.
type connection struct {
	subnet string
	port   *translate.ExternalPort
	// nodes is the number of nodes that can host the port.
	nodes int
	// err is the reason why there is no port, or why the port is not as requested. It wraps northbound.ErrWaiting, unless an operation failed.
	err error
}

// external is the outcome for a VPC.
type external struct {
	connections []connection
	// routed are the families with a default route through an external port, held the families whose default route still leads to the gateway router.
	routed, held []ipfamily.Family
	bfd          bfd
	err          error
}

// Reconcile applies the external ports of one VPC and updates its status. A request without a name follows a change of the settings.
func (r *External) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.Name == "" {
		return ctrl.Result{}, r.settingsChanged(ctx)
	}
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get VPC %s: %w", req.Name, err)
	}
	var wanted []string
	if vpc != nil {
		wanted = k8s.AppliedVpc(vpc).Spec.ExternalSubnets()
	}
	if len(wanted) == 0 {
		portNodes.measure(req.Name, nil)
		bfd{}.measure(req.Name)
		err := r.remove(ctx, req.Name)
		if vpc != nil {
			err = errors.Join(err, r.clearStatus(ctx, vpc))
		}
		return ctrl.Result{}, errors.Join(err, r.deleteEips(ctx, req.Name, nil))
	}
	found := external{}
	for _, name := range wanted {
		found.connections = append(found.connections, r.connect(ctx, vpc, name, found.connections))
	}
	portNodes.measure(vpc.Name, found.connections)
	if found.err = r.apply(ctx, vpc, &found); found.err != nil {
		found.bfd = r.appliedBFD(vpc)
	}
	found.bfd.measure(vpc.Name)
	failed := k8s.Unless(found.err, northbound.ErrWaiting)
	for _, c := range found.connections {
		failed = errors.Join(failed, k8s.Unless(c.err, northbound.ErrWaiting))
	}
	if failed == nil { // an OvnEip is deleted after its port
		failed = r.deleteEips(ctx, vpc.Name, wanted)
	}
	return ctrl.Result{}, errors.Join(failed, r.patchStatus(ctx, vpc, found))
}

// wait returns an error that names the missing object or state of a VPC.
func wait(format string, args ...any) error {
	return fmt.Errorf("%w: %w", northbound.ErrWaiting, fmt.Errorf(format, args...))
}

// connect finds the port of a VPC's router in an external subnet. before are the connections with precedence.
func (r *External) connect(ctx context.Context, vpc *kubeovnv1.Vpc, name string, before []connection) connection {
	c := connection{subnet: name}
	port := translate.ExternalPort{Subnet: name}
	subnet, network, err := r.subnet(ctx, vpc.Name, name)
	if err != nil {
		c.err = err
		return c
	}
	port.CIDRs, port.Gateways = network.CIDRs, network.Gateways
	for _, other := range before {
		if other.port != nil && overlap(other.port.CIDRs, port.CIDRs) {
			c.err = wait("subnet %s overlaps with subnet %s, which precedes it: name one of them", name, other.subnet)
			return c
		}
	}
	if c.err = r.overlapsInside(ctx, vpc.Name, name, port.CIDRs); c.err != nil {
		return c
	}
	if port.Addresses, port.MAC, c.err = r.addresses(ctx, vpc, name); c.err != nil {
		return c
	}
	if port.NameTaken, c.err = r.Networks.ExternalNameTaken(ctx, vpc, name); c.err != nil {
		return c
	}
	vlan, err := k8s.Find[kubeovnv1.Vlan](ctx, r.Client, client.ObjectKey{Name: subnet.Spec.Vlan}, client.UnsafeDisableDeepCopy)
	switch {
	case err != nil:
		c.err = fmt.Errorf("get Vlan %s: %w", subnet.Spec.Vlan, err)
		return c
	case vlan == nil:
		c.err = wait("Vlan %s of subnet %s does not exist: create it", subnet.Spec.Vlan, name)
		return c
	}
	onRouter, _ := translate.PortNames(vpc.Name, name, port.NameTaken)
	ports := Ports{Client: r.Client, Northbound: r.Northbound, WasAbsent: r.Networks.WasAbsent, Settings: r.Settings}
	port.Chassis, c.err = ports.chassis(ctx, vpc.Name, vlan.Spec.Provider, func() []string { return ports.applied(translate.ExternalOwner(vpc.Name), onRouter) })
	if len(port.Chassis) > 0 {
		c.port = &port
	}
	if c.err == nil {
		c.nodes = len(port.Chassis)
	}
	return c
}

// subnet returns an external subnet with its last valid spec.
func (r *External) subnet(ctx context.Context, vpc, name string) (*kubeovnv1.Subnet, validation.Network, error) {
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, validation.Network{}, fmt.Errorf("get subnet %s: %w", name, err)
	}
	if subnet == nil {
		return nil, validation.Network{}, wait("subnet %s does not exist: create it, or name another one in extraExternalSubnets", name)
	}
	valid := k8s.WithValidSpec(subnet)
	if valid == nil {
		return nil, validation.Network{}, wait("%s", k8s.WhyNotValid("subnet "+name, subnet.Status.Conditions, subnet.Generation))
	}
	switch {
	case valid.Spec.Vlan == "":
		return nil, validation.Network{}, wait("subnet %s is no underlay subnet: set its vlan, or name another one in extraExternalSubnets", name)
	case lookup.VpcOf(valid) != kubeovnv1.DefaultVpc:
		return nil, validation.Network{}, wait("subnet %s is of VPC %s: an external subnet is of VPC %s", name, lookup.VpcOf(valid), kubeovnv1.DefaultVpc)
	case valid.Spec.LogicalGateway:
		return nil, validation.Network{}, wait("the gateway of subnet %s is OVN's router: an external subnet has a router of the physical network, so unset logicalGateway", name)
	case vpc == kubeovnv1.DefaultVpc && valid.Spec.OnRouter():
		return nil, validation.Network{}, wait("the router has a port in subnet %s already, by u2oInterconnection: unset it, or name another subnet", name)
	}
	network, problem := validation.Subnet(name, &valid.Spec)
	if problem != nil {
		return nil, validation.Network{}, wait("subnet %s is not valid: %s", name, problem.Message)
	}
	return valid, network, nil
}

func overlap(a, b []netip.Prefix) bool {
	return slices.ContainsFunc(a, func(p netip.Prefix) bool { return slices.ContainsFunc(b, p.Overlaps) })
}

// overlapsInside returns an error if a subnet of the VPC that its router serves overlaps with an external subnet, unless the router has the port already.
func (r *External) overlapsInside(ctx context.Context, vpc, name string, cidrs []netip.Prefix) error {
	if northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.ExternalPortRef(vpc, name)) != nil {
		return nil
	}
	subnets, err := r.Networks.Overlapping(ctx, vpc, cidrs)
	if err != nil {
		return err
	}
	for _, s := range subnets {
		if s.Name != name && s.Spec.OnRouter() {
			return wait("subnet %s overlaps with subnet %s of VPC %s: choose other addresses for one of them", name, s.Name, vpc)
		}
	}
	return nil
}

// addresses returns the addresses of a router's port, which an OvnEip of type lrp has. It creates the OvnEip if there is none.
func (r *External) addresses(ctx context.Context, vpc *kubeovnv1.Vpc, subnet string) ([]netip.Addr, []byte, error) {
	name := translate.ExternalEip(vpc.Name, subnet)
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, nil, fmt.Errorf("get OvnEip %s: %w", name, err)
	}
	if eip == nil {
		eip = &kubeovnv1.OvnEip{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{
				APIVersion: kubeovnv1.GroupVersion.String(), Kind: translate.KindVpc, Name: vpc.Name, UID: vpc.UID,
			}}},
			Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: subnet, Type: kubeovnv1.OvnEipTypeLRP},
		}
		if err := k8s.CreateMissing(ctx, r.Client, eip); err != nil {
			return nil, nil, err
		}
		return nil, nil, wait("OvnEip %s to have the addresses of the port in subnet %s", name, subnet)
	}
	held, ok := r.Allocator.Lookup(translate.OvnEipHolder(name))
	switch {
	case eip.Spec.Type != kubeovnv1.OvnEipTypeLRP || lookup.ExternalOfEip(eip) != subnet:
		return nil, nil, wait("OvnEip %s, which would have the addresses of the port in subnet %s, is of type %q in subnet %s: delete it",
			name, subnet, eip.Spec.Type, lookup.ExternalOfEip(eip))
	case !ok:
		why, _ := k8s.WhyNotReady(eip.Status.Conditions, eip.Generation)
		return nil, nil, wait("OvnEip %s to have the addresses of the port in subnet %s: %s", name, subnet, why)
	}
	return held.Addresses, held.MAC, nil
}

// apply commits the rows. A default route of a custom VPC's gateway router precedes the routes through external ports, until its controller has removed it: both would
// share the traffic.
func (r *External) apply(ctx context.Context, vpc *kubeovnv1.Vpc, found *external) error {
	in, err := r.inputs(ctx, vpc, found.connections)
	if err != nil {
		return err
	}
	unlock, err := r.WaysOut.Lock(ctx, vpc.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if vpc.Name != kubeovnv1.DefaultVpc {
		routes := northbound.Of[nb.LogicalRouterStaticRoute](r.Northbound, translate.TransitOwner(vpc.Name))
		for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			if slices.ContainsFunc(routes, func(route *nb.LogicalRouterStaticRoute) bool { return translate.LeadsToGatewayRouter(route, family) }) {
				found.held = append(found.held, family)
			} else {
				in.Default = append(in.Default, family)
			}
		}
	}
	if err := r.Northbound.Apply(ctx, translate.ExternalOwner(vpc.Name), translate.External(in)); err != nil {
		if errors.Is(err, northbound.ErrWaiting) {
			return wait("the router of the VPC, or the switch of an external subnet, is not applied yet")
		}
		return fmt.Errorf("apply the external ports of VPC %s: %w", vpc.Name, err)
	}
	for _, family := range in.Default {
		if northbound.Get[nb.LogicalRouterStaticRoute](r.Northbound, translate.ExternalRouteRef(vpc.Name, family)) != nil {
			found.routed = append(found.routed, family)
		}
	}
	found.bfd = r.bfd(in)
	return nil
}

// inputs returns the inputs of the rows, without Default.
func (r *External) inputs(ctx context.Context, vpc *kubeovnv1.Vpc, connections []connection) (translate.ExternalInputs, error) {
	spec := &k8s.AppliedVpc(vpc).Spec
	in := translate.ExternalInputs{Vpc: vpc.Name, MonitorGateways: spec.EnableBfd, BFD: r.Settings.bfd()}
	for _, c := range connections {
		if c.port != nil {
			in.Ports = append(in.Ports, *c.port)
		}
	}
	router, _ := validation.Vpc(vpc.Name, spec)
	for _, route := range router.Routes {
		in.Routes = append(in.Routes, translate.StaticRoute{
			Prefix: route.Prefix, BySource: route.BySource, NextHop: route.NextHop, Table: route.Table, Monitored: route.Monitored,
		})
	}
	if vpc.Name == kubeovnv1.DefaultVpc {
		return in, nil
	}
	subnets, err := r.Networks.ValidSubnetsOf(ctx, vpc.Name)
	if err != nil {
		return in, err
	}
	for _, s := range subnets {
		if s.Spec.RouteTable != "" {
			in.RouteTables = append(in.RouteTables, s.Spec.RouteTable)
		}
	}
	slices.Sort(in.RouteTables)
	in.RouteTables = slices.Compact(in.RouteTables)
	in.Services, err = r.ServiceCIDRs.List(ctx)
	return in, err
}

// remove deletes the ports of a VPC.
func (r *External) remove(ctx context.Context, vpc string) error {
	unlock, err := r.WaysOut.Lock(ctx, vpc)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.Northbound.Apply(ctx, translate.ExternalOwner(vpc), nil); err != nil {
		return fmt.Errorf("delete the external ports of VPC %s: %w", vpc, err)
	}
	return nil
}

// deleteEips deletes the OvnEips that were created for ports of a VPC, unless they are of a wanted subnet.
func (r *External) deleteEips(ctx context.Context, vpc string, wanted []string) error {
	var eips kubeovnv1.OvnEipList
	if err := r.Client.List(ctx, &eips, client.MatchingFields{indexVpc: vpc}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the OvnEips of VPC %s: %w", vpc, err)
	}
	for i := range eips.Items {
		eip := &eips.Items[i]
		if eip.DeletionTimestamp != nil || slices.Contains(wanted, lookup.ExternalOfEip(eip)) {
			continue
		}
		if err := client.IgnoreNotFound(r.Client.Delete(ctx, eip.DeepCopy(), client.Preconditions{UID: &eip.UID})); err != nil {
			return fmt.Errorf("delete OvnEip %s: %w", eip.Name, err)
		}
	}
	return nil
}
