// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package egress routes the traffic that leaves a subnet with a centralized gateway through gateway nodes that are up.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Reconciler reconciles the centralized gateway of each Subnet: router policies to its gateway nodes, and the gateway in its status.
type Reconciler struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Recorder   events.EventRecorder
	Gate       *reconciler.StartGate
	// LeaseStates of the gateway nodes; nil if their Leases are not watched.
	Leases *LeaseStates

	reported reconciler.Reports[string, gatewaySpec]
}

// Reconcile applies the gateway of one Subnet. While its spec is invalid, the last valid one applies, as on nodes, and its gateway still
// fails over.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get subnet %s: %w", req.Name, err)
	}
	if subnet == nil {
		r.reported.Forget(req.Name)
		return ctrl.Result{}, r.remove(ctx, req.Name)
	}
	valid := k8s.WithValidSpec(subnet)
	if valid == nil {
		return ctrl.Result{}, nil // the condition Validated of the subnet has the reason
	}
	in, err := r.gather(ctx, subnet, valid)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("gather inputs of the gateway of subnet %s: %w", subnet.Name, err)
	}
	err = r.apply(ctx, in)
	if err == nil {
		r.tellOfSpec(in)
	}
	return ctrl.Result{}, errors.Join(k8s.Unless(err, northbound.ErrWaiting), r.patchStatus(ctx, in, err))
}

// inputs is the state from which the gateway of a subnet is computed.
type inputs struct {
	subnet *kubeovnv1.Subnet
	// valid is the subnet with its last valid spec.
	valid *kubeovnv1.Subnet
	cidrs []netip.Prefix
	// centralized: the traffic leaves through gateway nodes.
	centralized bool
	spec        gateway.Spec
	candidates  []gateway.Candidate
	// hops are the addresses of the candidates on the join switch, by node.
	hops map[string][]netip.Addr
	// selected are the candidates that forward the traffic.
	selected []string
	// conflict is the subnet that already uses the routing table; nil if there is none.
	conflict *kubeovnv1.Subnet
}

func (r *Reconciler) gather(ctx context.Context, subnet, valid *kubeovnv1.Subnet) (inputs, error) {
	in := inputs{subnet: subnet, valid: valid, centralized: gateway.Centralized(valid), hops: map[string][]netip.Addr{}}
	var err error
	if in.cidrs, err = ipfamily.ParseCIDRs(valid.Spec.CIDRBlock); err != nil {
		return in, err
	}
	if in.conflict, err = r.tableConflict(ctx, valid); err != nil || !in.centralized {
		return in, err
	}
	if in.spec, err = gateway.Parse(&valid.Spec); err != nil {
		return in, err
	}
	nodes, err := r.nodes(ctx, in.spec)
	if err != nil {
		return in, err
	}
	for _, node := range nodes {
		r.Leases.Expect(node.Name) // the node may fail before its first renewal
		candidate := gateway.Candidate{Name: node.Name, State: gateway.StateOf(node, r.Leases.Of(node.Name))}
		hops := join.AddressesOf(r.Allocator, node)
		if len(hops) == 0 {
			candidate.State = gateway.Down // it is not connected yet
		}
		in.candidates, in.hops[node.Name] = append(in.candidates, candidate), hops
	}
	in.selected = gateway.Choose(in.candidates, activeOf(subnet), in.spec.ECMP)
	gateway.LogChoice(logr.FromContextOrDiscard(ctx), "subnet", subnet.Name, in.candidates, activeOf(subnet), in.selected)
	return in, nil
}

// nodes returns the existing nodes that a spec names, in the order of the spec, or the nodes that it selects, sorted by name.
func (r *Reconciler) nodes(ctx context.Context, spec gateway.Spec) ([]*corev1.Node, error) {
	var nodes []*corev1.Node
	for _, entry := range spec.Nodes {
		node, err := k8s.Find[corev1.Node](ctx, r.Client, client.ObjectKey{Name: entry.Name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get node %s: %w", entry.Name, err)
		}
		if node != nil {
			nodes = append(nodes, node)
		}
	}
	if len(spec.Nodes) > 0 || len(spec.Selectors) == 0 {
		return nodes, nil
	}
	var list corev1.NodeList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for i := range list.Items {
		if node := &list.Items[i]; spec.Includes(node.Name, node.Labels) {
			nodes = append(nodes, node)
		}
	}
	sortByName(nodes)
	return nodes, nil
}

func (r *Reconciler) tableConflict(ctx context.Context, subnet *kubeovnv1.Subnet) (*kubeovnv1.Subnet, error) {
	if !gateway.UsesTable(subnet) {
		return nil, nil
	}
	var list kubeovnv1.SubnetList
	err := r.Client.List(ctx, &list, client.MatchingFields{indexTable: tableOf(subnet)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list subnets with routing table %s: %w", tableOf(subnet), err)
	}
	var others []*kubeovnv1.Subnet
	for i := range list.Items {
		if other := k8s.WithValidSpec(&list.Items[i]); other != nil {
			others = append(others, other)
		}
	}
	return gateway.TableConflict(subnet, others), nil
}

func (r *Reconciler) apply(ctx context.Context, in inputs) error {
	owner := translate.GatewayOwner(in.subnet.Name)
	if !in.centralized {
		return r.remove(ctx, in.subnet.Name)
	}
	var hops []netip.Addr
	for _, name := range in.selected {
		hops = append(hops, in.hops[name]...)
	}
	err := r.Northbound.Apply(ctx, owner, translate.Gateway(translate.GatewayInputs{
		Vpc: kubeovnv1.DefaultVpc, CIDRs: in.cidrs, NextHops: hops,
	}))
	if err != nil {
		return fmt.Errorf("apply the gateway of subnet %s: %w", in.subnet.Name, err)
	}
	measure(in, hops)
	return nil
}

// remove deletes the gateway of a subnet from the database. It is idempotent.
func (r *Reconciler) remove(ctx context.Context, subnet string) error {
	unmeasure(subnet)
	if err := r.Northbound.Apply(ctx, translate.GatewayOwner(subnet), nil); err != nil {
		return fmt.Errorf("delete the gateway of subnet %s: %w", subnet, err)
	}
	return nil
}

// is reports whether two conditions have the same status, reason and message.
func is(a *metav1.Condition, b metav1.Condition) bool {
	return a != nil && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}
