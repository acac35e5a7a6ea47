// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// DisruptionBudgets let draining nodes take one pod of a component at a time: of three members a second one would end the quorum, and a northd or
// controller that stands by is there to take over. A component of one pod can be drained too: nobody could ever empty its node otherwise.
func DisruptionBudgets(c Config) []Object {
	var objects []Object
	for _, w := range []struct{ app, component string }{
		{centralApp, NorthboundName}, {centralApp, SouthboundName}, {centralApp, NorthdName}, {ControllerName, ControllerName},
	} {
		objects = append(objects, &policyv1.PodDisruptionBudget{
			ObjectMeta: c.meta(w.component, w.app, w.component),
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: selector(w.app, w.component), MaxUnavailable: new(intstr.FromInt32(1)),
			},
		})
	}
	return objects
}
