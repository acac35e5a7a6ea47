// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/validation"
)

// indexRequested finds Services of the class kubeovnv1.ClassOvnEip by the addresses that they request.
const indexRequested = "service.requested"

func requestedAddresses(o client.Object) []string {
	s := o.(*corev1.Service)
	if !svc.ByOvnEip(s) {
		return nil
	}
	requested, _ := svc.Request(s)
	var texts []string
	for _, a := range requested {
		if a.IsValid() {
			texts = append(texts, a.String())
		}
	}
	return texts
}

// applied returns the use of an OvnEip in the rows of a Service.
func (r *Reconciler) applied(key types.NamespacedName) translate.ServiceExternal {
	return translate.ServiceExternalOf(northbound.Of[nb.LoadBalancer](r.Northbound, translate.ServiceOwner(key.Namespace, key.Name)))
}

// claimOf returns a claim of a Service, which may be nil, without an OvnEip and ports.
func claimOf(key types.NamespacedName, s *corev1.Service) lookup.ServiceClaim {
	claim := lookup.NewServiceClaim(key)
	if s != nil {
		claim.Created = s.CreationTimestamp.UTC()
	}
	return claim
}

// lastClaim returns the claim of applied rows.
func lastClaim(key types.NamespacedName, s *corev1.Service, applied translate.ServiceExternal) lookup.ServiceClaim {
	claim := claimOf(key, s)
	claim.Eip, claim.Vpc, claim.Last = applied.Eip, applied.Vpc, true
	for _, f := range applied.Fronts {
		claim.Addresses = append(claim.Addresses, f.Address.Addr())
		claim.Fronts = append(claim.Fronts, validation.Front{Protocol: f.Protocol, Port: f.Address.Port()})
	}
	claim.Fronts = sorted(claim.Fronts)
	slices.SortFunc(claim.Addresses, netip.Addr.Compare)
	claim.Addresses = slices.Compact(claim.Addresses)
	return claim
}

// claims returns the claims of a Service: one for its applied rows, and one for other ports of its spec. A claim precedes others with its applied ports, and in the VPC of
// the rows, only: users change ports, and create pods again in another VPC.
func (r *Reconciler) claims(key types.NamespacedName, out *outside) []lookup.ServiceClaim {
	var claims []lookup.ServiceClaim
	applied, has := r.applied(key), map[validation.Front]bool{}
	if applied.Eip != "" {
		last := lastClaim(key, out.service, applied)
		claims = append(claims, last)
		if out.claim != nil && out.claim.Eip == last.Eip && out.claim.Vpc == last.Vpc {
			for _, front := range last.Fronts {
				has[front] = true
			}
		}
	}
	if out.claim != nil {
		other := *out.claim
		other.Fronts = slices.DeleteFunc(slices.Clone(other.Fronts), func(f validation.Front) bool { return has[f] })
		if len(other.Fronts) > 0 {
			claims = append(claims, other)
		}
	}
	return claims
}

// record makes the claims of a Service known to other users of its OvnEips. Call it before their claims are read, and after each change of the rows.
func (r *Reconciler) record(key types.NamespacedName, out *outside) {
	r.Networks.ServiceClaims.Set(key, r.claims(key, out)...)
}

// restoreClaims records the claims of all applied rows, before other users of OvnEips are served.
func (r *Reconciler) restoreClaims(ctx context.Context) error {
	services := map[types.NamespacedName]bool{}
	northbound.Each(r.Northbound, translate.KindService, func(owner desired.Owner, row *nb.LoadBalancer) {
		if translate.ServiceExternalOf([]*nb.LoadBalancer{row}).Eip != "" {
			services[types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}] = true
		}
	})
	for key := range services {
		s, err := k8s.Find[corev1.Service](ctx, r.Client, key, client.UnsafeDisableDeepCopy)
		if err != nil {
			return fmt.Errorf("get Service %s: %w", key, err)
		}
		r.Networks.ServiceClaims.Set(key, lastClaim(key, s, r.applied(key)))
	}
	return nil
}

