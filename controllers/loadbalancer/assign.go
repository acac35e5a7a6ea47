// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/svc/assignment"
)

// Reasons of the condition kubeovnv1.ConditionAddressAssigned, in addition to package assignment.
const (
	ReasonAssigned           = assignment.ReasonAssigned
	ReasonFamilyMissing      = assignment.ReasonFamilyMissing
	ReasonInvalidRequest     = assignment.ReasonInvalidRequest
	ReasonAddressUnavailable = assignment.ReasonAddressUnavailable
	ReasonAddressInUse       = assignment.ReasonAddressInUse
	// ReasonPoolExhausted: no address of the pool is free.
	ReasonPoolExhausted = "PoolExhausted"
	// ReasonNamespaceNotAllowed: the pool is not for the namespace.
	ReasonNamespaceNotAllowed = "NamespaceNotAllowed"
	// ReasonOutsidePool: the Service keeps an address that its pool no longer has.
	ReasonOutsidePool = "OutsidePool"
	// ReasonCustomVpc: nodes do not serve the Service.
	ReasonCustomVpc = "CustomVpc"
	// ReasonPoolInvalid: the addresses of the pool cannot be read.
	ReasonPoolInvalid = "PoolInvalid"
)

type problem = assignment.Problem

// waits reports whether an address that another object releases may help.
func waits(r assignment.Result) bool {
	return slices.ContainsFunc(r.Problems, func(p problem) bool { return p.Reason == ReasonPoolExhausted || p.Reason == ReasonAddressUnavailable })
}

// assign returns the addresses of a Service, one of each of its families. An assigned address stays until the Service requests another one: clients
// use it. What the pool would refuse now is reported.
func (r *Reconciler) assign(ctx context.Context, s *corev1.Service) (assignment.Result, error) {
	out := assignment.Result{Mode: corev1.LoadBalancerIPModeVIP}
	if vpc := svc.Vpc(s); vpc != kubeovnv1.DefaultVpc {
		out.Add(assignment.Problemf(ReasonCustomVpc, "the Service is in VPC %s: nodes serve addresses of load balancers only for the VPC %s; for an address of an OvnEip create it again with loadBalancerClass %s",
			vpc, kubeovnv1.DefaultVpc, kubeovnv1.ClassOvnEip))
		return out, nil
	}
	p := r.Pools.of(*s.Spec.LoadBalancerClass)
	requested, err := svc.Request(s)
	if err != nil {
		out.Add(assignment.Problemf(ReasonInvalidRequest, "%v", err))
	}
	for _, family := range s.Spec.IPFamilies {
		f := ipfamily.IPv4
		if family == corev1.IPv6Protocol {
			f = ipfamily.IPv6
		}
		c := choice{service: s, pool: p, family: f, current: r.current(s, p, f), requested: requested[f]}
		address, problem, err := r.choose(ctx, c)
		if err != nil {
			return out, err
		}
		out.Add(problem)
		if address.IsValid() {
			out.Addresses = append(out.Addresses, address)
		}
	}
	return out, nil
}

// current returns the address of a family that a Service has; the zero Addr if there is none. The status in the cache may lack an address of the pool that
// was assigned a moment ago.
func (r *Reconciler) current(s *corev1.Service, p *pool, f ipfamily.Family) netip.Addr {
	key := client.ObjectKeyFromObject(s)
	for _, a := range p.assigned(s) {
		if holder := r.holders.of(a); ipfamily.Of(a) == f && (holder == key || holder.Name == "") {
			return a
		}
	}
	for _, a := range r.holders.addresses(key) {
		if ipfamily.Of(a) == f && p != nil && p.contains(a) {
			return a
		}
	}
	return netip.Addr{}
}

// choice is the input of choose: a family of a Service with its pool, which may be nil, and its present and requested address, if any.
type choice struct {
	service            *corev1.Service
	pool               *pool
	family             ipfamily.Family
	current, requested netip.Addr
}

