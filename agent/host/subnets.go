// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// right reports whether the controller has found nothing wrong with a subnet's spec as it is now.
func right(s *v1.Subnet) bool {
	return k8s.IsTrue(s.Status.Conditions, v1.ConditionValidated, s.Generation)
}

// rightChanged passes subnets whose spec, or what the controller has found of it, has changed. The rest of the status changes with every pod.
func rightChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1.Subnet)
		now, same := e.ObjectNew.(*v1.Subnet)
		return ok && same && (before.Generation != now.Generation || right(before) != right(now))
	}}
}

// inForce are the subnets as the node follows them: a spec that is wrong, or not looked at yet, changes nothing. It may hold the address of the
// API server, which every node would lose. What was right before stays, as it does in OVN. After a restart that is known by the node's routes.
func (r *Reconciler) inForce(subnets []v1.Subnet) ([]v1.Subnet, error) {
	var have map[netip.Prefix]netlink.Route
	known := make(map[string]v1.Subnet, len(subnets))
	for _, s := range subnets {
		last, seen := r.known[s.Name]
		switch {
		case right(&s):
			known[s.Name] = s
		case seen:
			known[s.Name] = last
		default:
			if have == nil {
				var err error
				if have, err = ownRoutes(); err != nil {
					return nil, err
				}
			}
			if routedAlready(&s, have) {
				known[s.Name] = s
			}
		}
	}
	r.known = known
	return slices.Collect(maps.Values(known)), nil
}

func routedAlready(s *v1.Subnet, have map[netip.Prefix]netlink.Route) bool {
	cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	return err == nil && len(cidrs) > 0 && !slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { _, ok := have[c.Masked()]; return !ok })
}
