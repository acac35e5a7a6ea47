// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// DisruptionBudgets let draining nodes take one pod of a component at a time: of three members a second one would end the quorum, and a northd or
// controller that stands by is there to take over. A component of one pod can be drained too: nobody could ever empty its node otherwise.
//
// A northd or controller that is not ready keeps no node from being emptied, however many others are not: it does nothing. A member of a
// database that is not ready may be the one that brings the quorum back.
func DisruptionBudgets(c Config) []Object {
	var objects []Object
	for _, w := range []struct {
		app, component string
		unready        policyv1.UnhealthyPodEvictionPolicyType
	}{
		{centralApp, NorthboundName, policyv1.IfHealthyBudget}, {centralApp, SouthboundName, policyv1.IfHealthyBudget},
		{centralApp, NorthdName, policyv1.AlwaysAllow}, {ControllerName, ControllerName, policyv1.AlwaysAllow},
	} {
		objects = append(objects, &policyv1.PodDisruptionBudget{
			ObjectMeta: c.meta(w.component, w.app, w.component),
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: selector(w.app, w.component), MaxUnavailable: new(intstr.FromInt32(1)),
				UnhealthyPodEvictionPolicy: new(w.unready),
			},
		})
	}
	return objects
}
