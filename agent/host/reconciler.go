// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host configures the node's own network: its port ovn0 on the join subnet, routes to subnets through it, source NAT of traffic
// that leaves the overlay, and the node condition that reports whether the network serves. One reconciler does all of this, on events of
// the node, subnets, VPCs, netlink and Open vSwitch.
package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/knftables"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/svc"
)

// resync is the interval of passes without an event. They restore nftables after changes by other programs, for which there are no
// events: knftables has no monitor.
const resync = time.Minute

// Waiting names a missing prerequisite. It resolves without the agent, and an event reports that.
type Waiting string

// Error names the missing prerequisite.
func (w Waiting) Error() string { return "waiting for " + string(w) }

// Reconciler reconciles the node's network. It has one worker.
type Reconciler struct {
	// Client reads nodes and subnets from caches, and writes the node's status.
	Client client.Client
	// Node is this node's name.
	Node   string
	Bridge *ovs.Bridge
	// NFT writes the inet table NATTable.
	NFT knftables.Interface
	// Services are the CIDRs of Services.
	Services svc.CIDRs
	// FixedMTU is the MTU of pods in bytes; 0 to compute it from the tunnel interface.
	FixedMTU int
	// TunnelTypes are geneve or vxlan, or both; TunnelInterface is the configured interface, if any.
	TunnelTypes     []string
	TunnelInterface string
	// MTUChanged receives an element after the MTU of pods has changed. It has a buffer of one.
	MTUChanged chan<- struct{}
	// Switch returns an error if ovs-vswitchd does not answer. Its rows in the database stay unchanged when it stops.
	Switch func(context.Context) error
	// NetworksChanged, if set, is called when a network may have been connected to the node, or disconnected (IsConnected). It does not
	// block.
	NetworksChanged func()
	// RuleDeleted, if set, is called with the protocol of each routing rule that the kernel has deleted and that is not one of this package. It does
	// not block.
	RuleDeleted func(protocol uint8)
	// Plugin is installed once pods can be attached.
	Plugin Plugin
	// Served, if set, is called after each pass that leaves the node's network serving, with the condition of the node written. It does not block.
	Served func()

	tunnel  atomic.Pointer[tunnel] // nil while unknown
	podMTU  atomic.Int64           // the last one reported to MTUChanged; 0 at first
	status  status
	silent  atomic.Pointer[Waiting] // why ovs-vswitchd does not answer; nil while it answers
	gateway atomic.Pointer[bool]    // the node may carry traffic that leaves a subnet or a VPC; nil while unknown
	taken   atomic.Bool             // a route of another owner prevents one of the agent's
	links   links                   // the interfaces on which the node's part as a gateway depends
	served  Masquerade              // the last state written to nftables
	at      time.Time               // the time of that write

	conntrackFailure string // the last error of raiseConntrack
}

// Reconcile runs a pass over the node's network. This node is the only object of the queue.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: r.Node}, node); err != nil {
		return ctrl.Result{}, fmt.Errorf("read node %s: %w", r.Node, err)
	}
	problem, partial := r.connect(ctx, node)
	if silent := r.silent.Load(); problem == nil && silent != nil {
		problem = *silent
	}
	changed, down := r.status.set(problem, time.Now())
	if changed {
		log.FromContext(ctx).Info("the node's network has changed", "state", describe(problem))
	}
	var err error
	if condition := r.condition(node, problem, partial, down); condition != nil {
		err = r.report(ctx, node, *condition)
	}
	if problem == nil && err == nil && r.Served != nil {
		r.Served()
	}
	var waiting Waiting
	switch {
	case problem == nil && err == nil && partial != nil:
		return ctrl.Result{}, partial
	case problem == nil && err == nil:
		return ctrl.Result{RequeueAfter: k8s.Periodic(resync)}, nil
	case errors.As(problem, &waiting) && err == nil:
		return ctrl.Result{RequeueAfter: conditionGrace}, nil
	}
	return ctrl.Result{}, errors.Join(problem, err)
}

// connect configures the node's network in ordered steps. An error that affects the routes to one subnet, or the node's part as a
// gateway, is returned as partial: the rest of the network serves.
func (r *Reconciler) connect(ctx context.Context, node *corev1.Node) (problem, partial error) {
	plan, err := r.plan(ctx, node)
	if err != nil {
		return err, nil
	}
	r.gateway.Store(&plan.Gateway)
	return r.follow(ctx, node, plan)
}

