// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// servicePrefix begins the names of rules' Services, as Kube-OVN names them.
const servicePrefix = "slr-"

// maxServiceName is the longest name of a Service (RFC 1035).
const maxServiceName = 63

// serviceName is that of a rule's Service: a hash stands for a name that no Service can have.
func serviceName(rule string) string {
	if name := servicePrefix + rule; len(name) <= maxServiceName && !strings.Contains(name, ".") {
		return name
	}
	sum := sha256.Sum256([]byte(rule))
	return servicePrefix + hex.EncodeToString(sum[:10])
}

// ensureService makes the headless Service so, by which Kubernetes finds the ready pods that the rule selects, and returns it. A rule with
// endpoints has none.
func (r *Reconciler) ensureService(ctx context.Context, rule *kubeovnv1.SwitchLBRule, s *state) (*corev1.Service, error) {
	key := client.ObjectKey{}
	if len(rule.Spec.Endpoints) == 0 {
		key = client.ObjectKey{Namespace: cmp.Or(rule.Spec.Namespace, metav1.NamespaceDefault), Name: serviceName(rule.Name)}
	}
	if err := r.deleteServices(ctx, rule, key); err != nil || key.Name == "" {
		return nil, err
	}
	service := &corev1.Service{}
	err := r.Client.Get(ctx, key, service)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get Service %s: %w", key, err)
	}
	if err == nil && !metav1.IsControlledBy(service, rule) {
		s.problem = &validation.Problem{Reason: validation.ReasonNameConflict, Message: fmt.Sprintf(
			"Service %s, by which the pods would be found, is somebody else's: delete it, or create a rule of another name", key)}
		return nil, nil
	}
	s.service = key.String()
	base := service.DeepCopy()
	fill(service, rule, s.in.Ports)
	if err != nil {
		service.Namespace, service.Name = key.Namespace, key.Name
		if err := r.Client.Create(ctx, service, k8s.FieldOwner); err != nil {
			return nil, fmt.Errorf("create Service %s: %w", key, err)
		}
		return service, nil
	}
	return service, k8s.Patch(ctx, r.Client, base, service)
}

// deleteServices deletes the rule's Services but one.
func (r *Reconciler) deleteServices(ctx context.Context, rule *kubeovnv1.SwitchLBRule, but client.ObjectKey) error {
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list, client.MatchingFields{indexOwner: rule.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the rule's Services: %w", err)
	}
	for i := range list.Items {
		old := &list.Items[i]
		if client.ObjectKeyFromObject(old) == but || !metav1.IsControlledBy(old, rule) {
			continue
		}
		if err := r.Client.Delete(ctx, old.DeepCopy(), client.Preconditions{UID: &old.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete Service %s: %w", client.ObjectKeyFromObject(old), err)
		}
	}
	return nil
}

// fill makes a Service the rule's. What others set on it stays.
func fill(service *corev1.Service, rule *kubeovnv1.SwitchLBRule, ports []translate.LBRulePort) {
	owner := ownerReference(rule)
	owner.Controller = new(true)
	if !slices.ContainsFunc(service.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == rule.UID }) {
		service.OwnerReferences = append(service.OwnerReferences, owner)
	}
	spec := &service.Spec
	spec.ClusterIP, spec.IPFamilyPolicy = corev1.ClusterIPNone, new(corev1.IPFamilyPolicyPreferDualStack)
	spec.Selector = validation.LBRuleSelector(&rule.Spec.LBRuleBackends)
	spec.Ports = nil
	for _, p := range ports {
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: p.Name, Protocol: p.Protocol, Port: int32(p.Port), TargetPort: intstr.FromInt32(int32(p.Target)),
		})
	}
}

const kindSwitchLBRule = "SwitchLBRule"

func ownerReference(rule *kubeovnv1.SwitchLBRule) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: kubeovnv1.GroupVersion.String(), Kind: kindSwitchLBRule, Name: rule.Name, UID: rule.UID}
}

// owners are the names of the rules that own an object.
func owners(o client.Object) []string {
	var names []string
	for _, ref := range o.GetOwnerReferences() {
		if ref.Kind == kindSwitchLBRule && ref.APIVersion == kubeovnv1.GroupVersion.String() {
			names = append(names, ref.Name)
		}
	}
	return names
}
