// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/routergateway"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/limits"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/validation"
)

// SetupWithManager registers the reconciler. It enqueues a Subnet for changes of: the Subnet; its condition GatewayReady; its Vlan and the nodes that are ready for its ProviderNetwork, with their states; the namespaces that it names or selects, and their pods in the default subnet; other subnets, VPCs, nodes, CIDRs of Services
// and the API server, with which its addresses or names can conflict; pods that share its vips; Vips and OvnEips that load balancers serve;
// the limits of pods in the OVNCluster; the usage of its addresses; reports of nodes about its gateway; its own IP objects; and drift of its rows.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, indexVips, shareKeys); err != nil {
		return fmt.Errorf("index pods by the addresses that they share: %w", err)
	}
	for _, o := range []client.Object{&kubeovnv1.Vip{}, &kubeovnv1.OvnEip{}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, o, indexBalanced, balancedIn); err != nil {
			return fmt.Errorf("index the %T of load balancers by subnet: %w", o, err)
		}
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Node{}, indexSilent, silentOn); err != nil {
		return fmt.Errorf("index nodes by subnets whose gateways do not answer: %w", err)
	}
	r.silent.Delay, r.silent.Every = cmp.Or(r.SilentDelay, silentDelay), cmp.Or(r.SilentEvery, silentEvery)
	if r.Limits == nil {
		r.Limits = &limits.Cluster{}
	}
	b := ctrl.NewControllerManagedBy(mgr)
	if r.ServiceCIDRs.Served() {
		b = b.Watches(&networkingv1.ServiceCIDR{}, handler.EnqueueRequestsFromMapFunc(r.aroundServices), builder.WithPredicates(k8s.ComesOrGoes))
	}
	return b.
		For(&kubeovnv1.Subnet{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, k8s.Changed(withoutGateway), k8s.Changed(logsUntil)))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.affectedSubnets), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&kubeovnv1.Vpc{}, handler.EnqueueRequestsFromMapFunc(r.aroundVpc), builder.WithPredicates(k8s.Changed(viewVpc))).
		Watches(&kubeovnv1.Vpc{}, handler.EnqueueRequestsFromMapFunc(r.inVpc), builder.WithPredicates(k8s.Changed(withoutRouter))).
		Watches(&kubeovnv1.Vlan{}, handler.EnqueueRequestsFromMapFunc(r.onVlan), builder.WithPredicates(k8s.Changed(viewVlan))).
		Watches(&kubeovnv1.ProviderNetwork{}, handler.EnqueueRequestsFromMapFunc(r.onProvider), builder.WithPredicates(k8s.Changed(viewProvider))).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.binding), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&corev1.Pod{}, r.Namespaces.OnMisplaced(r.bindingNamed)).
		Watches(&kubeovnv1.IP{}, handler.EnqueueRequestsFromMapFunc(r.aroundNode), builder.WithPredicates(k8s.NodeRecords(k8s.Changed(viewNode)))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.onHost), builder.WithPredicates(k8s.Changed(routergateway.StateOf))).
		Watches(&corev1.Node{}, r.onSilentGateways()).
		WatchesRawSource(&r.silent).
		WatchesRawSource(&r.Limits.Changed).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.aroundAPIServer),
			builder.WithPredicates(predicate.NewPredicateFuncs(lookup.IsOfAPIServer))).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(subnetOfPod), shares()).
		Watches(&kubeovnv1.Vip{}, handler.EnqueueRequestsFromMapFunc(subnetOfBalanced), builder.WithPredicates(k8s.Changed(viewBalanced))).
		Watches(&kubeovnv1.OvnEip{}, handler.EnqueueRequestsFromMapFunc(subnetOfBalanced), builder.WithPredicates(k8s.Changed(viewEip))).
		WatchesRawSource(r.Gate.After(source.Kind[client.Object](mgr.GetCache(), &kubeovnv1.IP{},
			handler.EnqueueRequestsFromMapFunc(subnetOfRecord), deleted))).
		WatchesRawSource(r.onUse()).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindSubnet)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, &kubeovnv1.Subnet{}, reconciler.OwnersOf(r.Northbound, translate.KindSubnet))).
		WithOptions(r.Gate.Workers(workers)).
		Complete(r.Gate.Reconciler(r))
}

// vpcView holds the fields of a VPC that the reconciler uses. It includes links in status, because a subnet may wait for the removal of a
// link.
type vpcView struct {
	k8s.VpcView

	links string
}

func viewVpc(vpc *kubeovnv1.Vpc) vpcView {
	return vpcView{k8s.ViewVpc(vpc), strings.Join(vpc.Status.VpcPeerings, ",")}
}

func viewNode(ip *kubeovnv1.IP) string { return ipfamily.Join(k8s.AddressesOfNode(ip)) }