// watchEips adds the sources of Services with addresses of OvnEips: OvnEips, their other users, and the former translations that new ports wait for.
func (r *Reconciler) watchEips(ctx context.Context, b *builder.Builder, indexer client.FieldIndexer) (*builder.Builder, error) {
	if err := indexer.IndexField(ctx, &corev1.Service{}, indexRequested, requestedAddresses); err != nil {
		return nil, fmt.Errorf("index Services by requested addresses: %w", err)
	}
	for _, kind := range kubeovnv1.NATKinds {
		b = b.Watches(lookup.EmptyNATRule(kind.Kind), handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return r.withEips(lookup.NATRuleOf(o).Eips())
		}), builder.WithPredicates(k8s.Changed(lookup.ViewNATRule)))
	}
	return b.
		Watches(&kubeovnv1.RouterLBRule{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return r.withEips(lookup.EipsOf(o.(*kubeovnv1.RouterLBRule)))
		}), builder.WithPredicates(k8s.Changed(lookup.ViewRouterRule))).
		Watches(&kubeovnv1.OvnEip{}, handler.EnqueueRequestsFromMapFunc(r.requesting), builder.WithPredicates(k8s.Changed(viewEip))).
		Watches(&kubeovnv1.OvnEip{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return requestsOf(r.awaiting.Of(o.GetName()))
		}), builder.WithPredicates(k8s.Changed(viewReleasing))).
		WatchesRawSource(reconciler.OnServiceClaims(r.Networks, r.besideClaim)), nil
}

// viewEip is the part of an OvnEip on which Services depend.
func viewEip(eip *kubeovnv1.OvnEip) string {
	return fmt.Sprint(eip.Spec.AllowedNamespaces, eip.DeletionTimestamp != nil, lookup.AddressesOfEip(eip))
}

func viewReleasing(eip *kubeovnv1.OvnEip) string {
	return fmt.Sprint(lookup.Awaited(eip.Status.Releasing))
}

// requesting returns the Services that request addresses of an OvnEip.
func (r *Reconciler) requesting(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, address := range lookup.AddressesOfEip(o) {
		requests = append(requests, k8s.Listed(ctx, r.Client, &corev1.ServiceList{}, client.MatchingFields{indexRequested: address})...)
	}
	return requests
}

// withEips returns the Services that claim one of several OvnEips.
func (r *Reconciler) withEips(eips []string) []reconcile.Request {
	var requests []reconcile.Request
	for _, eip := range eips {
		requests = append(requests, requestsOf(r.Networks.ServiceClaims.ServicesOf(eip))...)
	}
	return requests
}

// besideClaim returns the other Services that a change of a claim can concern: Services that wait for a port of the OvnEip or have it for another VPC, and Services with its
// addresses by their externalIPs.
func (r *Reconciler) besideClaim(ctx context.Context, claim lookup.ServiceClaim) []reconcile.Request {
	var requests []reconcile.Request
	for _, service := range r.Networks.ServiceClaims.ServicesOf(claim.Eip) {
		if service.String() != claim.Name && slices.ContainsFunc(r.Networks.ServiceClaims.OfService(service), claim.Concerns) {
			requests = append(requests, k8s.RequestOf(service))
		}
	}
	for _, a := range claim.Addresses {
		others, err := r.Services.At(ctx, a)
		if err != nil {
			return nil // the cache is stopping
		}
		for _, other := range others {
			requests = append(requests, k8s.RequestOf(client.ObjectKeyFromObject(other)))
		}
	}
	return requests
}

func requestsOf(services []types.NamespacedName) []reconcile.Request {
	requests := make([]reconcile.Request, 0, len(services))
	for _, service := range services {
		requests = append(requests, k8s.RequestOf(service))
	}
	return requests
}
