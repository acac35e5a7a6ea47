// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// rightChanged passes subnets whose spec, or what the controller has found of it, has changed. The rest of the status changes with every pod.
func rightChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1.Subnet)
		now, same := e.ObjectNew.(*v1.Subnet)
		return ok && same && k8s.ViewSubnet(before) != k8s.ViewSubnet(now)
	}}
}

// inForce are subnets as the node follows them: a spec that is wrong, or not looked at yet, changes nothing. It may hold the address of the
// API server, which every node would lose. What was right before stays, as it does in OVN.
func inForce(subnets []v1.Subnet) []v1.Subnet {
	out := make([]v1.Subnet, 0, len(subnets))
	for _, s := range subnets {
		if !k8s.ViewSubnet(&s).Validated {
			if s.Status.ValidatedSpec == nil {
				continue
			}
			s.Spec = *s.Status.ValidatedSpec
		}
		out = append(out, s)
	}
	return out
}
