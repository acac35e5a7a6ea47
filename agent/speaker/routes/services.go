// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/endpoints"
	"github.com/kiln-net/kiln/internal/svc"
)

// service is the state of a Service with the annotation, or with a class of load balancers.
type service struct {
	value   kubeovnv1.Announcement
	set     bool
	err     error
	vpc     string
	created time.Time
	// class is the loadBalancerClass, and balanced are the addresses that a pool assigned.
	class    string
	balanced []netip.Addr
	// ofRule are the addresses of the OvnEip, if the Service is a RouterLBRule's.
	ofRule []netip.Addr
	// internal are the ClusterIPs, external the other addresses. Addresses with a local policy are served by nodes with endpoints only.
	internal, external           []netip.Addr
	internalLocal, externalLocal bool
}

// readiness says where a Service has endpoints of a family that take connections.
type readiness struct {
	family discoveryv1.AddressType
	// somewhere and here are true if a node, or this node, has a ready endpoint.
	somewhere, here bool
}

// SetService updates a Service. Services with neither the annotation nor a class are not kept, unless they are of RouterLBRules.
func (t *Table) SetService(s *corev1.Service) {
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	value, set, err := announcement(s.Annotations)
	class, rule := classOf(s), kubeovnv1.OfRouterLBRule(s)
	if !rule && (!set && class == "" || set && err == nil && value == kubeovnv1.AnnounceNone) || !s.DeletionTimestamp.IsZero() || s.Spec.Type == corev1.ServiceTypeExternalName {
		t.DeleteService(key)
		return
	}
	next := &service{
		value: value, set: set, err: err, vpc: svc.Vpc(s), created: s.CreationTimestamp.Time, class: class, internal: svc.ClusterIPs(s), external: svc.RequestedAddresses(s),
		internalLocal: s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		externalLocal: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
	}
	if class != "" && meta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionAddressAssigned) != nil { // of the pools' controller, not another one
		next.balanced = svc.LoadBalancerAddresses(s)
		next.external = slices.DeleteFunc(next.external, func(a netip.Addr) bool { return slices.Contains(next.balanced, a) })
	}
	if rule {
		next.ofRule, next.external = next.external, nil
	}
	t.services[key] = next
	t.offerService(key)
}

func classOf(s *corev1.Service) string {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Spec.LoadBalancerClass == nil {
		return ""
	}
	return *s.Spec.LoadBalancerClass
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
	if of == kubernetes {
		t.setAPIServers(s.Name, s.Endpoints)
	}
	next := readiness{family: s.AddressType}
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
	if of == kubernetes {
		t.setAPIServers(key.Name, nil)
	}
	delete(t.slices, key)
	delete(t.endpoints[of], key.Name)
	if len(t.endpoints[of]) == 0 {
		delete(t.endpoints, of)
	}
	t.offerService(of)
}

// kubernetes is the Service of the API servers.
var kubernetes = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// IsOfAPIServer reports whether the table uses the addresses of an EndpointSlice.
func IsOfAPIServer(s *discoveryv1.EndpointSlice) bool {
	return s.Namespace == kubernetes.Namespace && s.Labels[discoveryv1.LabelServiceName] == kubernetes.Name
}

func (t *Table) setAPIServers(slice string, of []discoveryv1.Endpoint) {
	var next []netip.Addr
	for i := range of {
		for _, text := range of[i].Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				next = append(next, a.Unmap())
			}
		}
	}
	before := t.apiServers[slice]
	if len(next) == 0 {
		delete(t.apiServers, slice)
	} else {
		t.apiServers[slice] = next
	}
	t.reserve(apiServer, before, next)
}

