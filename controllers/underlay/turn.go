// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// Reasons of nodes, as agents report them (internal/providerbridge).
const (
	reasonAwaitingTurn = "AwaitingTurn"
	reasonRolledBack   = "RolledBack"
)

// refusals are the reasons of nodes that have moved nothing, and do not until something else changes.
var refusals = []string{"InterfaceNotFound", "InterfaceUnsuitable", "NoCarrier", "Conflict", "InterfaceManaged", "GatewayUnreachable", "InvalidRequest"}

// nextTurn returns which node may move an interface with addresses. The turn stays at a node until its move has succeeded, so that a configuration that
// cuts nodes off reaches one node only.
func nextTurn(pn *kubeovnv1.ProviderNetwork, before *kubeovnv1.ProviderNetworkTurn, causes []kubeovnv1.ProviderNetworkCondition, free bool) *kubeovnv1.ProviderNetworkTurn {
	if before != nil && before.Generation == pn.Generation {
		of := func(c kubeovnv1.ProviderNetworkCondition) bool { return c.Node == before.Node }
		if i := slices.IndexFunc(causes, of); i >= 0 { // it is selected, and not ready
			turn := *before
			turn.Failed = turn.Failed || causes[i].Reason == reasonRolledBack
			if turn.Failed || !slices.Contains(refusals, causes[i].Reason) {
				return &turn
			}
		}
	}
	waits := func(c kubeovnv1.ProviderNetworkCondition) bool { return c.Reason == reasonAwaitingTurn }
	if i := slices.IndexFunc(causes, waits); i >= 0 && free {
		return &kubeovnv1.ProviderNetworkTurn{Node: causes[i].Node, Generation: pn.Generation}
	}
	return nil
}

// othersWait reports whether no node has its turn in another network.
func (r *ProviderReconciler) othersWait(ctx context.Context, pn *kubeovnv1.ProviderNetwork) (bool, error) {
	if r.holder != "" && r.holder != pn.Name {
		return false, nil
	}
	var all kubeovnv1.ProviderNetworkList
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list ProviderNetworks: %w", err)
	}
	return !slices.ContainsFunc(all.Items, func(o kubeovnv1.ProviderNetwork) bool { return o.Name != pn.Name && o.Status.Turn != nil }), nil
}

// hold remembers which network has the turn, because the cache may not have the status that was written last.
func (r *ProviderReconciler) hold(name string, turn *kubeovnv1.ProviderNetworkTurn) {
	switch {
	case turn != nil:
		r.holder = name
	case r.holder == name:
		r.holder = ""
	}
}