// affectedSubnets enqueues other subnets that the creation, change or deletion of a subnet may affect: subnets that overlap with it,
// subnets with a conflicting port name and, for the subnet `join`, private subnets, which allow nodes.
func (r *Reconciler) affectedSubnets(ctx context.Context, o client.Object) []reconcile.Request {
	changed := o.(*kubeovnv1.Subnet)
	requests := r.sameNames(ctx, changed)
	for _, s := range lookup.Specs(changed) {
		cidrs, _ := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
		requests = append(requests, r.overlapping(ctx, lookup.VpcOf(s), cidrs)...)
		if onVlan, err := r.onSameVlan(ctx, s, cidrs); err == nil { // else the cache is stopping
			requests = append(requests, k8s.RequestsOf[*kubeovnv1.Subnet](onVlan)...)
		}
	}
	if changed.Name == kubeovnv1.JoinSubnet {
		requests = append(requests, r.subnetsOf(ctx, kubeovnv1.DefaultVpc, func(s *kubeovnv1.Subnet) bool { return s.Spec.Private })...)
	}
	return slices.DeleteFunc(requests, func(req reconcile.Request) bool { return req.Name == changed.Name })
}

// subnetsOf returns requests for the subnets of a VPC that which selects.
func (r *Reconciler) subnetsOf(ctx context.Context, vpc string, which func(*kubeovnv1.Subnet) bool) []reconcile.Request {
	subnets, err := r.Networks.SubnetsOf(ctx, vpc)
	if err != nil {
		return nil // the cache is stopping
	}
	return requestsFor(subnets, which)
}

func requestsFor(subnets []kubeovnv1.Subnet, which func(*kubeovnv1.Subnet) bool) []reconcile.Request {
	var requests []reconcile.Request
	for i := range subnets {
		if which(&subnets[i]) {
			requests = append(requests, k8s.Request(subnets[i].Name))
		}
	}
	return requests
}

// aroundVpc enqueues the subnets that the creation, change or deletion of a VPC may affect: the subnet of its name, subnets that overlap
// with its links, subnets with a conflicting port name, and subnets whose condition NamespacesBound changes.
func (r *Reconciler) aroundVpc(ctx context.Context, o client.Object) []reconcile.Request {
	vpc := o.(*kubeovnv1.Vpc)
	requests := r.sameNames(ctx, vpc)
	if namesake, err := r.Networks.SameName(ctx, vpc); err == nil && namesake != nil {
		requests = append(requests, k8s.Request(namesake.GetName()))
	}
	vpc = k8s.AppliedVpc(vpc)
	router, _ := validation.Vpc(vpc.Name, &vpc.Spec)
	return slices.Concat(requests, r.overlapping(ctx, vpc.Name, router.Networks()), r.boundOtherwise(ctx, vpc))
}

// deleted selects the deletion of an object.
var deleted = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(event.UpdateEvent) bool { return false },
}

// inVpc enqueues the subnets of a VPC.
func (r *Reconciler) inVpc(ctx context.Context, o client.Object) []reconcile.Request {
	return r.subnetsOf(ctx, o.GetName(), func(*kubeovnv1.Subnet) bool { return true })
}

// boundOtherwise returns requests for the subnets of a custom VPC whose condition NamespacesBound is stale.
func (r *Reconciler) boundOtherwise(ctx context.Context, vpc *kubeovnv1.Vpc) []reconcile.Request {
	if vpc.Name == kubeovnv1.DefaultVpc {
		return nil
	}
	return r.subnetsOf(ctx, vpc.Name, func(s *kubeovnv1.Subnet) bool { return r.isBoundOtherwise(ctx, s, vpc) })
}

// aroundNode enqueues the subnets that contain addresses of a node, which are in the IP object of its port.
func (r *Reconciler) aroundNode(ctx context.Context, o client.Object) []reconcile.Request {
	return r.around(ctx, k8s.AddressesOfNode(o.(*kubeovnv1.IP)))
}

// aroundAPIServer enqueues the subnets that contain addresses of the API server.
func (r *Reconciler) aroundAPIServer(ctx context.Context, o client.Object) []reconcile.Request {
	return r.around(ctx, lookup.EndpointAddresses(o.(*discoveryv1.EndpointSlice)))
}

func (r *Reconciler) around(ctx context.Context, addrs []netip.Addr) []reconcile.Request {
	return r.overlapping(ctx, kubeovnv1.DefaultVpc, ipfamily.Hosts(addrs))
}

// aroundServices enqueues the subnets that overlap with a ServiceCIDR. The CIDRs of a ServiceCIDR are immutable.
func (r *Reconciler) aroundServices(ctx context.Context, o client.Object) []reconcile.Request {
	return r.overlapping(ctx, kubeovnv1.DefaultVpc, svc.PrefixesOf(o.(*networkingv1.ServiceCIDR)))
}

// overlapping returns requests for the subnets of a VPC that overlap with any of the prefixes, or do once they have grown.
func (r *Reconciler) overlapping(ctx context.Context, vpc string, prefixes []netip.Prefix) []reconcile.Request {
	subnets, err := r.Networks.Overlapping(ctx, vpc, prefixes)
	if err != nil {
		return nil // the cache is stopping
	}
	requests := k8s.RequestsOf[*kubeovnv1.Subnet](subnets)
	if vpc == kubeovnv1.DefaultVpc {
		requests = append(requests, k8s.Requests(r.Defaults.growing(prefixes)...)...)
	}
	return requests
}

// sameNames returns requests for the subnets with a port name that conflicts with one of the object.
func (r *Reconciler) sameNames(ctx context.Context, o client.Object) []reconcile.Request {
	conflicts, err := r.Networks.PortNameConflicts(ctx, o)
	if err != nil {
		return nil // the cache is stopping
	}
	return k8s.RequestsOf[*kubeovnv1.Subnet](conflicts)
}
