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
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/knftables"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/ovs"
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
	Services []netip.Prefix
	// FixedMTU of pods in bytes; 0 for what tunnels leave.
	FixedMTU int
	// TunnelType is geneve or vxlan, TunnelInterface the one configured, if any.
	TunnelType      string
	TunnelInterface string
	// Plugin is installed once pods can be attached.
	Plugin Plugin

	status status
	served Masquerade // what nftables was last told
	at     time.Time  // and when
}

// Reconcile makes everything so. It knows one object only: this node.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: r.Node}, node); err != nil {
		return ctrl.Result{}, fmt.Errorf("read node %s: %w", r.Node, err)
	}
	problem := r.connect(ctx, node)
	changed, down := r.status.set(problem, time.Now())
	if changed {
		log.FromContext(ctx).Info("the node's network has changed", "state", describe(problem))
	}
	var err error
	if condition := r.condition(node, problem, down); condition != nil {
		err = r.report(ctx, node, *condition)
	}
	var waiting Waiting
	switch {
	case problem == nil && err == nil:
		return ctrl.Result{RequeueAfter: resync}, nil
	case errors.As(problem, &waiting) && err == nil:
		return ctrl.Result{RequeueAfter: conditionGrace}, nil
	}
	return ctrl.Result{}, errors.Join(problem, err)
}

// connect takes the node's network from nothing to serving, each step on what the one before made.
func (r *Reconciler) connect(ctx context.Context, node *corev1.Node) error {
	join, err := v1.ParsePodNetwork(node.Annotations)
	if err != nil {
		return fmt.Errorf("annotations of node %s: %w", node.Name, err)
	}
	if !join.Allocated || len(join.Addresses) == 0 || len(join.MAC) == 0 {
		return Waiting("kube-ovn-controller to write the addresses of this node in its annotations")
	}
	var subnets v1.SubnetList
	if err := r.Client.List(ctx, &subnets); err != nil {
		return fmt.Errorf("list subnets: %w", err)
	}
	plan, err := NewPlan(join, node, subnets.Items, r.Services)
	if err != nil {
		return err
	}
	if err := r.Bridge.Ready(ctx); err != nil {
		return Waiting(err.Error())
	}
	mtu, err := r.MTU(ctx)
	if err != nil {
		return err
	}
	port := ovs.Internal{Name: JoinInterface, LogicalPort: "node-" + node.Name, MAC: join.MAC.String(), MTU: mtu}
	if err := r.Bridge.EnsureInternal(ctx, port); err != nil {
		return err
	}
	link, err := setJoinInterface(join.MAC, mtu, plan.Addresses)
	if err != nil {
		return err
	}
	if err := setForwarding(plan.Addresses); err != nil {
		return err
	}
	if err := setRoutes(link, plan.Routes); err != nil {
		return err
	}
	if err := r.masquerade(ctx, plan.Masquerade); err != nil {
		return err
	}
	switch installed, err := r.Bridge.Installed(ctx, JoinInterface); {
	case err != nil:
		return err
	case !installed:
		return Waiting("ovn-controller to install the flows of " + port.LogicalPort)
	}
	return r.Plugin.Install()
}

// masquerade writes to nftables when there is something new, and at each resync: others may have flushed the table.
func (r *Reconciler) masquerade(ctx context.Context, m Masquerade) error {
	if r.served.equal(m) && time.Since(r.at) < resync/2 {
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
