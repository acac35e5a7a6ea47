// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Indexes of subnets, by their last valid specs.
const (
	// indexCentralized lists subnets with a centralized gateway under the value centralized.
	indexCentralized = "gateway.centralized"
	centralized      = "true"
	// indexTable lists subnets with an external gateway by their routing table.
	indexTable = "gateway.table"
)

// SetupWithManager registers the reconciler. It enqueues a Subnet for changes of: the Subnet; its candidate nodes and their Leases; subnets
// with the same routing table; and drift of its rows.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	for name, extract := range map[string]func(*kubeovnv1.Subnet) []string{
		indexCentralized: func(s *kubeovnv1.Subnet) []string {
			if gateway.Centralized(s) {
				return []string{centralized}
			}
			return nil
		},
		indexTable: func(s *kubeovnv1.Subnet) []string {
			if gateway.UsesTable(s) {
				return []string{tableOf(s)}
			}
			return nil
		},
	} {
		err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.Subnet{}, name, func(o client.Object) []string {
			if valid := k8s.WithValidSpec(o.(*kubeovnv1.Subnet)); valid != nil {
				return extract(valid)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("index subnets by %s: %w", name, err)
		}
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("gateway").
		For(&kubeovnv1.Subnet{}, builder.WithPredicates(k8s.Changed(viewSubnet))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.onTable), builder.WithPredicates(k8s.Changed(usedTable))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.onNode), builder.WithPredicates(k8s.Changed(viewNode))).
		WatchesRawSource(r.Leases.source(r.behind)).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindGateway)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, &kubeovnv1.Subnet{}, reconciler.OwnersOf(r.Northbound, translate.KindGateway))).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

// usedTable returns the routing table that nodes keep for a subnet, or "".
func usedTable(subnet *kubeovnv1.Subnet) string {
	if s := k8s.WithValidSpec(subnet); s != nil && gateway.UsesTable(s) {
		return tableOf(s)
	}
	return ""
}

func tableOf(s *kubeovnv1.Subnet) string { return strconv.Itoa(int(s.Spec.PolicyRoutingTableID)) }

// subnetView holds the fields of a Subnet that the reconciler depends on: its spec, and the fields in status that it writes.
type subnetView struct {
	k8s.SubnetView
	active string
	ready  string
	rules  int
}

func viewSubnet(s *kubeovnv1.Subnet) subnetView {
	view := subnetView{SubnetView: k8s.ViewSubnet(s), active: s.Status.ActivateGateway, rules: len(s.Status.NATOutgoingPolicyRules)}
	if c := apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionGatewayReady); c != nil {
		view.ready = string(c.Status) + c.Reason + c.Message
	}
	return view
}

// nodeView holds the fields that determine whether a node can be a gateway.
type nodeView struct {
	up       gateway.State
	hops     string
	labels   string
	leaving  bool
	cordoned bool
}

func viewNode(n *corev1.Node) nodeView {
	return nodeView{
		up: gateway.StateOf(n, gateway.NoLease), hops: join.Published(n), labels: labels.Set(n.Labels).String(),
		leaving: n.DeletionTimestamp != nil, cordoned: n.Spec.Unschedulable,
	}
}

// onNode returns the subnets for which a node is a gateway candidate.
func (r *Reconciler) onNode(ctx context.Context, node client.Object) []reconcile.Request {
	return k8s.Requests(r.behind(ctx, node.GetName(), node.GetLabels())...)
}

// behind returns the subnets for which a node is a gateway candidate. If its labels are unknown, it returns all subnets that do not name
// nodes.
func (r *Reconciler) behind(ctx context.Context, node string, nodeLabels map[string]string) []string {
	var list kubeovnv1.SubnetList
	err := r.Client.List(ctx, &list, client.MatchingFields{indexCentralized: centralized}, client.UnsafeDisableDeepCopy)
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot list subnets with centralized gateways")
		return nil
	}
	var subnets []string
	for i := range list.Items {
		s := &list.Items[i]
		spec, err := gateway.Parse(k8s.ValidSpec(s))
		if err == nil && (spec.Includes(node, nodeLabels) || nodeLabels == nil && len(spec.Nodes) == 0) {
			subnets = append(subnets, s.Name)
		}
	}
	return subnets
}

// onTable returns the other subnets that share the routing table of a subnet.
func (r *Reconciler) onTable(ctx context.Context, o client.Object) []reconcile.Request {
	changed := k8s.WithValidSpec(o.(*kubeovnv1.Subnet))
	if changed == nil || changed.Spec.PolicyRoutingTableID == 0 {
		return nil
	}
	sharing := k8s.Listed(ctx, r.Client, &kubeovnv1.SubnetList{}, client.MatchingFields{indexTable: tableOf(changed)})
	return slices.DeleteFunc(sharing, func(req reconcile.Request) bool { return req.Name == changed.Name })
}

func sortByName(nodes []*corev1.Node) {
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
}
