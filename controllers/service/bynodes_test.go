// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/service"
)

// TestOVNServesNoServices restarts the controller with podAccess Node and then OVN, as the operator does: load balancers leave the database
// and return. Services of custom VPCs keep the label that makes kube-proxy ignore them, because their endpoints may be other pods for nodes.
func TestOVNServesNoServices(t *testing.T) {
	w := controllertest.New(t)
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{"default"}}})
	w.Subnet("theirs", func(s *kubeovnv1.SubnetSpec) { s.Vpc, s.CIDRBlock = "tenant", "10.16.0.0/24" })
	process := w.Start(steps)
	dns := newService("dns")
	w.Create(dns, newSlice("dns", "dns-a", "10.16.0.2"))
	served := map[string]map[string]string{}
	for _, protocol := range []string{"tcp", "udp"} {
		served[protocol] = map[string]string{dns.Spec.ClusterIP + ":53": "10.16.0.2:5353"}
	}
	balanced(w, "dns", served)

	process.Stop()
	process = w.Start(stepsWith(func(r *service.Reconciler) { r.ByNodes = true }, func() {}))
	balanced(w, "dns", map[string]map[string]string{})
	theirs := newService("theirs")
	theirs.Annotations = map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): "tenant"}
	w.Create(theirs, newSlice("theirs", "theirs-a", "10.16.0.2"))
	w.Event(theirs, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: service.ReasonNotServed, Note: "services.podAccess OVN"})
	w.Eventually(func() string {
		w.Get(theirs)
		if theirs.Labels["service.kubernetes.io/service-proxy-name"] != "kiln-vpc" {
			return "kube-proxy serves a Service of a custom VPC"
		}
		return ""
	})
	balanced(w, "theirs", map[string]map[string]string{})

	process.Stop()
	w.Start(steps)
	balanced(w, "dns", served)
	groupOf(w, "theirs", "tenant")
}
