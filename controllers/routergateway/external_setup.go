// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routergateway

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// indexVpc finds OvnEips by the VPC for whose port they were created.
const indexVpc = "routergateway.vpc"

// Reasons of the condition ExternalReady.
const (
	// ReasonConnected: the router has a port in each external subnet.
	ReasonConnected = "Connected"
)

// SetupWithManager registers the reconciler. It enqueues a Vpc for changes of: the Vpc, with its way out; its external subnets, their Vlans, ProviderNetworks and the
// nodes that are ready for these; its own subnets, with their routing tables; its OvnEips; nodes that were absent; the CIDRs of Services; the settings of the OVNCluster;
// the status of its BFD sessions; and drift of its rows.
func (r *External) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.OvnEip{}, indexVpc, vpcOfEip); err != nil {
		return fmt.Errorf("index OvnEips by VPC: %w", err)
	}
	b := ctrl.NewControllerManagedBy(mgr)
	if r.ServiceCIDRs.Served() {
		b = b.Watches(&networkingv1.ServiceCIDR{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	return b.
		Named("external").
		For(&kubeovnv1.Vpc{}, builder.WithPredicates(k8s.Changed(viewExternalVpc))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.onSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&kubeovnv1.Vlan{}, handler.EnqueueRequestsFromMapFunc(r.onVlan), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kubeovnv1.ProviderNetwork{}, handler.EnqueueRequestsFromMapFunc(r.onProvider), builder.WithPredicates(k8s.Changed(viewReadyNodes))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.onNode), builder.WithPredicates(k8s.Changed(r.viewHost))).
		Watches(&kubeovnv1.OvnEip{}, handler.EnqueueRequestsFromMapFunc(r.onEip)).
		Watches(&kubeovnv1.OvnEip{}, handler.EnqueueRequestsFromMapFunc(r.onAbsent), builder.WithPredicates(k8s.Changed(viewAbsent))).
		WatchesRawSource(r.Settings.Source()).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindExternal)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, &kubeovnv1.Vpc{}, reconciler.OwnersOf(r.Northbound, translate.KindExternal))).
		WithOptions(r.Gate.Workers(4)).
		Complete(r.Gate.Reconciler(r))
}

// hostView has the fields of a Node that its rank as a host depends on.
type hostView struct {
	state    gateway.State
	selected bool
}

func (r *External) viewHost(node *corev1.Node) hostView {
	return hostView{StateOf(node), r.Settings.hosts(node)}
}

// externalVpcView has the fields of a Vpc that its external ports depend on: its spec, and the condition of its gateway router, whose default route precedes.
type externalVpcView struct {
	k8s.VpcView

	transit, external string
}

func viewExternalVpc(vpc *kubeovnv1.Vpc) externalVpcView {
	view := externalVpcView{VpcView: k8s.ViewVpc(vpc), external: lookup.ViewExternal(vpc)}
	if c := apimeta.FindStatusCondition(vpc.Status.Conditions, kubeovnv1.ConditionTransitReady); c != nil {
		view.transit = string(c.Status) + c.Message
	}
	return view
}

func viewReadyNodes(p *kubeovnv1.ProviderNetwork) string {
	return strings.Join(p.Status.ReadyNodes, ",") + " " + strings.Join(p.Status.Vlans, ",")
}

// vpcOfEip returns the VPC that owns an OvnEip.
func vpcOfEip(o client.Object) []string {
	for _, ref := range o.GetOwnerReferences() {
		if ref.Kind == translate.KindVpc && ref.APIVersion == kubeovnv1.GroupVersion.String() {
			return []string{ref.Name}
		}
	}
	return nil
}

func (r *External) all(ctx context.Context, _ client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.VpcList{})
}

// onSubnet enqueues the VPCs that use an external subnet, and the VPC of another subnet if it has external ports.
func (r *External) onSubnet(ctx context.Context, o client.Object) []reconcile.Request {
	vpcs, err := r.Networks.VpcsWithExternal(ctx, o.GetName())
	if err != nil {
		return nil // the cache is stopping
	}
	for _, s := range lookup.Specs(o.(*kubeovnv1.Subnet)) {
		vpc := &kubeovnv1.Vpc{}
		if r.Client.Get(ctx, client.ObjectKey{Name: lookup.VpcOf(s)}, vpc, client.UnsafeDisableDeepCopy) == nil && len(lookup.ExternalOf(vpc)) > 0 {
			vpcs = append(vpcs, vpc.Name)
		}
	}
	return k8s.Requests(vpcs...)
}

func (r *External) onVlan(ctx context.Context, o client.Object) []reconcile.Request {
	subnets, err := r.Networks.SubnetsOfVlan(ctx, o.GetName())
	if err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	for i := range subnets {
		vpcs, err := r.Networks.VpcsWithExternal(ctx, subnets[i].Name)
		if err != nil {
			return nil // the cache is stopping
		}
		requests = append(requests, k8s.Requests(vpcs...)...)
	}
	return requests
}

