// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// The address of a Service's load balancer takes precedence over a rule, like the other addresses of the Service.
func TestARuleGivesWayToALoadBalancer(t *testing.T) {
	w := newWorld(t)
	w.start(a)
	rule := newRule("web", "172.30.0.9", static("10.16.0.20"))
	w.Create(rule)
	const served = "172.30.0.9:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.9:80"
	w.serves("web", served)
	balancer := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "balancer"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	w.Create(balancer)
	balancer.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "172.30.0.9"}}
	w.Must(w.Client.Status().Update(w.Context(), balancer))
	w.Says(rule, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "Service default/balancer has 172.30.0.9 80/TCP")
	w.serves("web", "")
	w.Delete(balancer)
	w.serves("web", served)
}

func TestAddressConflictsOfRouterLBRules(t *testing.T) {
	w := newWorld(t)
	w.external()
	w.pods("tenant", port{"c", "theirs", 20})
	w.start(a, port{"c", "theirs", 20})
	w.Create(front("front"))
	first := newRouterRule("first", "front", to("10.16.0.20"))
	w.Create(first)
	w.servesRouter("first", frontToA)
	second := newRouterRule("second", "front", to("10.16.0.20"))
	w.Create(second)
	w.Says(second, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "the older RouterLBRule first has 10.99.0.10 80/TCP")
	w.Change(second, func() { second.Spec.Ports[0].Port = 81 })
	w.servesRouter("second", at81(frontToA))
	// The address is in a subnet of the VPC, where the OvnEip holds it.
	conflicting := newRule("conflicting", frontV4, static("10.16.0.20"), func(s *kubeovnv1.SwitchLBRuleSpec) { s.Ports[0].Port = 82 })
	w.Create(conflicting)
	w.Says(conflicting, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "taken by eip/front")
	w.Change(second, func() { second.Spec.Ports[0].Port = 82 })
	w.Says(conflicting, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "")
	w.Delete(conflicting, first)
	w.servesRouter("second", strings.ReplaceAll(at81(frontToA), ":81", ":82")) // otherwise its last valid spec stays applied
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "user"}, Spec: corev1.ServiceSpec{
		ExternalIPs: []string{frontV4}, Ports: []corev1.ServicePort{{Port: 82}},
	}}
	w.Create(service)
	w.Says(second, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "Service default/user has 10.99.0.10 82/TCP")
	w.servesRouter("second", "")
	w.noService("rlr-second")
	w.Delete(service)
	w.exposed("rlr-second", frontV4, frontV6)

	pods := newRouterRule("pods", "front", func(s *kubeovnv1.RouterLBRuleSpec) { s.Ports[0].Port = 83 })
	w.Create(pods)
	w.exposed("rlr-pods", frontV4, frontV6)
	list := w.slicesOf("rlr-pods", []discoveryv1.EndpointPort{tcp("http", 8080)}, port{"c", "theirs", 20})
	w.Says(pods, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "pods that selector selects are in VPC tenant, and not in ovn-cluster")
	w.servesRouter("pods", "")
	w.exposed("rlr-pods") // nodes do not serve the addresses
	for family, slice := range list {
		w.Change(slice, func() { slice.Endpoints = endpointsOf(family, []port{a}) })
	}
	w.exposed("rlr-pods", frontV4, frontV6)
	w.Says(pods, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
}
