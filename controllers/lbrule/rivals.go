// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// rival is the Service or the older rule that has one of the rule's addresses and ports in its VPC: OVN would choose one of the two at
// every change.
func (r *Reconciler) rival(ctx context.Context, rule *kubeovnv1.SwitchLBRule, s *state) (*validation.Problem, error) {
	for _, vip := range s.in.VIPs {
		var services corev1.ServiceList
		if err := r.Client.List(ctx, &services, client.MatchingFields{indexVIP: vip.String()}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list Services by address: %w", err)
		}
		for i := range services.Items {
			other := &services.Items[i]
			if front := sharedWith(other, s); front != "" {
				return inUse("vip: Service %s has %s %s: choose another address or port", client.ObjectKeyFromObject(other), vip, front), nil
			}
		}
		var rules kubeovnv1.SwitchLBRuleList
		if err := r.Client.List(ctx, &rules, client.MatchingFields{indexVIP: vip.String()}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list rules by address: %w", err)
		}
		for i := range rules.Items {
			other := &rules.Items[i]
			front := common(portsOf(other), s.in.Ports)
			if front == "" || !older(other, rule) || validation.LBRuleBackends(&other.Spec.LBRuleBackends) != nil {
				continue
			}
			vpc, err := r.vpcOf(ctx, other)
			if err != nil {
				return nil, err
			}
			if vpc == s.in.Vpc {
				return inUse("vip: the older SwitchLBRule %s has %s %s: choose another address or port", other.Name, vip, front), nil
			}
		}
	}
	return nil, nil
}

// vpcOf is the VPC of another rule.
func (r *Reconciler) vpcOf(ctx context.Context, rule *kubeovnv1.SwitchLBRule) (string, error) {
	other := &state{keys: map[string]bool{}}
	var service *corev1.Service
	if len(rule.Spec.Endpoints) == 0 {
		service = &corev1.Service{}
		key := client.ObjectKey{Namespace: cmp.Or(rule.Spec.Namespace, corev1.NamespaceDefault), Name: serviceName(rule.Name)}
		if err := r.Client.Get(ctx, key, service, client.UnsafeDisableDeepCopy); err != nil {
			service = nil // it has none yet
		}
	}
	err := r.resolve(ctx, rule, service, other)
	return other.in.Vpc, err
}

func older(a, b *kubeovnv1.SwitchLBRule) bool {
	if a.UID == b.UID {
		return false
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// sharedWith is the port that a Service of the rule's VPC has as well, in words; empty when there is none.
func sharedWith(other *corev1.Service, s *state) string {
	vpc := cmp.Or(other.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()], other.Annotations[kubeovnv1.AnnotationVpc.Key()], kubeovnv1.DefaultVpc)
	if vpc != s.in.Vpc {
		return ""
	}
	var ports []translate.LBRulePort
	for _, p := range other.Spec.Ports {
		ports = append(ports, translate.LBRulePort{Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), Port: uint16(p.Port)})
	}
	return common(ports, s.in.Ports)
}

func common(a, b []translate.LBRulePort) string {
	for _, x := range a {
		for _, y := range b {
			if x.Port == y.Port && x.Protocol == y.Protocol {
				return fmt.Sprintf("%d/%s", x.Port, x.Protocol)
			}
		}
	}
	return ""
}

// vipsOf are the addresses that an object is served at, as the index has them.
func vipsOf(o client.Object) []string {
	var texts []string
	switch o := o.(type) {
	case *kubeovnv1.SwitchLBRule:
		vips, _ := validation.LBRuleVIPs(o.Spec.VIP)
		for _, a := range vips {
			texts = append(texts, a.String())
		}
		return texts
	case *corev1.Service:
		texts = append(append(texts, o.Spec.ClusterIPs...), o.Spec.ExternalIPs...)
	}
	var vips []string
	for _, text := range texts {
		if a, err := ipfamily.ParseAddr(text); err == nil {
			vips = append(vips, a.String())
		}
	}
	return vips
}