// plan returns the desired state of the node's network.
func (r *Reconciler) plan(ctx context.Context, node *corev1.Node) (joined, error) {
	join, err := v1.ParsePodNetwork(node.Annotations)
	if err != nil {
		return joined{}, fmt.Errorf("annotations of node %s: %w", node.Name, err)
	}
	if !join.Allocated || len(join.Addresses) == 0 || len(join.MAC) == 0 {
		return joined{}, Waiting("kube-ovn-controller to write the addresses of this node in its annotations")
	}
	var subnets v1.SubnetList
	if err := r.Client.List(ctx, &subnets); err != nil {
		return joined{}, fmt.Errorf("list subnets: %w", err)
	}
	var vpcs v1.VpcList
	if err := r.Client.List(ctx, &vpcs); err != nil {
		return joined{}, fmt.Errorf("list VPCs: %w", err)
	}
	services, err := r.Services.List(ctx)
	if err != nil {
		return joined{}, err
	}
	port, err := k8s.Find[v1.IP](ctx, r.Client, client.ObjectKey{Name: v1.NodePortName(node.Name)})
	if err != nil {
		return joined{}, fmt.Errorf("get the IP object of the node's port: %w", err)
	}
	var recorded []netip.Addr
	if port != nil {
		recorded = k8s.AddressesOfNode(port)
	}
	var egresses v1.EgressAddressList
	if err := r.Client.List(ctx, &egresses); err != nil {
		return joined{}, fmt.Errorf("list EgressAddresses: %w", err)
	}
	own, err := ownAddresses()
	if err != nil {
		return joined{}, err
	}
	plan, err := NewPlan(join, node, recorded, inForce(subnets.Items), services)
	plan.addForwarded(node.Name, append(own, k8s.OwnIPs(node)...), egresses.Items)
	plan.Gateway = plan.Gateway || slices.ContainsFunc(vpcs.Items, func(vpc v1.Vpc) bool { return carries(node.Name, &vpc) })
	return joined{plan, join.MAC}, err
}

// carries reports whether a node is the active or the standby gateway of a VPC.
func carries(node string, vpc *v1.Vpc) bool {
	t := vpc.Status.Transit
	return t != nil && (t.Node == node || t.Standby == node)
}

// joined is a plan with the hardware address of ovn0.
type joined struct {
	Plan
	mac net.HardwareAddr
}

// follow applies the plan to the node.
func (r *Reconciler) follow(ctx context.Context, node *corev1.Node, plan joined) (problem, partial error) {
	if err := r.Bridge.Ready(ctx); err != nil {
		return Waiting(err.Error()), nil
	}
	mtu, err := r.findMTU(ctx)
	if err != nil {
		return err, nil
	}
	port := ovs.Internal{Name: JoinInterface, LogicalPort: "node-" + node.Name, MAC: plan.mac.String(), MTU: mtu}
	if err := r.Bridge.EnsureInternal(ctx, port); err != nil {
		return err, nil
	}
	link, err := setJoinInterface(plan.mac, mtu, plan.Addresses)
	if err != nil {
		return err, nil
	}
	if err := errors.Join(setForwarding(plan.Addresses), keepNeighbours()); err != nil {
		return err, nil
	}
	r.raiseConntrack(ctx)
	taken, err := setRoutes(logr.FromContextOrDiscard(ctx), link, plan.Routes)
	r.taken.Store(taken != nil)
	if err != nil {
		return err, nil
	}
	if err := r.masquerade(ctx, plan.Masquerade); err != nil {
		return err, nil
	}
	partial = errors.Join(taken, r.serveAsGateway(plan.Plan))
	switch installed, err := r.Bridge.Installed(ctx, JoinInterface); {
	case err != nil:
		return err, partial
	case !installed:
		return Waiting("ovn-controller to install the flows of " + port.LogicalPort), partial
	}
	return r.Plugin.Install(), partial
}

// serveAsGateway applies the plan's egress addresses and external gateways.
func (r *Reconciler) serveAsGateway(plan Plan) error {
	claimed, claimErr := setClaims(plan.Claims)
	forwarded, forwardErr := setForwarded(plan.Forwarded, plan.Elsewhere)
	routed, routeErr := setExternal(plan.External, plan.Cluster)
	r.links.Store(new(slices.Concat(claimed, forwarded, routed)))
	return errors.Join(claimErr, forwardErr, routeErr)
}

// Gateway reports whether the node may carry traffic that leaves a subnet or a VPC. known is false before the first pass.
func (r *Reconciler) Gateway() (wanted, known bool) {
	g := r.gateway.Load()
	return g != nil && *g, g != nil
}

// masquerade writes to nftables if m has changed, and at each resync: other programs may have flushed the table.
func (r *Reconciler) masquerade(ctx context.Context, m Masquerade) error {
	if reflect.DeepEqual(r.served, m) && time.Since(r.at) < resync/2 {
		return nil
	}
	if err := setMasquerade(ctx, r.NFT, m); err != nil {
		return err
	}
	r.served, r.at = m, time.Now()
	return nil
}

// Ready returns nil while the node's network serves, and otherwise an error that names the missing prerequisite.
func (r *Reconciler) Ready(ctx context.Context) error {
	if err := r.Bridge.Ready(ctx); err != nil {
		return err
	}
	return r.status.get()
}

func describe(err error) string {
	if err == nil {
		return "serving"
	}
	return err.Error()
}

// inForce returns the subnets with the specs that the node applies: the last validated ones, as in OVN. A spec that is invalid or not
// validated yet is not applied, because its CIDR may contain the address of the API server, to which every node would lose the route.
func inForce(subnets []v1.Subnet) []v1.Subnet {
	out := make([]v1.Subnet, 0, len(subnets))
	for _, s := range subnets {
		if valid := k8s.WithValidSpec(&s); valid != nil {
			out = append(out, *valid)
		}
	}
	return out
}
