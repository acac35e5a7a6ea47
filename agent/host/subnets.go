// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// rightChanged passes subnets whose spec, or whose validation by the controller, has changed. The rest of the status changes with every
// pod.
func rightChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1.Subnet)
		now, same := e.ObjectNew.(*v1.Subnet)
		return ok && same && k8s.ViewSubnet(before) != k8s.ViewSubnet(now)
	}}
}

// inForce returns the subnets with the specs that the node applies: the last validated ones, as in OVN. A spec that is invalid or not
// validated yet is not applied, because its CIDR may contain the address of the API server, to which every node would lose the route.
func inForce(subnets []v1.Subnet) []v1.Subnet {
	out := make([]v1.Subnet, 0, len(subnets))
	for _, s := range subnets {
		if valid := k8s.WithValidSpec(&s); valid != nil {
			out = append(out, *valid)
		}
	}
	return out
}
