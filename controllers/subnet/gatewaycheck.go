// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// indexSilent finds nodes by the gateways that have not answered their pods: by ProviderNetwork and subnet (silentKey).
const indexSilent = "subnet.silentGateways"

// Reports of nodes about gateways are batched, because a node can change its report at any time.
const (
	silentDelay = time.Second
	silentEvery = 10 * time.Second
)

// silentOn returns the keys of indexSilent.
func silentOn(o client.Object) []string {
	var keys []string
	for _, g := range kubeovnv1.SilentGateways(o.GetAnnotations()) {
		keys = append(keys, silentKey(g.Provider, g.Subnet))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func silentKey(provider, subnet string) string { return provider + "/" + subnet }

// silentBySubnet returns the gateways that have not answered pods of a node, as text.
func silentBySubnet(node client.Object) map[string]string {
	bySubnet := map[string]string{}
	for _, g := range kubeovnv1.SilentGateways(node.GetAnnotations()) {
		bySubnet[g.Subnet] += " " + silentKey(g.Provider, g.Address.String())
	}
	return bySubnet
}

// onSilentGateways reports the subnets of gateways about which a node's report changes. A node can write any name.
func (r *Reconciler) onSilentGateways() handler.EventHandler {
	changed := func(ctx context.Context, before, after map[string]string) {
		for _, reports := range []map[string]string{before, after} {
			for name := range reports {
				if before[name] == after[name] {
					continue
				}
				subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
				if err == nil && subnet != nil && subnet.Spec.ChecksGateway() {
					r.silent.Changed(name)
				}
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, _ k8s.Queue) {
			changed(ctx, nil, silentBySubnet(e.Object))
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ k8s.Queue) {
			if before, after := e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations(); !maps.Equal(before, after) {
				changed(ctx, silentBySubnet(e.ObjectOld), silentBySubnet(e.ObjectNew))
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ k8s.Queue) {
			changed(ctx, silentBySubnet(e.Object), nil)
		},
	}
}

// setGatewayAnswers sets the condition GatewayAnswers of an underlay subnet, and removes it from other subnets. Only the subnet's own gateways and names
// of nodes get into the message. Reports count if they are about the subnet's ProviderNetwork, from nodes that it selects.
func (r *Reconciler) setGatewayAnswers(ctx context.Context, in inputs) error {
	subnet, conditions := in.subnet, &in.subnet.Status.Conditions
	if !subnet.Spec.ChecksGateway() || subnet.DeletionTimestamp != nil {
		apimeta.RemoveStatusCondition(conditions, kubeovnv1.ConditionGatewayAnswers)
		return nil
	}
	gateways, err := ipfamily.ParseAddrs(subnet.Spec.Gateway)
	if err != nil {
		return nil // the condition Validated has the reason
	}
	reporting, provider, err := r.silentNodes(ctx, in)
	if err != nil {
		return err
	}
	var nodes []string
	silent := map[netip.Addr]bool{}
	for _, node := range reporting {
		for _, g := range kubeovnv1.SilentGateways(node.Annotations) {
			if g.Provider == provider && g.Subnet == subnet.Name && slices.Contains(gateways, g.Address) {
				silent[g.Address] = true
				nodes = append(nodes, node.Name)
			}
		}
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	before := slices.Clone(*conditions)
	c := metav1.Condition{
		Type: kubeovnv1.ConditionGatewayAnswers, Status: metav1.ConditionTrue, Reason: kubeovnv1.ReasonGatewayAnswers,
		Message: "no node reports that the gateway has not answered",
	}
	if len(nodes) > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, kubeovnv1.ReasonGatewayNotAnswering
		c.Message = fmt.Sprintf("gateway %s does not answer; new pods wait on %d nodes: %s: see if the physical switch passes the VLAN and the MAC addresses of "+
			"pods, or set disableGatewayCheck", ipfamily.Join(slices.SortedFunc(maps.Keys(silent), netip.Addr.Compare)), len(nodes), k8s.Some(nodes, maxNamed))
	}
	k8s.SetConditions(conditions, subnet.Generation, c)
	k8s.WarnAnew(r.Recorder, subnet, before, *conditions, c.Type)
	return nil
}

// silentNodes returns the nodes that report gateways of a subnet about its ProviderNetwork, and the name of this ProviderNetwork.
func (r *Reconciler) silentNodes(ctx context.Context, in inputs) ([]*corev1.Node, string, error) {
	if in.vlan == nil {
		return nil, "", nil
	}
	name := in.vlan.Spec.Provider
	provider, err := k8s.Find[kubeovnv1.ProviderNetwork](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, "", fmt.Errorf("get ProviderNetwork %s: %w", name, err)
	}
	if provider == nil {
		return nil, "", nil
	}
	var all corev1.NodeList
	if err := r.Client.List(ctx, &all, client.MatchingFields{indexSilent: silentKey(name, in.subnet.Name)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, "", fmt.Errorf("list nodes whose pods got no answer of a gateway: %w", err)
	}
	var nodes []*corev1.Node
	for i := range all.Items {
		node := &all.Items[i]
		if selected, err := provider.Spec.Selects(node.Name, node.Labels); err == nil && selected {
			nodes = append(nodes, node)
		}
	}
	return nodes, name, nil
}
