// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/validation"
)

// ReasonSubnetsExist says that a VPC is deleted and has subnets.
const ReasonSubnetsExist = "SubnetsExist"

// patchStatus reports how applying the VPC ended.
func (r *Reconciler) patchStatus(ctx context.Context, in inputs, applied error) error {
	base := in.vpc.DeepCopy()
	status := &in.vpc.Status
	// A router that stands stays when a later change of it fails.
	status.Standby = status.Standby || applied == nil
	status.Default = in.vpc.Name == kubeovnv1.DefaultVpc
	status.Router = in.vpc.Name
	status.DefaultLogicalSwitch = in.vpc.Spec.DefaultSubnet
	if status.Default && status.DefaultLogicalSwitch == "" {
		status.DefaultLogicalSwitch = kubeovnv1.DefaultSubnet
	}
	status.Subnets = slices.Sorted(slices.Values(in.subnets))
	problem := validation.Vpc(in.vpc.Name, &in.vpc.Spec)
	k8s.SetConditions(&status.Conditions, in.vpc.Generation,
		k8s.Ready(applied, northbound.ErrWaiting),
		k8s.Validated(problem),
		k8s.FieldsSupported(validation.IgnoredVpcFields(&in.vpc.Spec)))
	if problem != nil && !k8s.SameMessage(base.Status.Conditions, status.Conditions, kubeovnv1.ConditionValidated) {
		k8s.Warn(r.Recorder, in.vpc, problem.Reason, problem.Message)
	}
	return k8s.PatchStatus(ctx, r.Client, base, in.vpc)
}

// patchBlocked reports why a deleted VPC is still there.
func (r *Reconciler) patchBlocked(ctx context.Context, in inputs) error {
	base := in.vpc.DeepCopy()
	subnets := slices.Sorted(slices.Values(in.subnets))
	message := fmt.Sprintf("deleted once its subnets are: %s", strings.Join(subnets, ", "))
	in.vpc.Status.Subnets = subnets
	k8s.SetConditions(&in.vpc.Status.Conditions, in.vpc.Generation, metav1.Condition{
		Type: kubeovnv1.ConditionReady, Status: metav1.ConditionFalse, Reason: ReasonSubnetsExist, Message: message,
	})
	if !k8s.SameMessage(base.Status.Conditions, in.vpc.Status.Conditions, kubeovnv1.ConditionReady) {
		k8s.Warn(r.Recorder, in.vpc, ReasonSubnetsExist, message)
	}
	return k8s.PatchStatus(ctx, r.Client, base, in.vpc)
}

// nextHops are the gateways of the join subnet, and none without such a subnet. They are not known while it is not valid.
func nextHops(join *kubeovnv1.Subnet) (hops []netip.Addr, known bool) {
	if join == nil {
		return nil, true
	}
	if !k8s.IsTrue(join.Status.Conditions, kubeovnv1.ConditionValidated, join.Generation) {
		return nil, false
	}
	hops, err := ipfamily.ParseAddrs(join.Spec.Gateway)
	return hops, err == nil
}
