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
)

// ReasonSubnetsExist: a VPC is deleted and has subnets.
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
	k8s.SetConditions(&status.Conditions, in.vpc.Generation,
		k8s.Ready(applied, northbound.ErrWaiting),
		k8s.FieldsSupported(ignoredFields(&in.vpc.Spec)))
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

// ignoredFields are the fields in use that this version takes and does not act on.
func ignoredFields(spec *kubeovnv1.VpcSpec) []string {
	var names []string
	for _, f := range []struct {
		name string
		used bool
	}{
		{"staticRoutes", len(spec.StaticRoutes) > 0},
		{"policyRoutes", len(spec.PolicyRoutes) > 0},
		{"vpcPeerings", len(spec.VpcPeerings) > 0},
		{"enableExternal", spec.EnableExternal},
		{"extraExternalSubnets", len(spec.ExtraExternalSubnets) > 0},
		{"enableBfd", spec.EnableBfd},
		{"bfdPort", spec.BFDPort != nil && spec.BFDPort.Enabled},
	} {
		if f.used {
			names = append(names, f.name)
		}
	}
	return names
}