// offerService computes the prefixes of a Service. A Service without a ready endpoint is not announced, so that routers use other ways to its
// addresses, if there are any.
func (t *Table) offerService(key types.NamespacedName) {
	owner := Owner{Kind: kubeovnv1.OnService, NamespacedName: key}
	s := t.services[key]
	if s == nil {
		t.limit(owner, time.Time{}, 0)
		t.offer(owner, offer{})
		return
	}
	permitted, pooled := s.set && t.permits(key.Namespace), slices.Contains(t.settings.Classes, s.class)
	requested := 0
	if permitted && s.err == nil && s.vpc == kubeovnv1.DefaultVpc {
		requested = len(hosts(s.internal)) + len(hosts(s.external))
		if !pooled { // otherwise the pool announces them, not the annotation
			requested += len(hosts(s.balanced))
		}
	}
	within := t.limit(owner, s.created, requested)
	local := s.value == kubeovnv1.AnnounceLocal
	var next offer
	switch {
	case !s.set && !pooled || s.set && s.err == nil && s.value == kubeovnv1.AnnounceNone:
	case s.err != nil:
		next = refuse(fmt.Sprintf("annotation %s %v", kubeovnv1.AnnotationBGP.Key(), s.err))
	case !permitted && !pooled:
		next = refuse(notPermitted(key.Namespace))
	case s.vpc != kubeovnv1.DefaultVpc:
		next = refuse(otherVpc(s.vpc))
	case permitted && within:
		t.addAddresses(&next, key, s.internal, s.internalLocal || local, fromAPIServer)
		t.addAddresses(&next, key, s.external, s.externalLocal || local, fromUser)
		t.addAddresses(&next, key, s.balanced, s.externalLocal || local, fromPool)
	default:
		if !within {
			next = t.beyond(key.Namespace)
		}
		if pooled {
			t.addAddresses(&next, key, s.balanced, s.externalLocal || local, fromPool)
		}
	}
	if s.vpc == kubeovnv1.DefaultVpc { // by the annotation of the OvnEip
		t.addAddresses(&next, key, t.announcedEips(s.ofRule), s.externalLocal, fromEip)
	}
	t.offer(owner, next)
}

// addAddresses adds addresses of a Service to an offer. Its endpoints of the other family do not serve an address.
func (t *Table) addAddresses(next *offer, service types.NamespacedName, addresses []netip.Addr, local bool, from origin) {
	for _, prefix := range hosts(addresses) {
		if reason := t.taken(prefix.Addr(), from); reason != "" {
			next.refused = cmp.Or(next.refused, reason)
			continue
		}
		switch ready := t.readinessOf(service, ipfamily.Of(prefix.Addr())); {
		case local && ready.here:
			next.own = append(next.own, prefix)
		case !local && ready.somewhere:
			next.shared = append(next.shared, prefix)
		}
	}
}

// readinessOf returns the readiness of a Service in a family.
func (t *Table) readinessOf(service types.NamespacedName, family ipfamily.Family) readiness {
	ready := readiness{family: discoveryv1.AddressType(family.String())}
	for _, r := range t.endpoints[service] {
		if r.family == ready.family {
			ready.somewhere, ready.here = ready.somewhere || r.somewhere, ready.here || r.here
		}
	}
	return ready
}

// origin is the author of an address of a Service or an EgressAddress.
type origin int

// Origins.
const (
	fromAPIServer origin = iota // a ClusterIP
	fromPool                    // assigned by a pool
	fromEip                     // of an OvnEip or an EgressAddress, which administrators write
	fromUser                    // users of the namespace, or another controller
)

// taken returns the reason why an address of a Service or an EgressAddress is not announced; empty if it is. A stolen node can list addresses of others in the status of its
// Node, and a Subnet can be created after an address was assigned: both withdraw only addresses that users choose.
func (t *Table) taken(a netip.Addr, from origin) string {
	holders := []holder{aPeer}
	if from != fromAPIServer {
		holders = append(holders, apiServer)
	}
	if from == fromUser {
		holders = append(holders, aNode, anEgress)
	}
	for _, h := range holders {
		if t.reserved[reservation{h, a}] > 0 {
			return fmt.Sprintf("%s is an address of %s", a, h)
		}
	}
	if from == fromUser {
		for name, s := range t.subnets {
			if contains(s.claimed, a) {
				return fmt.Sprintf("%s is in Subnet %s", a, name)
			}
		}
	}
	return ""
}

func (t *Table) offerServices() {
	for key := range t.services {
		t.offerService(key)
	}
}