func (r *External) onProvider(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, vlan := range o.(*kubeovnv1.ProviderNetwork).Status.Vlans {
		requests = append(requests, r.onVlan(ctx, &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: vlan}})...)
	}
	return requests
}

func (r *External) onNode(ctx context.Context, o client.Object) []reconcile.Request {
	var networks kubeovnv1.ProviderNetworkList
	if err := r.Client.List(ctx, &networks, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	for i := range networks.Items {
		if slices.Contains(networks.Items[i].Status.ReadyNodes, o.GetName()) {
			requests = append(requests, r.onProvider(ctx, &networks.Items[i])...)
		}
	}
	return requests
}

func viewAbsent(eip *kubeovnv1.OvnEip) string { return strings.Join(lookup.AbsentNodes(eip), ",") }

// onAbsent enqueues all VPCs if an OvnEip has absent nodes, or had some before the event.
func (r *External) onAbsent(ctx context.Context, o client.Object) []reconcile.Request {
	if len(lookup.AbsentNodes(o)) == 0 {
		return nil
	}
	return r.all(ctx, o)
}

// onEip enqueues the VPCs for whose ports an OvnEip may be.
func (r *External) onEip(ctx context.Context, o client.Object) []reconcile.Request {
	eip := o.(*kubeovnv1.OvnEip)
	vpcs, err := r.Networks.VpcsWithExternal(ctx, lookup.ExternalOfEip(eip))
	if err != nil {
		return nil // the cache is stopping
	}
	vpcs = slices.DeleteFunc(vpcs, func(vpc string) bool { return translate.ExternalEip(vpc, lookup.ExternalOfEip(eip)) != eip.Name })
	return k8s.Requests(append(vpcs, vpcOfEip(eip)...)...)
}

// patchStatus writes the outcome into the status of a VPC.
func (r *External) patchStatus(ctx context.Context, vpc *kubeovnv1.Vpc, found external) error {
	base := vpc.DeepCopy()
	if found.err == nil {
		vpc.Status.EnableExternal, vpc.Status.ExtraExternalSubnets = false, nil
		for _, c := range found.connections {
			switch {
			case c.port == nil:
			case len(k8s.AppliedVpc(vpc).Spec.ExtraExternalSubnets) == 0:
				vpc.Status.EnableExternal = true
			default:
				vpc.Status.ExtraExternalSubnets = append(vpc.Status.ExtraExternalSubnets, c.subnet)
			}
		}
	}
	found.bfd.setStatus(vpc, found.routed)
	k8s.SetConditions(&vpc.Status.Conditions, vpc.Generation, found.condition(vpc.Name))
	k8s.WarnAnew(r.Recorder, vpc, base.Status.Conditions, vpc.Status.Conditions, kubeovnv1.ConditionExternalReady, kubeovnv1.ConditionBFDUp)
	return k8s.PatchStatus(ctx, r.Client, base, vpc)
}

// condition returns the condition ExternalReady.
func (e external) condition(vpc string) metav1.Condition {
	c := metav1.Condition{Type: kubeovnv1.ConditionExternalReady, Status: metav1.ConditionTrue, Reason: ReasonConnected}
	var parts, missing []string
	errs := []error{e.err}
	for _, connection := range e.connections {
		if p := connection.port; p != nil && e.err == nil {
			parts = append(parts, fmt.Sprintf("the router has %s in subnet %s, on the first of %s that is up", ipfamily.Join(p.Addresses), p.Subnet, strings.Join(p.Chassis, ", ")))
		}
		errs = append(errs, connection.err)
	}
	for _, err := range errs {
		if err == nil {
			continue
		}
		ready := k8s.Ready(err, northbound.ErrWaiting)
		if c.Status == metav1.ConditionTrue || c.Reason == kubeovnv1.ReasonWaiting {
			c.Status, c.Reason = metav1.ConditionFalse, ready.Reason
		}
		missing = append(missing, ready.Message)
	}
	if vpc != kubeovnv1.DefaultVpc && e.err == nil {
		for _, family := range e.routed {
			parts = append(parts, fmt.Sprintf("the default route of %s leads through an external port", family))
		}
		for _, family := range e.held {
			parts = append(parts, fmt.Sprintf("the default route of %s still leads to the VPC's gateway router", family))
		}
	}
	c.Message = strings.Join(append(missing, parts...), "; ")
	return c
}

// clearStatus removes the fields and the condition of a VPC without external subnets.
func (r *External) clearStatus(ctx context.Context, vpc *kubeovnv1.Vpc) error {
	base := vpc.DeepCopy()
	vpc.Status.EnableExternal, vpc.Status.ExtraExternalSubnets = false, nil
	apimeta.RemoveStatusCondition(&vpc.Status.Conditions, kubeovnv1.ConditionExternalReady)
	bfd{}.setStatus(vpc, nil)
	return k8s.PatchStatus(ctx, r.Client, base, vpc)
}
