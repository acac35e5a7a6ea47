// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/svc"
)

// Reasons of the condition kubeovnv1.ConditionAddressAssigned.
const (
	// ReasonAssigned: the Service has the addresses that it requests.
	ReasonAssigned = "Assigned"
	// ReasonPoolExhausted: no address of the pool is free.
	ReasonPoolExhausted = "PoolExhausted"
	// ReasonNamespaceNotAllowed: the pool is not for the namespace.
	ReasonNamespaceNotAllowed = "NamespaceNotAllowed"
	// ReasonFamilyMissing: the pool has no address of a family of the Service.
	ReasonFamilyMissing = "FamilyMissing"
	// ReasonInvalidRequest: the requested addresses cannot be read, or are of another family.
	ReasonInvalidRequest = "InvalidRequest"
	// ReasonAddressUnavailable: the requested address is not in the pool, or belongs to another object.
	ReasonAddressUnavailable = "AddressUnavailable"
	// ReasonAddressInUse: the address of the Service belongs to another object as well.
	ReasonAddressInUse = "AddressConflict"
	// ReasonOutsidePool: the Service keeps an address that its pool no longer has.
	ReasonOutsidePool = "OutsidePool"
	// ReasonCustomVpc: nodes do not serve the Service.
	ReasonCustomVpc = "CustomVpc"
	// ReasonPoolInvalid: the addresses of the pool cannot be read.
	ReasonPoolInvalid = "PoolInvalid"
)

// result has the addresses of a Service and their problem.
type result struct {
	addresses []netip.Addr
	problems  []problem
}

// problem is a reason and a message of a condition. The zero value is no problem.
type problem struct{ reason, message string }

func (r *result) add(p problem) {
	if p.reason != "" && !slices.Contains(r.problems, p) {
		r.problems = append(r.problems, p)
	}
}

// waits reports whether an address that another object releases may help.
func (r *result) waits() bool {
	return slices.ContainsFunc(r.problems, func(p problem) bool { return p.reason == ReasonPoolExhausted || p.reason == ReasonAddressUnavailable })
}

func (r *result) condition() metav1.Condition {
	c := metav1.Condition{Type: kubeovnv1.ConditionAddressAssigned, Status: metav1.ConditionTrue, Reason: ReasonAssigned}
	var texts []string
	if len(r.addresses) > 0 {
		texts = append(texts, "assigned: "+ipfamily.Join(r.addresses))
	}
	for i, p := range r.problems {
		if i == 0 {
			c.Status, c.Reason = metav1.ConditionFalse, p.reason
		}
		texts = append(texts, p.message)
	}
	c.Message = strings.Join(texts, "; ")
	return c
}

// assign returns the addresses of a Service, one of each of its families. An assigned address stays until the Service requests another one: clients
// use it. What the pool would refuse now is reported.
func (r *Reconciler) assign(ctx context.Context, s *corev1.Service) (result, error) {
	var out result
	if vpc := svc.Vpc(s); vpc != kubeovnv1.DefaultVpc {
		out.add(problem{ReasonCustomVpc, fmt.Sprintf("the Service is in VPC %s: nodes serve addresses of load balancers only for the VPC %s", vpc, kubeovnv1.DefaultVpc)})
		return out, nil
	}
	p := r.Pools.of(*s.Spec.LoadBalancerClass)
	requested, invalid := requestOf(s)
	out.add(invalid)
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
		out.add(problem)
		if address.IsValid() {
			out.addresses = append(out.addresses, address)
		}
	}
	return out, nil
}

// requestOf returns the addresses that a Service requests, by family.
func requestOf(s *corev1.Service) (requested [2]netip.Addr, invalid problem) {
	key, text := "annotation "+kubeovnv1.AnnotationIPAddress.Key(), s.Annotations[kubeovnv1.AnnotationIPAddress.Key()]
	if text == "" {
		key, text = "spec.loadBalancerIP", s.Spec.LoadBalancerIP
	}
	addresses, err := ipfamily.ParseAddrs(text)
	if err != nil {
		return requested, problem{ReasonInvalidRequest, fmt.Sprintf("%s: %v: write one address of each family at most", key, err)}
	}
	for _, a := range addresses {
		if family := corev1.IPFamily(ipfamily.Of(a).String()); !slices.Contains(s.Spec.IPFamilies, family) {
			invalid = problem{ReasonInvalidRequest, fmt.Sprintf("%s: %s is not of a family of the Service: add %s to spec.ipFamilies", key, a, family)}
		}
		requested[ipfamily.Of(a)] = a
	}
	return requested, invalid
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
	case refusal.reason != "":
		return c.current, refusal, nil
	case c.requested.IsValid():
		why, err := r.unavailable(ctx, c)
		switch {
		case err != nil:
			return c.current, problem{}, err
		case why != "":
			return c.current, problem{ReasonAddressUnavailable, fmt.Sprintf("%s is not available: %s", c.requested, why)}, nil
		}
		return c.requested, problem{}, nil
	case len(c.pool.ranges[c.family]) == 0:
		if policy := c.service.Spec.IPFamilyPolicy; policy != nil && *policy == corev1.IPFamilyPolicyPreferDualStack {
			return netip.Addr{}, problem{}, nil
		}
		return netip.Addr{}, problem{ReasonFamilyMissing, fmt.Sprintf("the pool of class %s has no %s addresses", c.pool.spec.Class, c.family)}, nil
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
	return netip.Addr{}, problem{ReasonPoolExhausted, fmt.Sprintf("no %s address of the pool of class %s is free: delete another Service of the class, or ask an administrator for more addresses",
		c.family, c.pool.spec.Class)}, nil
}

// refusal returns why a pool assigns no address to a Service.
func (c choice) refusal() problem {
	class := *c.service.Spec.LoadBalancerClass
	switch {
	case c.pool == nil:
		return problem{ReasonOutsidePool, fmt.Sprintf("spec.services.loadBalancerPools of the OVNCluster no longer has the class %s", class)}
	case !c.pool.spec.Permits(c.service.Namespace):
		return problem{ReasonNamespaceNotAllowed, fmt.Sprintf("the pool of class %s is not for namespace %s: ask an administrator to add it to spec.services.loadBalancerPools of the OVNCluster",
			class, c.service.Namespace)}
	case c.pool.err != nil:
		return problem{ReasonPoolInvalid, fmt.Sprintf("the pool of class %s: %v", class, c.pool.err)}
	}
	return problem{}
}

// kept returns the problem of an address that a Service keeps.
func (r *Reconciler) kept(ctx context.Context, c choice, refusal problem) (problem, error) {
	const until = ": the Service keeps the address until it is deleted or changes its type"
	if refusal.reason != "" {
		return problem{refusal.reason, refusal.message + until}, nil
	}
	if !c.pool.contains(c.current) {
		return problem{ReasonOutsidePool, fmt.Sprintf("%s is no longer in the pool of class %s", c.current, c.pool.spec.Class) + until}, nil
	}
	conflict, err := r.conflict(ctx, c.current)
	if conflict.with == "" || err != nil {
		return problem{}, err
	}
	return problem{ReasonAddressInUse, fmt.Sprintf("%s also belongs to %s", c.current, conflict.with) + until}, nil
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
