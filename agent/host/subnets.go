// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/gateway"
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
// API server, which every node would lose. What was right before stays, as it does in OVN.
func (r *Reconciler) inForce(subnets []v1.Subnet) ([]v1.Subnet, error) {
	known := make(map[string]v1.Subnet, len(subnets))
	var unknown []v1.Subnet
	for _, s := range subnets {
		switch last, seen := r.known[s.Name]; {
		case right(&s):
			known[s.Name] = s
		case seen:
			known[s.Name] = last
		case gateway.Routed(&s):
			unknown = append(unknown, s)
		}
	}
	if r.known == nil && len(unknown) > 0 { // the first pass of this agent
		have, err := ownRoutes()
		if err != nil {
			return nil, err
		}
		recall(unknown, known, have)
	}
	r.known = known
	return slices.Collect(maps.Values(known)), nil
}

// recall adds to known those subnets that an agent before this one followed, by the routes it has left. Routes that lead to none are of one
// whose CIDRs have changed since: of the oldest, where there are several that it could be.
func recall(unknown []v1.Subnet, known map[string]v1.Subnet, have map[netip.Prefix]netlink.Route) {
	for _, s := range known {
		forget(&s, have)
	}
	changed := slices.DeleteFunc(unknown, func(s v1.Subnet) bool {
		there := routedAlready(&s, have)
		if there {
			known[s.Name] = s
			forget(&s, have)
		}
		return there
	})
	if len(changed) == 0 || len(have) == 0 {
		return
	}
	s := slices.MinFunc(changed, func(a, b v1.Subnet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	left := disjoint(slices.Collect(maps.Keys(have)))
	var cidrs []netip.Prefix // one of each family
	for _, f := range families {
		if i := slices.IndexFunc(left, func(p netip.Prefix) bool { return ipfamily.Of(p.Addr()) == f.family }); i >= 0 {
			cidrs = append(cidrs, left[i])
		}
	}
	s.Spec.CIDRBlock = ipfamily.Join(cidrs)
	known[s.Name] = s
}

func forget(s *v1.Subnet, have map[netip.Prefix]netlink.Route) {
	cidrs, _ := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	for _, c := range cidrs {
		delete(have, c.Masked())
	}
}

func routedAlready(s *v1.Subnet, have map[netip.Prefix]netlink.Route) bool {
	cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	return err == nil && len(cidrs) > 0 && !slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { _, ok := have[c.Masked()]; return !ok })
}
