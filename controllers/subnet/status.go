// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/routergateway"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/validation"
)

// ReasonAddressesInUse is the reason while a deleted subnet still has addresses in use.
const ReasonAddressesInUse = validation.ReasonAddressesInUse

// patchStatus writes the outcome of apply and the usage of the subnet into the status.
func (r *Reconciler) patchStatus(ctx context.Context, in inputs, result result) error {
	subnet, base := in.subnet, in.subnet.DeepCopy()
	r.setUsage(subnet)
	if result.problem == nil { // in the same patch as the condition Validated
		subnet.Status.ValidatedSpec = subnet.Spec.DeepCopy()
	}
	subnet.Status.PodLimits = r.limitsOf(subnet)
	if result.specApplied() {
		setOptionRows(subnet)
		setQuerier(&subnet.Status, result.querier)
	}
	if result.connected {
		routergateway.SetStatus(subnet, result.router)
	}
	r.setNamespacesBound(in)
	r.setPortsAvailable(subnet)
	if err := r.setPodsPlaced(ctx, in); err != nil {
		return err
	}
	if err := r.setGatewayAnswers(ctx, in); err != nil {
		return err
	}
	ready := readyCondition(subnet, result)
	if subnet.DeletionTimestamp != nil {
		ready = r.blocked(subnet)
	}
	k8s.SetConditions(&subnet.Status.Conditions, subnet.Generation,
		k8s.Validated(result.problem),
		ready,
		k8s.FieldsSupported(slices.Concat(validation.UnbuiltSubnetFields(&subnet.Spec), validation.IgnoredSubnetFields(subnet.Name, &subnet.Spec))))
	k8s.WarnAnew(r.Recorder, subnet, base.Status.Conditions, subnet.Status.Conditions, kubeovnv1.ConditionValidated, kubeovnv1.ConditionFieldsSupported)
	if ready.Reason == ReasonAddressesInUse {
		k8s.WarnAnew(r.Recorder, subnet, base.Status.Conditions, subnet.Status.Conditions, kubeovnv1.ConditionReady)
	}
	return k8s.PatchStatus(ctx, r.Client, base, subnet)
}

// blocked returns the Ready condition of a deleted subnet that still has addresses in use.
func (r *Reconciler) blocked(subnet *kubeovnv1.Subnet) metav1.Condition {
	held := r.holders(subnet.Name, func(netip.Addr) bool { return true })
	return k8s.NotReady(ReasonAddressesInUse, fmt.Sprintf("deleted once its addresses are free: %d in use: %s", len(held), listed(held)))
}

func (r *Reconciler) setUsage(subnet *kubeovnv1.Subnet) {
	usage := r.Allocator.Usage(subnet.Name)
	v4, v6, status := usage.IPv4(), usage.IPv6(), &subnet.Status
	status.V4AvailableIPs, status.V4AvailableIPRange = v4.Available, v4.AvailableRanges
	status.V4UsingIPs, status.V4UsingIPRange = v4.Using, v4.UsingRanges
	status.V6AvailableIPs, status.V6AvailableIPRange = v6.Available, v6.AvailableRanges
	status.V6UsingIPs, status.V6UsingIPRange = v6.Using, v6.UsingRanges
	r.measure(subnet, usage)
}

// setPortsAvailable sets the condition PortsAvailable of a subnet whose switch can have fewer ports than the subnet has addresses, and
// removes it from other subnets. Call it after setUsage.
func (r *Reconciler) setPortsAvailable(subnet *kubeovnv1.Subnet) {
	conditions, ports := &subnet.Status.Conditions, r.Allocator.Ports(subnet.Name)
	if !r.Allocator.HasSubnet(subnet.Name) || ports.Limit == 0 || !ports.Full() && addressesOf(subnet) < float64(ports.Limit) {
		apimeta.RemoveStatusCondition(conditions, kubeovnv1.ConditionPortsAvailable)
		return
	}
	before := slices.Clone(*conditions)
	c := metav1.Condition{
		Type: kubeovnv1.ConditionPortsAvailable, Status: metav1.ConditionTrue, Reason: kubeovnv1.ReasonPortsAvailable,
		Message: fmt.Sprintf("the switch of the subnet can have %d ports, fewer than the subnet has addresses", ports.Limit),
	}
	if ports.Full() {
		c.Status, c.Reason = metav1.ConditionFalse, kubeovnv1.ReasonSwitchFull
		c.Message = fmt.Sprintf("the switch of the subnet has all %d ports that it can have, and new ones wait: %s", ports.Limit, remedyForPorts(subnet.Name))
	}
	k8s.SetConditions(conditions, subnet.Generation, c)
	k8s.WarnAnew(r.Recorder, subnet, before, *conditions, c.Type)
}

// remedyForPorts says what to do about a full switch.
func remedyForPorts(subnet string) string {
	if subnet == kubeovnv1.JoinSubnet {
		return "each node needs one, and each VPC with clusterAccess Services: remove unused ones"
	}
	return "create another subnet and move namespaces to it by its field namespaces, or delete pods"
}

// addressesOf returns the number of ports for which a subnet has addresses, by its smaller family.
func addressesOf(subnet *kubeovnv1.Subnet) float64 {
	status, least := &subnet.Status, math.Inf(1)
	for _, n := range []float64{status.V4AvailableIPs + status.V4UsingIPs, status.V6AvailableIPs + status.V6UsingIPs} {
		if n > 0 {
			least = min(least, n)
		}
	}
	return least
}

// readyCondition returns the Ready condition for the current spec.
func readyCondition(subnet *kubeovnv1.Subnet, result result) metav1.Condition {
	switch {
	case result.problem != nil:
		ready := k8s.NotValid(result.problem)
		switch {
		case result.err != nil:
			ready.Message += "; the last valid spec is not applied: " + k8s.Ready(result.err, northbound.ErrWaiting).Message
		case subnet.Status.ValidatedSpec != nil:
			ready.Message += "; the last valid spec stays applied"
		}
		return ready
	}
	if result.err != nil {
		return k8s.Ready(result.err, northbound.ErrWaiting)
	}
	if why := withoutGateway(subnet); why != (gatewayView{}) {
		return k8s.NotReady(why.reason, why.message)
	}
	return k8s.ReadyFor(subnet.Status.Conditions)
}

// gatewayView is the cause why a subnet has no working gateway; empty if it has one, or needs none.
type gatewayView struct{ reason, message string }

// withoutGateway returns why the traffic of a subnet cannot leave it as its spec says, by the condition GatewayReady, which the controller of
// gateways sets.
func withoutGateway(s *kubeovnv1.Subnet) gatewayView {
	c := apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionGatewayReady)
	switch {
	case c == nil && gateway.Centralized(k8s.Applied(s)):
		return gatewayView{kubeovnv1.ReasonWaiting, "no gateway node is chosen yet"}
	case c != nil && c.Status == metav1.ConditionFalse:
		return gatewayView{c.Reason, c.Message}
	}
	return gatewayView{}
}
