// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovneip

import (
	"cmp"
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/reservation"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
)

// patchStatus writes the state of an OvnEip to its status. Addresses in status stay there while the OvnEip waits to be allocated the same
// ones again.
func (r *Reconciler) patchStatus(ctx context.Context, eip *kubeovnv1.OvnEip, s state) error {
	base, status := eip.DeepCopy(), &eip.Status
	status.Type = cmp.Or(eip.Spec.Type, kubeovnv1.OvnEipTypeNAT)
	addresses := reservation.Texts(s.allocation.Addresses, [2]string{status.V4IP, status.V6IP})
	status.V4IP, status.V6IP = addresses[0], addresses[1]
	if len(s.allocation.Addresses) > 0 {
		status.MACAddress = s.allocation.MAC.String()
	}
	var used []string
	for _, use := range uses {
		if !slices.Contains(used, use.value) && slices.ContainsFunc(s.users, func(user string) bool { return strings.HasPrefix(user, use.kind+" ") }) {
			used = append(used, use.value)
		}
	}
	status.NAT = strings.Join(used, ",")
	condition := ready(eip, s)
	status.Ready = condition.Status == metav1.ConditionTrue
	var ignored []string
	if status.Type != kubeovnv1.OvnEipTypeNAT && status.Type != kubeovnv1.OvnEipTypeLRP {
		ignored = append(ignored, "type "+status.Type)
	}
	k8s.SetConditions(&status.Conditions, eip.Generation, k8s.Validated(s.problem), condition, k8s.FieldsSupported(ignored))
	k8s.WarnAnew(r.Recorder, eip, base.Status.Conditions, status.Conditions, kubeovnv1.ConditionValidated, kubeovnv1.ConditionFieldsSupported)
	return k8s.PatchStatus(ctx, r.Client, base, eip)
}

func ready(eip *kubeovnv1.OvnEip, s state) metav1.Condition {
	switch {
	case eip.DeletionTimestamp != nil:
		used := reservation.Used(append(slices.Clone(s.users), releases(eip)...))
		if awaited := lookup.Awaited(eip.Status.Releasing); len(awaited) > 0 {
			used.Message += ", " + lookup.UntilReleased(awaited)
		}
		return used
	case s.problem != nil:
		return k8s.NotValid(s.problem)
	}
	return k8s.Ready(s.err, reservation.ErrWaiting)
}
