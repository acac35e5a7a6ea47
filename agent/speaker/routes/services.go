// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/endpoints"
	"github.com/kiln-net/kiln/internal/svc"
)

// service is the state of a Service with the annotation.
type service struct {
	value kubeovnv1.Announcement
	err   error
	vpc   string
	// internal are the ClusterIPs, external the other addresses. Those with a local policy are served by nodes with endpoints only.
	internal, external           []netip.Addr
	internalLocal, externalLocal bool
}

// readiness says where a Service has endpoints that take connections.
type readiness struct {
	// somewhere and here are true if a node, or this node, has a ready endpoint.
	somewhere, here bool
}

// SetService updates a Service. Services without the annotation are not kept.
func (t *Table) SetService(s *corev1.Service) {
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	value, set, err := announcement(s.Annotations)
	if !set || !s.DeletionTimestamp.IsZero() || s.Spec.Type == corev1.ServiceTypeExternalName || err == nil && value == kubeovnv1.AnnounceNone {
		t.DeleteService(key)
		return
	}
	t.services[key] = &service{
		value: value, err: err, vpc: svc.Vpc(s), internal: svc.ClusterIPs(s), external: svc.RequestedAddresses(s),
		internalLocal: s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		externalLocal: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
	}
	t.offerService(key)
}

// DeleteService removes a Service.
func (t *Table) DeleteService(key types.NamespacedName) {
	delete(t.services, key)
	t.offerService(key)
}

// SetSlice updates an EndpointSlice.
func (t *Table) SetSlice(s *discoveryv1.EndpointSlice) {
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	of := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	if of != t.slices[key] {
		t.DeleteSlice(key)
	}
	if of.Name == "" {
		return
	}
	var next readiness
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if endpoints.StateOf(e) == endpoints.Ready {
			next.somewhere = true
			next.here = next.here || e.NodeName != nil && *e.NodeName == t.node
		}
	}
	if t.endpoints[of] == nil {
		t.endpoints[of] = map[string]readiness{}
	}
	before, found := t.endpoints[of][s.Name]
	t.slices[key], t.endpoints[of][s.Name] = of, next
	if !found || before != next {
		t.offerService(of)
	}
}

// DeleteSlice removes an EndpointSlice.
func (t *Table) DeleteSlice(key types.NamespacedName) {
	of, found := t.slices[key]
	if !found {
		return
	}
	delete(t.slices, key)
	delete(t.endpoints[of], key.Name)
	if len(t.endpoints[of]) == 0 {
		delete(t.endpoints, of)
	}
	t.offerService(of)
}

// offerService computes the prefixes of a Service. A Service without a ready endpoint is not announced, so that routers use other ways to its
// addresses, if there are any.
func (t *Table) offerService(key types.NamespacedName) {
	owner := Owner{kubeovnv1.OnService, key}
	s := t.services[key]
	switch {
	case s == nil:
		t.offer(owner, offer{})
		return
	case s.err != nil:
		t.offer(owner, refuse(fmt.Sprintf("annotation %s %v", kubeovnv1.AnnotationBGP.Key(), s.err)))
		return
	case !t.permits(key.Namespace):
		t.offer(owner, refuse(notPermitted(key.Namespace)))
		return
	case s.vpc != kubeovnv1.DefaultVpc:
		t.offer(owner, refuse(otherVpc(s.vpc)))
		return
	}
	var ready readiness
	for _, r := range t.endpoints[key] {
		ready.somewhere, ready.here = ready.somewhere || r.somewhere, ready.here || r.here
	}
	var next offer
	for _, group := range []struct {
		addresses []netip.Addr
		local     bool
	}{{s.internal, s.internalLocal}, {s.external, s.externalLocal}} {
		prefixes := hosts(group.addresses)
		switch local := group.local || s.value == kubeovnv1.AnnounceLocal; {
		case t.ofNode(prefixes):
			next.refused = "one of its addresses belongs to the node"
		case local && ready.here:
			next.own = append(next.own, prefixes...)
		case !local && ready.somewhere:
			next.shared = append(next.shared, prefixes...)
		}
	}
	t.offer(owner, next)
}

// ofNode reports whether one of the prefixes is an address of this node. The node's routers must not get another route to it.
func (t *Table) ofNode(prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return slices.Contains(t.nodeAddresses, p.Addr()) })
}
