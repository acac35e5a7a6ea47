// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/service"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

// Kubernetes makes no endpoints of a port whose name no pod has, and says so nowhere.
func TestPortsThatNoPodHas(t *testing.T) {
	w := controllertest.New(t)
	w.Start(stepsWith(func(r *service.Reconciler) { r.UnnamedDelay = 1 }, func() {}))
	web := func(name string, selector map[string]string, target intstr.IntOrString) *corev1.Service {
		s := newService(name)
		s.Spec.Selector = selector
		s.Spec.Ports = []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromString("dns")}, {Name: "web", Port: 80, TargetPort: target}}
		return s
	}
	pods := map[string]string{"app": "web"}
	wrong, early := web("wrong", pods, intstr.FromString("htpp")), web("early", pods, intstr.FromString("htpp"))
	number, manual := web("number", pods, intstr.FromInt32(8080)), web("manual", nil, intstr.FromString("htpp"))
	w.Create(wrong, early, number, manual)
	for _, s := range []*corev1.Service{number, manual, wrong} { // their pods have the port dns only
		w.Create(newSlice(s.Name, s.Name+"-a", "10.16.0.2"))
	}
	w.Create(newSlice("early", "early-a")) // it has no pods yet
	warned(w, wrong, service.ReasonPortNameUnknown, "no pod of the Service has a port of the name htpp: connections to port 80 are refused")
	w.Change(wrong, func() { wrong.Spec.Ports[1].TargetPort = intstr.FromString("htp") })
	w.Event(wrong, eventsv1.Event{Reason: service.ReasonPortNameUnknown, Note: "has a port of the name htp:"})
	var list eventsv1.EventList
	w.Must(w.Client.List(t.Context(), &list))
	for _, e := range list.Items {
		if e.Reason != service.ReasonPortNameUnknown {
			continue
		}
		if e.Regarding.Name != wrong.Name {
			t.Errorf("an event about Service %s: %s", e.Regarding.Name, e.Note)
		}
		if strings.Contains(e.Note, "htpp") {
			mistakes.Sees(t, 48, e.Note)
		}
	}
}
