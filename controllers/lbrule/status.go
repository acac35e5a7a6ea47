// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// Reasons of ConditionEndpointsChecked.
const (
	ReasonChecked   = "Checked"
	ReasonUnchecked = "Unchecked"
	// ReasonNoEndpoints: the rule has no endpoint, and connections are refused.
	ReasonNoEndpoints = "NoEndpoints"
)

func (r *controller) patchStatus(ctx context.Context, rule *rule, s *state) error {
	base, status := rule.DeepCopyObject().(client.Object), rule.status
	before := slices.Clone(status.Conditions)
	if s.valid {
		rule.recordValid()
	}
	if s.problem == nil || s.retained {
		ports := make([]string, 0, len(s.in.Ports))
		for _, p := range s.in.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
		status.Ports, status.Service = strings.Join(ports, ","), s.service
	}
	k8s.SetConditions(&status.Conditions, rule.GetGeneration(), k8s.Validated(s.problem), ready(s))
	if s.err == nil && (s.problem == nil || s.retained) {
		if s.checks.off {
			apimeta.RemoveStatusCondition(&status.Conditions, kubeovnv1.ConditionEndpointsChecked)
		} else {
			k8s.SetConditions(&status.Conditions, rule.GetGeneration(), checked(s))
		}
	}
	k8s.WarnAnew(r.Recorder, rule.Object, before, status.Conditions, kubeovnv1.ConditionValidated)
	return k8s.PatchStatus(ctx, r.Client, base, rule.Object)
}

func ready(s *state) metav1.Condition {
	switch {
	case s.problem != nil:
		return k8s.NotReady(s.problem.Reason, s.problem.Message+s.stays())
	case s.err == nil && len(s.waiting) > 0:
		return k8s.NotReady(kubeovnv1.ReasonWaiting, "waiting for "+strings.Join(s.waiting, "; ")+s.stays())
	}
	condition := k8s.Ready(s.err, northbound.ErrWaiting)
	if s.err == nil && s.idle() {
		condition.Message = "applied, but " + s.withoutEndpoints()
		return condition
	}
	if s.in.Kind == translate.KindRouterLBRule && !s.outside && !s.in.OnRouter && s.err == nil {
		condition.Message = fmt.Sprintf("applied for pods of VPC %s; clients outside reach it if the VPC names the subnet of the OvnEip in extraExternalSubnets, and nodes reach rules of VPC %s only", s.in.Vpc, kubeovnv1.DefaultVpc)
	}
	return condition
}

// stays is the end of the message of a rule whose last valid spec is served.
func (s *state) stays() string {
	if s.retained {
		return "; the last valid spec stays applied"
	}
	return ""
}

// idle reports whether the rule has no endpoint.
func (s *state) idle() bool {
	for _, vip := range s.in.VIPs {
		for _, port := range s.in.Ports {
			if len(s.in.EndpointsOf(vip, port)) > 0 {
				return false
			}
		}
	}
	return true
}

func (s *state) withoutEndpoints() string {
	return fmt.Sprintf("connections are refused: Service %s of the rule has no ready endpoint: check the rule's namespace and selector, and its pods", s.service)
}

func checked(s *state) metav1.Condition {
	c := s.checks
	condition := metav1.Condition{
		Type: kubeovnv1.ConditionEndpointsChecked, Status: metav1.ConditionTrue, Reason: ReasonChecked,
		Message: "endpoints that do not answer get no connections",
	}
	if s.idle() {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, ReasonNoEndpoints, s.withoutEndpoints()
		return condition
	}
	if c.missing != "" {
		condition.Status, condition.Reason = metav1.ConditionFalse, ReasonUnchecked
		condition.Message = fmt.Sprintf("%d of %d endpoints are checked; others serve whether they answer or not: %s", c.checked, c.total, c.missing)
	}
	return condition
}
