// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
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
		subnet.Status.ValidatedSpec.ACLs = nil
	}
	if result.inForce() {
		setOptionRows(subnet)
		setQuerier(&subnet.Status, result.querier)
	}
	r.setNamespacesBound(in)
	ready := readyCondition(subnet, result, r.Allocator.HasSubnet(subnet.Name))
	if subnet.DeletionTimestamp != nil {
		ready = r.blocked(subnet)
	}
	k8s.SetConditions(&subnet.Status.Conditions, subnet.Generation,
		k8s.Validated(result.problem),
		ready,
		k8s.FieldsSupported(slices.Concat(validation.UnbuiltSubnetFields(&subnet.Spec), validation.IgnoredSubnetFields(&subnet.Spec))))
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

// readyCondition returns the Ready condition for the current spec. known is true if an earlier spec may still be applied.
func readyCondition(subnet *kubeovnv1.Subnet, result result, known bool) metav1.Condition {
	switch {
	case result.problem != nil:
		ready := k8s.NotValid()
		if known {
			ready.Message += "; the last valid spec stays applied"
		}
		return ready
	case result.unbuilt:
		return k8s.NotReady(kubeovnv1.ReasonFieldsIgnored,
			"this version builds no subnet with "+strings.Join(validation.UnbuiltSubnetFields(&subnet.Spec), ", "))
	}
	return k8s.Ready(result.err, northbound.ErrWaiting)
}
