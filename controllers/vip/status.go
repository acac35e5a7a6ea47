// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vip

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/reservation"
	"github.com/kiln-net/kiln/internal/address/vipusers"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/validation"
)

// patchStatus writes the state of a Vip to its status. Addresses in status stay there while the Vip waits to be allocated the same ones
// again.
func (r *Reconciler) patchStatus(ctx context.Context, vip *kubeovnv1.Vip, s state) error {
	base, status := vip.DeepCopy(), &vip.Status
	addresses := reservation.Texts(s.allocation.Addresses, [2]string{status.V4IP, status.V6IP})
	status.V4IP, status.V6IP = addresses[0], addresses[1]
	if len(s.allocation.Addresses) > 0 {
		status.MAC = s.allocation.MAC.String()
	}
	var ignored []string
	if len(vip.Spec.AttachSubnets) > 0 {
		ignored = append(ignored, "attachSubnets")
	}
	problem := problemOf(vip, s)
	if problem == nil { // in the same patch as the condition Validated
		status.ValidatedSpec = vip.Spec.DeepCopy()
	}
	applied := cmp.Or(status.ValidatedSpec, &vip.Spec)
	status.Type, status.Selector = applied.Type, applied.Selector
	k8s.SetConditions(&status.Conditions, vip.Generation, k8s.Validated(problem), ready(vip, s, problem), k8s.FieldsSupported(ignored))
	k8s.WarnAnew(r.Recorder, vip, base.Status.Conditions, status.Conditions, kubeovnv1.ConditionValidated, kubeovnv1.ConditionFieldsSupported)
	return k8s.PatchStatus(ctx, r.Client, base, vip)
}

// problemOf returns the problem that the user has to fix. With an invalid selector, the last valid one still applies.
func problemOf(vip *kubeovnv1.Vip, s state) *validation.Problem {
	if s.problem != nil {
		return s.problem
	}
	if _, err := vipusers.Selector(vip); err != nil {
		return validation.Invalid("%v", err)
	}
	if len(vip.Spec.Selector) > 0 && vip.Spec.Namespace == "" {
		return validation.Invalid("selector selects pods of namespace, which is empty: set it")
	}
	return nil
}

func ready(vip *kubeovnv1.Vip, s state, problem *validation.Problem) metav1.Condition {
	shared := len(s.parents()) > 0 && k8s.AppliedVip(vip).Spec.Type == ""
	switch {
	case vip.DeletionTimestamp != nil:
		return reservation.Used(s.keepers())
	case problem != nil:
		ready := k8s.NotValid(problem)
		if vip.Status.ValidatedSpec != nil {
			ready.Message += "; the last valid spec stays applied"
		}
		return ready
	case s.err == nil && s.usedBy != "" && shared:
		return k8s.NotReady(kubeovnv1.ReasonWaiting, fmt.Sprintf(
			"port %s has the addresses as its own: %s share them after it is deleted", s.usedBy, k8s.Some(s.parents(), reservation.MaxNamed)))
	case errors.Is(s.err, northbound.ErrWaiting):
		return k8s.Ready(s.err, northbound.ErrWaiting)
	}
	return k8s.Ready(s.err, reservation.ErrWaiting)
}
