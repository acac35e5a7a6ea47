// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc

import (
	"context"
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/validation"
)

// ReasonSubnetsExist means that a VPC is being deleted and still has subnets.
const ReasonSubnetsExist = "SubnetsExist"

// maxNamed limits the number of subnets in a message.
const maxNamed = 10

// patchStatus writes the result of applying the VPC to its status.
func (r *Reconciler) patchStatus(ctx context.Context, in inputs, found result) error {
	base := in.vpc.DeepCopy()
	status := &in.vpc.Status
	// A router that was once applied stays when a later change fails.
	status.Standby = status.Standby || found.applied
	status.Default = in.vpc.Name == kubeovnv1.DefaultVpc
	status.Router = in.vpc.Name
	if len(found.problems) == 0 && !in.misnamed() { // in the same patch as the condition Validated
		status.ValidatedSpec = in.vpc.Spec.DeepCopy()
	}
	status.DefaultLogicalSwitch = k8s.AppliedVpc(in.vpc).Spec.DefaultSubnet
	if status.Default && status.DefaultLogicalSwitch == "" {
		status.DefaultLogicalSwitch = kubeovnv1.DefaultSubnet
	}
	status.Subnets = in.subnetNames()
	if found.err == nil {
		status.VpcPeerings = found.linked
	}
	if err := r.setPodsPlaced(ctx, in.vpc); err != nil {
		return err
	}
	problem := validation.Joined(slices.Concat(found.problems, found.conflicts))
	ready := readyCondition(found, status.Conditions)
	if in.vpc.DeletionTimestamp != nil {
		ready = k8s.NotReady(ReasonSubnetsExist, "deleted once its subnets are: "+k8s.Some(blockers(in), maxNamed))
	}
	ignored := validation.IgnoredVpcFields(&in.vpc.Spec)
	if text := validation.UnmonitoredRoutes(found.unmonitored); text != "" {
		ignored = append(ignored, text)
	}
	k8s.SetConditions(&status.Conditions, in.vpc.Generation, ready, k8s.Validated(problem), k8s.FieldsSupported(ignored))
	k8s.WarnAnew(r.Recorder, in.vpc, base.Status.Conditions, status.Conditions, kubeovnv1.ConditionValidated, kubeovnv1.ConditionFieldsSupported)
	if ready.Reason == ReasonSubnetsExist {
		k8s.WarnAnew(r.Recorder, in.vpc, base.Status.Conditions, status.Conditions, kubeovnv1.ConditionReady)
	}
	return k8s.PatchStatus(ctx, r.Client, base, in.vpc)
}

// setPodsPlaced sets the condition PodsPlaced of a VPC that lists namespaces, and removes it from other VPCs.
func (r *Reconciler) setPodsPlaced(ctx context.Context, vpc *kubeovnv1.Vpc) error {
	conditions := &vpc.Status.Conditions
	listed := k8s.AppliedVpc(vpc).Spec.Namespaces
	if len(listed) == 0 || vpc.Name == kubeovnv1.DefaultVpc {
		apimeta.RemoveStatusCondition(conditions, kubeovnv1.ConditionPodsPlaced)
		return nil
	}
	c, err := r.Namespaces.Placed(ctx, listed)
	if err != nil {
		return err
	}
	before := slices.Clone(*conditions)
	k8s.SetConditions(conditions, vpc.Generation, c)
	if wasFalse := apimeta.IsStatusConditionFalse(before, c.Type); !wasFalse { // later messages differ in the number only
		k8s.WarnAnew(r.Recorder, vpc, before, *conditions, c.Type)
	}
	return nil
}

// listing returns the VPCs that list a namespace.
func (r *Reconciler) listing(ctx context.Context, namespace string) (names []string) {
	vpcs, err := r.Namespaces.Listing(ctx, namespace)
	if err != nil {
		return nil // the cache is stopping
	}
	for _, vpc := range vpcs {
		names = append(names, vpc.Name)
	}
	return names
}

// readyCondition reports whether the whole current spec is applied. conditions has PodsPlaced.
func readyCondition(found result, conditions []metav1.Condition) metav1.Condition {
	problem, missing := validation.Joined(slices.Concat(found.problems, found.conflicts)), validation.Joined(found.missing)
	switch {
	case found.err != nil:
		return k8s.Ready(found.err, northbound.ErrWaiting)
	case problem != nil:
		ready := k8s.NotValid(problem)
		switch {
		case found.retained:
			ready.Message += "; the last valid spec stays applied"
		case found.applied:
			ready.Message += "; the valid entries are applied"
		}
		return ready
	case missing != nil:
		return k8s.NotReady(missing.Reason, missing.Message)
	}
	return k8s.ReadyFor(conditions)
}

// blockers returns the names of the VPC's subnets, and marks the subnets that are being deleted.
func blockers(in inputs) []string {
	var names []string
	for i := range in.subnets {
		s := &in.subnets[i]
		if s.DeletionTimestamp == nil {
			names = append(names, s.Name)
		} else {
			names = append(names, s.Name+" (which is being deleted: see its conditions)")
		}
	}
	return names
}