// choose returns the address of a family; the zero Addr if there is none.
func (r *Reconciler) choose(ctx context.Context, c choice) (netip.Addr, problem, error) {
	refusal := c.refusal()
	switch {
	case c.current.IsValid() && (!c.requested.IsValid() || c.requested == c.current):
		kept, err := r.kept(ctx, c, refusal)
		return c.current, kept, err
	case refusal.Reason != "":
		return c.current, refusal, nil
	case c.requested.IsValid():
		why, err := r.unavailable(ctx, c)
		switch {
		case err != nil:
			return c.current, problem{}, err
		case why != "":
			return c.current, assignment.Problemf(ReasonAddressUnavailable, "%s is not available: %s", c.requested, why), nil
		}
		return c.requested, problem{}, nil
	case len(c.pool.ranges[c.family]) == 0:
		if policy := c.service.Spec.IPFamilyPolicy; policy != nil && *policy == corev1.IPFamilyPolicyPreferDualStack {
			return netip.Addr{}, problem{}, nil
		}
		return netip.Addr{}, assignment.Problemf(ReasonFamilyMissing, "the pool of class %s has no %s addresses", c.pool.spec.Class, c.family), nil
	}
	found, err := r.holders.search(c.pool, c.family, func(a netip.Addr) (netip.Addr, error) {
		conflict, err := r.conflict(ctx, a)
		if err == nil && conflict.with == "" {
			conflict, err = r.requestedBy(ctx, a, c.service)
		}
		return conflict.last, err
	})
	if err != nil || found.IsValid() {
		return found, problem{}, err
	}
	return netip.Addr{}, assignment.Problemf(ReasonPoolExhausted, "no %s address of the pool of class %s is free: delete another Service of the class, or ask an administrator for more addresses",
		c.family, c.pool.spec.Class), nil
}

// refusal returns why a pool assigns no address to a Service.
func (c choice) refusal() problem {
	class := *c.service.Spec.LoadBalancerClass
	switch {
	case c.pool == nil:
		return assignment.Problemf(ReasonOutsidePool, "spec.services.loadBalancerPools of the OVNCluster no longer has the class %s", class)
	case !c.pool.spec.Permits(c.service.Namespace):
		return assignment.Problemf(ReasonNamespaceNotAllowed, "the pool of class %s is not for namespace %s: ask an administrator to add it to spec.services.loadBalancerPools of the OVNCluster",
			class, c.service.Namespace)
	case c.pool.err != nil:
		return assignment.Problemf(ReasonPoolInvalid, "the pool of class %s: %v", class, c.pool.err)
	}
	return problem{}
}

// kept returns the problem of an address that a Service keeps.
func (r *Reconciler) kept(ctx context.Context, c choice, refusal problem) (problem, error) {
	const until = ": the Service keeps the address until it is deleted or changes its type"
	if refusal.Reason != "" {
		return problem{Reason: refusal.Reason, Message: refusal.Message + until}, nil
	}
	if !c.pool.contains(c.current) {
		return assignment.Problemf(ReasonOutsidePool, "%s is no longer in the pool of class %s%s", c.current, c.pool.spec.Class, until), nil
	}
	conflict, err := r.conflict(ctx, c.current)
	if conflict.with == "" || err != nil {
		return problem{}, err
	}
	return assignment.Problemf(ReasonAddressInUse, "%s also belongs to %s%s", c.current, conflict.with, until), nil
}

// unavailable returns why a Service cannot have the address that it requests; empty if it can.
func (r *Reconciler) unavailable(ctx context.Context, c choice) (string, error) {
	if !c.pool.contains(c.requested) {
		return "it is not in the pool of class " + c.pool.spec.Class, nil
	}
	if holder := r.holders.of(c.requested); holder.Name != "" && holder != client.ObjectKeyFromObject(c.service) {
		return "another Service has it", nil
	}
	conflict, err := r.conflict(ctx, c.requested)
	if err == nil && conflict.with == "" {
		conflict, err = r.requestedBy(ctx, c.requested, c.service)
	}
	if err != nil || conflict.with == "" {
		return "", err
	}
	return "it belongs to " + conflict.with, nil
}
