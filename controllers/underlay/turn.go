// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// Reasons of nodes, as agents report them (internal/node/providerbridge).
const (
	reasonAwaitingTurn = "AwaitingTurn"
	reasonMoving       = "Moving"
	reasonRolledBack   = "RolledBack"
)

// reasonTurnUnused is the reason of the event about a node that has not begun its move.
const reasonTurnUnused = "TurnUnused"

const (
	// turnTime is for a node to begin its move.
	turnTime = 5 * time.Minute
	// turnPause is from the end of an unused turn to the next one. A node that began in the last moment has reported it then, or has its addresses back.
	turnPause = time.Minute
)

// refusals are the reasons of nodes that have moved nothing, and do not until something else changes.
var refusals = []string{
	"InterfaceNotFound", "InterfaceUnsuitable", "NoCarrier", "Conflict", "InterfaceManaged", "NamedByRules", "GatewayUnreachable", "InvalidRequest",
}

// nextTurn returns which node may move an interface with addresses. The turn stays at a node until its move has succeeded, so that a configuration that
// cuts nodes off reaches one node only. A node that does not begin loses the turn, and after a pause the next one has it. lost are nodes whose kubelet reports
// nothing: they cannot begin. A new specification ends the turn, and the next node has its turn when the former one cannot be moving any longer.
func (r *ProviderReconciler) nextTurn(pn *kubeovnv1.ProviderNetwork, causes []kubeovnv1.ProviderNetworkCondition, lost map[string]bool, free bool) *kubeovnv1.ProviderNetworkTurn {
	now, last := metav1.Now(), ""
	if before := pn.Status.Turn; before != nil {
		of := func(c kubeovnv1.ProviderNetworkCondition) bool { return c.Node == before.Node }
		i := slices.IndexFunc(causes, of)
		switch {
		case before.Generation != pn.Generation && i >= 0:
			if turn := r.ending(*before, causes[i].Reason); turn != nil {
				return turn
			}
		case before.Generation != pn.Generation:
		case i < 0: // it is not selected, or ready
			last = before.Node
		default:
			last = before.Node
			turn, reason := *before, causes[i].Reason
			turn.Failed = turn.Failed || reason == reasonRolledBack
			switch {
			case turn.Failed || reason == reasonMoving: // it has begun
				turn.Withdrawn = false
				return &turn
			case slices.Contains(refusals, reason):
			case turn.Since == nil: // of a former version
				turn.Since = &now
				return &turn
			case r.turnLeft(&turn) > 0:
				return &turn
			case !turn.Withdrawn:
				turn.Withdrawn, turn.Since = true, &now
				return &turn
			}
		}
	}
	var waiting []string
	for _, c := range causes {
		if c.Reason == reasonAwaitingTurn && !lost[c.Node] {
			waiting = append(waiting, c.Node)
		}
	}
	if len(waiting) == 0 || !free {
		return nil
	}
	next := max(0, slices.IndexFunc(waiting, func(node string) bool { return node > last })) // after the last one, so that each gets a turn
	return &kubeovnv1.ProviderNetworkTurn{Node: waiting[next], Generation: pn.Generation, Since: &now}
}

// ending returns the turn of an earlier specification for as long as its node may still be moving: its agent reports late that it began, and an interface
// whose network does not answer has its addresses back before the pause ends. The turn keeps its generation, so that the node may not begin.
func (r *ProviderReconciler) ending(turn kubeovnv1.ProviderNetworkTurn, reason string) *kubeovnv1.ProviderNetworkTurn {
	switch {
	case turn.Failed || reason == reasonRolledBack || slices.Contains(refusals, reason):
		return nil // it has its addresses
	case !turn.Withdrawn:
		turn.Withdrawn, turn.Since = true, new(metav1.Now())
		return &turn
	case r.turnLeft(&turn) > 0:
		return &turn
	}
	return nil
}

// turnLeft returns the time until a node that has not begun loses its turn, or until the pause ends.
func (r *ProviderReconciler) turnLeft(turn *kubeovnv1.ProviderNetworkTurn) time.Duration {
	if turn == nil || turn.Failed || turn.Since == nil {
		return 0
	}
	whole := cmp.Or(r.TurnTime, turnTime)
	if turn.Withdrawn {
		whole = cmp.Or(r.TurnPause, turnPause)
	}
	return time.Until(turn.Since.Add(whole))
}

// isLost reports whether the kubelet of a node has stopped reporting, as on a node that is switched off. A kubelet that reports that its node is not ready may
// wait for its network.
func isLost(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
	})
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
