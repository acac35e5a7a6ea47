// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
)

// Reasons of the condition GatewayReady. The first three are Kube-OVN's.
const (
	// ReasonReady: gateway nodes forward the traffic.
	ReasonReady = "ReconcileCentralizedGatewaySuccess"
	// ReasonNoReadyGateway: the spec names no gateway node, or, with enableEcmp, no gateway node is up.
	ReasonNoReadyGateway = "NoReadyGateway"
	// ReasonNoActiveGateway: no gateway node is up.
	ReasonNoActiveGateway = "NoActiveGatewayFound"
	// ReasonTableConflict: another subnet uses the policyRoutingTableID.
	ReasonTableConflict = "PolicyRoutingTableConflict"
	// ReasonMoved is the event of a failover from a gateway node that is down.
	ReasonMoved = "GatewayMoved"
	// ReasonTypeChanged and ReasonNodeChanged are Kube-OVN's events of a change of the subnet's spec.
	ReasonTypeChanged = "SubnetGatewayTypeChanged"
	ReasonNodeChanged = "SubnetGatewayNodeChanged"
)

// activeOf returns the gateway nodes in the status of a subnet.
func activeOf(subnet *kubeovnv1.Subnet) []string {
	if subnet.Status.ActivateGateway == "" {
		return nil
	}
	return strings.Split(subnet.Status.ActivateGateway, ",")
}

// patchStatus writes the gateway nodes and the condition into the status. If the policies could not be committed, the status keeps the
// nodes of the committed policies.
func (r *Reconciler) patchStatus(ctx context.Context, in inputs, applied error) error {
	subnet := in.subnet
	base := subnet.DeepCopy()
	if applied == nil {
		subnet.Status.ActivateGateway = strings.Join(in.selected, ",")
	}
	subnet.Status.NATOutgoingPolicyRules = gateway.RuleStatus(in.valid)
	before := apimeta.FindStatusCondition(base.Status.Conditions, kubeovnv1.ConditionGatewayReady)
	condition, wanted := condition(in, applied)
	if !wanted {
		apimeta.RemoveStatusCondition(&subnet.Status.Conditions, kubeovnv1.ConditionGatewayReady)
	} else {
		k8s.SetConditions(&subnet.Status.Conditions, subnet.Generation, condition)
	}
	if err := k8s.PatchStatus(ctx, r.Client, base, subnet); err != nil {
		return err
	}
	if wanted && condition.Status == metav1.ConditionFalse && !is(before, condition) && !errors.Is(applied, northbound.ErrWaiting) {
		k8s.Warn(r.Recorder, subnet, condition.Reason, condition.Message)
	}
	if applied == nil {
		r.tellOfMove(base, in)
	}
	return nil
}

// gatewaySpec is the part of a subnet's spec whose changes are reported.
type gatewaySpec struct {
	kind  kubeovnv1.GatewayType
	nodes string
}

// tellOfSpec sends an event for each change of the gateway in the spec that is now applied. It does not depend on the status: if its patch
// fails because of a conflict with a change of the spec, the next pass compares with the spec of this pass.
func (r *Reconciler) tellOfSpec(in inputs) {
	spec := in.valid.Spec
	now := gatewaySpec{cmp.Or(spec.GatewayType, kubeovnv1.GatewayDistributed), spec.GatewayNode}
	before := r.reported.Swap(in.subnet.Name, now)
	switch {
	case before == gatewaySpec{}: // a new subnet, or the first pass of this process
	case before.kind != now.kind:
		k8s.Note(r.Recorder, in.subnet, ReasonTypeChanged, fmt.Sprintf("gatewayType changed from %s to %s", before.kind, now.kind))
	case before.nodes != now.nodes && in.centralized:
		k8s.Note(r.Recorder, in.subnet, ReasonNodeChanged, fmt.Sprintf("gatewayNode changed from %q to %q", before.nodes, now.nodes))
	}
}

// condition returns the condition GatewayReady. wanted is false if the subnet must not have it.
func condition(in inputs, applied error) (condition metav1.Condition, wanted bool) {
	c := metav1.Condition{Type: kubeovnv1.ConditionGatewayReady, Status: metav1.ConditionFalse}
	switch {
	case in.conflict != nil:
		c.Reason = ReasonTableConflict
		c.Message = fmt.Sprintf("subnet %s has policyRoutingTableID %d: choose another one; until then externalEgressGateway has no effect",
			in.conflict.Name, in.conflict.Spec.PolicyRoutingTableID)
	case !in.centralized:
		return c, false
	case applied != nil:
		ready := k8s.Ready(applied, northbound.ErrWaiting)
		c.Reason, c.Message = ready.Reason, ready.Message
	case in.spec.Empty():
		c.Reason = ReasonNoReadyGateway
		c.Message = "gatewayType is centralized and no node is named: write gatewayNode or gatewayNodeSelectors; until then nothing leaves the subnet"
	case !gateway.AnyUp(in.candidates, in.selected):
		c.Reason, c.Message = noneServes(in)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, ReasonReady
		c.Message = "traffic leaves through " + strings.Join(in.selected, ", ")
	}
	return c, true
}

func noneServes(in inputs) (reason, message string) {
	reason = ReasonNoActiveGateway
	if in.spec.ECMP {
		reason = ReasonNoReadyGateway
	}
	switch {
	case len(in.candidates) == 0 && len(in.spec.Nodes) == 0:
		return reason, "gatewayNodeSelectors select no node: nothing leaves the subnet until they do: label a node, or change the selectors"
	case len(in.candidates) == 0:
		return reason, fmt.Sprintf("gatewayNode names no existing node (%s): nothing leaves the subnet: write names of nodes", named(in.spec.Nodes))
	case len(in.selected) == 0:
		return reason, "no gateway node serves (" + names(in.candidates) + "): nothing leaves the subnet"
	}
	return reason, fmt.Sprintf("no gateway node serves (%s); traffic is still sent to %s", names(in.candidates), strings.Join(in.selected, ", "))
}

// maxNamed is the number of nodes in a message.
const maxNamed = 5

// named returns the names of nodes that a subnet names.
func named(nodes []gateway.Node) string {
	list := make([]string, 0, len(nodes))
	for _, n := range nodes {
		list = append(list, n.Name)
	}
	return k8s.Some(list, maxNamed)
}

func names(candidates []gateway.Candidate) string {
	list := make([]string, 0, len(candidates))
	for _, c := range candidates {
		list = append(list, c.Name)
	}
	return strings.Join(list, ", ")
}

// tellOfMove reports and counts a failover from nodes that are down.
func (r *Reconciler) tellOfMove(base *kubeovnv1.Subnet, in inputs) {
	var down []string
	for _, name := range activeOf(base) {
		i := slices.IndexFunc(in.candidates, func(c gateway.Candidate) bool { return c.Name == name })
		if !slices.Contains(in.selected, name) && i >= 0 && in.candidates[i].State == gateway.Down {
			down = append(down, name)
		}
	}
	if len(down) == 0 || len(in.selected) == 0 {
		return
	}
	failovers.WithLabelValues(in.subnet.Name).Inc()
	k8s.Warn(r.Recorder, in.subnet, ReasonMoved, fmt.Sprintf("%s stopped serving: traffic now leaves through %s",
		strings.Join(down, ", "), strings.Join(in.selected, ", ")))
}
