// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host is the node's own place in the overlay: its port ovn0 on the join subnet, routes to subnets through it, source NAT of
// what leaves, and what tells the kubelet that the network serves. One reconciler makes all of it so, woken by the node, subnets,
// netlink and Open vSwitch.
package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/knftables"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/internal/k8s"
)

// resync is how often everything is made so again without an event. It is for nftables, whose changes by others nobody reports here:
// knftables has no monitor.
const resync = time.Minute

// Waiting says what the node waits for. It passes by itself, and an event tells when.
type Waiting string

// Error says what is waited for.
func (w Waiting) Error() string { return "waiting for " + string(w) }

// Reconciler makes the node's network so. It has one worker.
type Reconciler struct {
	// Client reads nodes and subnets from caches, and writes the node's status.
	Client client.Client
	// Node is this node's name.
	Node   string
	Bridge *ovs.Bridge
	// NFT writes the inet table NATTable.
	NFT knftables.Interface
	// Services are the CIDRs of Services.
	Services k8s.ServiceCIDRs
	// FixedMTU of pods in bytes; 0 for what tunnels leave.
	FixedMTU int
	// TunnelType is geneve or vxlan, TunnelInterface the one configured, if any.
	TunnelType      string
	TunnelInterface string
	// MTUChanged hears when the MTU of pods is another one than before. It holds one.
	MTUChanged chan<- struct{}
	// NetworksChanged, unless nil, is called when a network may have been connected to the node, or disconnected (IsConnected). It does not block.
	NetworksChanged func()
	// Plugin is installed once pods can be attached.
	Plugin Plugin

	tunnel  atomic.Pointer[tunnel] // nil when it is not known
	podMTU  atomic.Int64           // as MTUChanged was told; 0 before the first
	status  status
	gateway atomic.Pointer[bool] // the node may carry what leaves a subnet or a VPC; nil while that is not known
	links   links                // those that the node's part as a gateway depends on
	served  Masquerade           // what nftables was last told
	at      time.Time            // and when
}

// Reconcile makes everything so. It knows one object only: this node.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: r.Node}, node); err != nil {
		return ctrl.Result{}, fmt.Errorf("read node %s: %w", r.Node, err)
	}
	problem, partial := r.connect(ctx, node)
	changed, down := r.status.set(problem, time.Now())
	if changed {
		log.FromContext(ctx).Info("the node's network has changed", "state", describe(problem))
	}
	var err error
	if condition := r.condition(node, problem, partial, down); condition != nil {
		err = r.report(ctx, node, *condition)
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

// connect takes the node's network from nothing to serving, each step on what the one before made. What keeps the node from reaching one
// subnet, or from being its gateway, is partial: the rest serves.
func (r *Reconciler) connect(ctx context.Context, node *corev1.Node) (problem, partial error) {
	plan, err := r.plan(ctx, node)
	if err != nil {
		return err, nil
	}
	r.gateway.Store(&plan.Gateway)
	return r.follow(ctx, node, plan)
}

// plan is what the node's network is to be.
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
	plan, err := NewPlan(join, node, inForce(subnets.Items), services)
	plan.Gateway = plan.Gateway || slices.ContainsFunc(vpcs.Items, func(vpc v1.Vpc) bool { return carries(node.Name, &vpc) })
	return joined{plan, join.MAC}, err
}

// carries reports whether a node carries what leaves a VPC, or is the one to take its place.
func carries(node string, vpc *v1.Vpc) bool {
	t := vpc.Status.Transit
	return t != nil && (t.Node == node || t.Standby == node)
}

// joined is a plan with the hardware address of ovn0.
type joined struct {
	Plan
	mac net.HardwareAddr
}

// follow makes the node's network what the plan says.
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
	if err := setForwarding(plan.Addresses); err != nil {
		return err, nil
	}
	taken, err := setRoutes(link, plan.Routes)
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

// serveAsGateway makes the node's part as a gateway so.
func (r *Reconciler) serveAsGateway(plan Plan) error {
	claimed, claimErr := setClaims(plan.Claims)
	routed, routeErr := setExternal(plan.External, plan.Cluster)
	r.links.set(slices.Concat(claimed, routed))
	return errors.Join(claimErr, routeErr)
}

// Gateway reports whether the node may carry what leaves a subnet or a VPC. It is not known before the first pass.
func (r *Reconciler) Gateway() (wanted, known bool) {
	g := r.gateway.Load()
	return g != nil && *g, g != nil
}

// masquerade writes to nftables when there is something new, and at each resync: others may have flushed the table.
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

// Ready returns nil while the node's network serves, and otherwise what is missing.
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
