// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/validation"
)

// taken returns the fronts of a Service that belong to another Service of its VPC. With two load balancers at one front OVN would choose one
// of them, and the deletion of one could end both. conflict describes the first of these fronts and says what to change; it is empty
// without a conflict. Addresses that the Service has by an OvnEip are no matter of its externalIPs.
func (r *Reconciler) taken(ctx context.Context, s *corev1.Service, vpc string, byEip []netip.Addr) (fronts []translate.Front, conflict string, err error) {
	if kubeovnv1.OfRouterLBRule(s) || translate.Unserved(s, vpc) {
		return nil, "", nil
	}
	for _, address := range svc.RequestedAddresses(s) {
		if slices.Contains(byEip, address) {
			continue
		}
		theirs, by := r.takenByEip(s, vpc, address)
		fronts, conflict = append(fronts, theirs...), cmp.Or(conflict, by)
		others, err := r.Services.At(ctx, address)
		if err != nil {
			return nil, "", fmt.Errorf("find the Services at %s: %w", address, err)
		}
		for _, other := range others {
			if !outranks(other, s, vpc, address) || r.refused(other) {
				continue
			}
			if denied, err := r.Grants.Vpc(ctx, other.Namespace, vpc); err != nil {
				return nil, "", err
			} else if denied != "" {
				continue // it is not served: its VPC does not allow its namespace
			}
			for _, front := range common(s, other, address) {
				if fronts = append(fronts, front); conflict == "" {
					conflict = describeConflict(s, other, front)
				}
			}
		}
	}
	return fronts, conflict, nil
}

// takenByEip returns the fronts of a Service at an address that another Service of its VPC has by an OvnEip, which an administrator has granted to it.
func (r *Reconciler) takenByEip(s *corev1.Service, vpc string, address netip.Addr) (fronts []translate.Front, conflict string) {
	own := map[validation.Front]bool{}
	for _, f := range frontsOf(s) {
		own[f] = true
	}
	for _, claim := range r.Networks.ServiceClaims.At(vpc, address) {
		if !claim.Last || claim.Name == client.ObjectKeyFromObject(s).String() {
			continue
		}
		for _, f := range claim.Fronts {
			if own[f] {
				fronts = append(fronts, translate.Front{Protocol: f.Protocol, Address: netip.AddrPortFrom(address, f.Port)})
				conflict = cmp.Or(conflict, fmt.Sprintf("%s: %s of %s leads to %s, which has the address by an OvnEip: choose another address or port", fieldOf(s, address), f, address, claim))
			}
		}
	}
	return fronts, conflict
}

// outranks reports whether another Service of the same VPC has precedence at an address. The Service of a RouterLBRule has none: the rule
// withdraws (package lbrule).
func outranks(other, s *corev1.Service, vpc string, address netip.Addr) bool {
	theirs, ours := rightOf(other, address), rightOf(s, address)
	return theirs.Service != ours.Service && svc.Vpc(other) == vpc && !translate.Unserved(other, vpc) &&
		(theirs.Allocated || !kubeovnv1.OfRouterLBRule(other)) && theirs.Before(ours)
}

func rightOf(s *corev1.Service, address netip.Addr) svc.Precedence {
	return svc.Precedence{
		Allocated: slices.Contains(svc.ClusterIPs(s), address), Created: s.CreationTimestamp, Service: client.ObjectKeyFromObject(s),
	}
}

// common returns the fronts that two Services share at an address.
func common(a, b *corev1.Service, address netip.Addr) []translate.Front {
	of := func(p corev1.ServicePort) translate.Front {
		return translate.Front{Protocol: protocolOf(p), Address: netip.AddrPortFrom(address, uint16(p.Port))} //nolint:gosec // the API server takes 1 to 65535
	}
	theirs := make(map[translate.Front]bool, len(b.Spec.Ports))
	for _, q := range b.Spec.Ports {
		theirs[of(q)] = true
	}
	var fronts []translate.Front
	for _, p := range a.Spec.Ports {
		if front := of(p); theirs[front] {
			fronts = append(fronts, front)
		}
	}
	return fronts
}

func protocolOf(p corev1.ServicePort) corev1.Protocol { return cmp.Or(p.Protocol, corev1.ProtocolTCP) }

// describeConflict returns the message about a front of s that belongs to other.
func describeConflict(s, other *corev1.Service, front translate.Front) string {
	why := "which is older"
	if rightOf(other, front.Address.Addr()).Allocated {
		why = "whose ClusterIP it is"
	}
	return fmt.Sprintf("%s: %s/%s leads to Service %s, %s: choose another address or port, or change that Service",
		fieldOf(s, front.Address.Addr()), front.Address, front.Protocol, client.ObjectKeyFromObject(other), why)
}

// fieldOf returns the field by which a Service requests an address.
func fieldOf(s *corev1.Service, address netip.Addr) string {
	if slices.Contains(s.Spec.ExternalIPs, address.String()) {
		return "spec.externalIPs"
	}
	return "status.loadBalancer"
}

// sharers returns the other Services at the addresses of a Service: a change of one can resolve or cause a conflict of another.
func (r *Reconciler) sharers(ctx context.Context, o client.Object) []reconcile.Request {
	s, ok := o.(*corev1.Service)
	if !ok {
		return nil
	}
	var requests []reconcile.Request
	for _, address := range svc.Addresses(s) {
		others, err := r.Services.At(ctx, address)
		if err != nil {
			return nil // the cache is stopping
		}
		for _, other := range others {
			if key := client.ObjectKeyFromObject(other); key != client.ObjectKeyFromObject(s) {
				requests = append(requests, reconcile.Request{NamespacedName: key})
			}
		}
	}
	return requests
}
