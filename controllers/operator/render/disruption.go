// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// DisruptionBudgets returns budgets that allow evictions of one pod of a component at a time. With two of three members
// evicted a database loses its quorum; a standby northd or controller needs time to take over. A component of one pod can
// be evicted too, because otherwise its node could never be drained.
//
// A northd or controller that is not ready does no work, so it can always be evicted. A database member that is not ready
// is protected: it may be needed to restore the quorum.
func DisruptionBudgets(c Config) []Object {
	var objects []Object
	add := func(app, component string, unready policyv1.UnhealthyPodEvictionPolicyType) {
		objects = append(objects, &policyv1.PodDisruptionBudget{
			ObjectMeta: c.meta(component, app, component),
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: selector(app, component), MaxUnavailable: new(intstr.FromInt32(1)),
				UnhealthyPodEvictionPolicy: new(unready),
			},
		})
	}
	for _, db := range Databases {
		add(centralApp, db.Workload, policyv1.IfHealthyBudget)
	}
	add(centralApp, NorthdName, policyv1.AlwaysAllow)
	add(ControllerName, ControllerName, policyv1.AlwaysAllow)
	return objects
}
