// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// maxServiceName is the maximum length of the name of a Service (RFC 1035).
const maxServiceName = 63

// serviceName returns the name of a rule's Service. A hash replaces the name of a rule that is not valid for a Service.
func serviceName(kind, rule string) string {
	prefix := translate.LBRulePrefix(kind)
	if name := prefix + rule; len(name) <= maxServiceName && !strings.Contains(name, ".") {
		return name
	}
	sum := sha256.Sum256([]byte(rule))
	return prefix + hex.EncodeToString(sum[:10])
}

// serviceKey returns the namespace and name of a rule's Service.
func serviceKey(rule *rule) client.ObjectKey {
	return client.ObjectKey{Namespace: cmp.Or(rule.spec.Namespace, metav1.NamespaceDefault), Name: serviceName(rule.kind, rule.GetName())}
}

// ensureService creates or updates the Service of the rule and returns it. Kubernetes uses it to select ready pods, and nodes serve it if
// s.outside. A rule with endpoints that nodes do not serve has no Service.
func (r *controller) ensureService(ctx context.Context, rule *rule, s *state) (*corev1.Service, error) {
	key := client.ObjectKey{}
	if len(rule.spec.Endpoints) == 0 || s.outside {
		key = serviceKey(rule)
	}
	if key.Name == "" {
		return nil, r.deleteServices(ctx, rule, key)
	}
	service := &corev1.Service{}
	err := r.Client.Get(ctx, key, service)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get Service %s: %w", key, err)
	}
	missing := err != nil
	if !missing && !metav1.IsControlledBy(service, rule) {
		s.problem = validation.Problemf(validation.ReasonNameConflict,
			"Service %s, which the rule needs to find its pods, does not belong to the rule: delete the Service, or create a rule with another name", key)
		return nil, nil
	}
	if err := r.deleteServices(ctx, rule, key); err != nil {
		return nil, err
	}
	s.service = key.String()
	if headless := service.Spec.ClusterIP == corev1.ClusterIPNone; !missing && headless == s.outside {
		if err := r.deleteService(ctx, service); err != nil { // a Service cannot change between headless and ClusterIP
			return nil, err
		}
		service, missing = &corev1.Service{}, true
	}
	base := service.DeepCopy()
	fill(service, rule, s)
	if missing {
		service.Namespace, service.Name = key.Namespace, key.Name
		return r.createService(ctx, rule, service, s)
	}
	return service, k8s.Patch(ctx, r.Client, base, service)
}

// createService creates the Service. If its namespace is missing, it returns nil and the rule waits.
func (r *controller) createService(ctx context.Context, rule *rule, service *corev1.Service, s *state) (*corev1.Service, error) {
	r.watch(rule, s, "namespace/"+service.Namespace)
	err := r.Client.Create(ctx, service, k8s.FieldOwner)
	switch {
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		s.waiting = append(s.waiting, withoutNamespace(service.Namespace))
		s.service = ""
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("create Service %s/%s: %w", service.Namespace, service.Name, err)
	}
	return service, nil
}

func withoutNamespace(name string) string {
	return fmt.Sprintf("namespace %s, which does not exist: create it, or name another one", name)
}

// servicesOf returns the Services of the rule. They belong to the cache.
func (r *controller) servicesOf(ctx context.Context, rule *rule) ([]*corev1.Service, error) {
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list, client.MatchingFields{r.indexOwner(): rule.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the rule's Services: %w", err)
	}
	var services []*corev1.Service
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], rule) {
			services = append(services, &list.Items[i])
		}
	}
	return services, nil
}

// deleteServices deletes the Services of the rule except one.
func (r *controller) deleteServices(ctx context.Context, rule *rule, but client.ObjectKey) error {
	services, err := r.servicesOf(ctx, rule)
	if err != nil {
		return err
	}
	for _, old := range services {
		if client.ObjectKeyFromObject(old) == but {
			continue
		}
		if err := r.deleteService(ctx, old.DeepCopy()); err != nil {
			return err
		}
	}
	return nil
}

func (r *controller) deleteService(ctx context.Context, service *corev1.Service) error {
	if err := r.Client.Delete(ctx, service, client.Preconditions{UID: &service.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Service %s: %w", client.ObjectKeyFromObject(service), err)
	}
	return nil
}

// fill sets the rule's fields of a Service. Other fields keep their values.
func fill(service *corev1.Service, rule *rule, s *state) {
	if !rule.owns(service) {
		owner := rule.reference()
		owner.Controller = new(true)
		service.OwnerReferences = append(service.OwnerReferences, owner)
	}
	spec := &service.Spec
	spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	spec.Selector = validation.LBRuleSelector(rule.spec)
	if s.outside {
		expose(spec, s)
	} else {
		spec.ClusterIP = corev1.ClusterIPNone
	}
	spec.Ports = nil
	for _, p := range s.in.Ports {
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: p.Name, Protocol: p.Protocol, Port: int32(p.Port), TargetPort: intstr.FromInt32(int32(p.Target)),
		})
	}
}

// expose makes nodes serve the addresses of the rule as external IPs. Nodes serve only Services with a ClusterIP, which the API server
// allocates.
func expose(spec *corev1.ServiceSpec, s *state) {
	spec.ExternalIPs = nil
	if !s.hidden {
		for _, a := range s.in.VIPs {
			spec.ExternalIPs = append(spec.ExternalIPs, a.String())
		}
	}
	if spec.SessionAffinity = corev1.ServiceAffinityNone; s.in.Sticky {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		return
	}
	spec.SessionAffinityConfig = nil
}
