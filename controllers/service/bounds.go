// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/serving/budget"
	"github.com/kiln-net/kiln/internal/svc"
)

// Restore records the costs of all Services before the first one is applied. Otherwise a young Service that exceeds the bound of its namespace
// would be served until the older ones are recorded. It also records the refusals: the first reconciliation of a Service that has become
// smaller requeues the Services at its addresses.
// And it records the claims of Services to OvnEips.
func (r *Reconciler) Restore(ctx context.Context) error {
	if err := r.restoreClaims(ctx); err != nil || r.ByNodes {
		return err
	}
	var services corev1.ServiceList
	var all discoveryv1.EndpointSliceList
	for _, list := range []client.ObjectList{&services, &all} {
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list the inputs of the costs of Services: %w", err)
		}
	}
	of := map[types.NamespacedName][]*discoveryv1.EndpointSlice{}
	for i := range all.Items {
		s := &all.Items[i]
		if headless(s) {
			continue
		}
		key := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		of[key] = append(of[key], s)
	}
	for i := range services.Items {
		s := &services.Items[i]
		r.refusal(s, svc.Vpc(s), of[client.ObjectKeyFromObject(s)])
	}
	for i := range services.Items { // with the costs of all
		key := client.ObjectKeyFromObject(&services.Items[i])
		if verdict := r.budget.Verdict(svc.Bounds, key); verdict != budget.Within {
			r.reported.Swap(key, warnings{refusal: refusal{verdict: verdict}, restored: true})
		}
	}
	return nil
}

// refusal says why a Service is not served; text is empty for a Service within the bounds.
type refusal struct {
	verdict budget.Verdict
	text    string
}

// refusal records the cost of a Service and compares it with the bounds.
func (r *Reconciler) refusal(s *corev1.Service, vpc string, of []*discoveryv1.EndpointSlice) refusal {
	flows := 0
	if !translate.Unserved(s, vpc) {
		flows = svc.Flows(s, of)
	}
	verdict := r.spend(svc.Expense(s, vpc, flows))
	return refusal{verdict: verdict, text: svc.Refusal(s, vpc, verdict, flows)}
}

// spend records the cost of a Service. It enqueues the other Services whose verdicts have changed.
func (r *Reconciler) spend(o budget.Object) budget.Verdict {
	verdict, others := r.budget.Set(svc.Bounds, o)
	for _, other := range others {
		r.requests.AddKey(other)
	}
	return verdict
}

// refused reports whether a Service exceeds a bound, by its recorded cost.
func (r *Reconciler) refused(s *corev1.Service) bool {
	return r.budget.Verdict(svc.Bounds, client.ObjectKeyFromObject(s)) != budget.Within
}
