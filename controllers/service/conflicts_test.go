// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/service"
)

// requesting returns a Service of UDP and TCP with external IPs. The name decides between Services of one second.
func requesting(name string, addresses ...string) *corev1.Service {
	s := newService(name)
	s.Spec.ExternalIPs = addresses
	return s
}

// reached waits until a Service is reached at its ClusterIP and at these fronts.
func reached(w *controllertest.World, s *corev1.Service, tcp, udp []string) {
	w.Helper()
	want := map[string]map[string]string{"tcp": {s.Spec.ClusterIP + ":53": ""}, "udp": {s.Spec.ClusterIP + ":53": ""}}
	for protocol, fronts := range map[string][]string{"tcp": tcp, "udp": udp} {
		for _, front := range fronts {
			want[protocol][front] = ""
		}
	}
	balanced(w, s.Name, want)
}

// If two Services request one address and port, the older one gets it, in whatever order the controller sees them. The younger one gets an
// event, and takes the address over when the older one drops it or is deleted.
func TestOneAddressOfTwoServices(t *testing.T) {
	w := controllertest.New(t)
	process := w.Start(steps)
	both := []string{"192.0.2.1:53", "[2001:db8::1]:53"}
	older, younger := requesting("a"), requesting("b", "192.0.2.1", "2001:db8::1")
	w.Create(older, younger)
	reached(w, younger, both, both)
	w.Change(older, func() {
		older.Spec.ExternalIPs, older.Spec.Ports = younger.Spec.ExternalIPs, older.Spec.Ports[:1] // the port of UDP
	})
	balanced(w, "a", map[string]map[string]string{"udp": {older.Spec.ClusterIP + ":53": "", both[0]: "", both[1]: ""}})
	reached(w, younger, both, nil)
	warned(w, younger, service.ReasonAddressInUse,
		"spec.externalIPs: 192.0.2.1:53/UDP leads to Service default/a, which is older: choose another address or port, or change that Service")

	process.Stop()
	process = w.Start(steps)
	reached(w, younger, both, nil)
	if n := process.Transactions(); n != 0 {
		t.Errorf("%d transactions after a restart", n)
	}
	w.Change(older, func() { older.Spec.ExternalIPs = older.Spec.ExternalIPs[1:] })
	reached(w, younger, both, both[:1])
	w.Delete(older)
	reached(w, younger, both, both)
}

// Addresses of load balancers and ClusterIPs conflict as well. A ClusterIP belongs to its Service even if the other Service is older.
func TestAClusterIPIsNotForTheTaking(t *testing.T) {
	w := controllertest.New(t)
	w.Start(steps)
	taker, given, balancer := requesting("a-taker"), newService("b-given"), newService("c-balancer")
	balancer.Spec.Type = corev1.ServiceTypeLoadBalancer
	w.Create(taker, given, balancer)
	balancer.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	w.Must(w.Client.Status().Update(w.Context(), balancer))
	front := []string{"198.51.100.1:53"}
	reached(w, balancer, front, front)
	w.Change(taker, func() { taker.Spec.ExternalIPs = []string{given.Spec.ClusterIP, "198.51.100.1"} })
	reached(w, taker, front, front)
	warned(w, taker, service.ReasonAddressInUse, "leads to Service default/b-given, whose ClusterIP it is")
	reached(w, given, nil, nil)
	reached(w, balancer, nil, nil)
	warned(w, balancer, service.ReasonAddressInUse, "status.loadBalancer: 198.51.100.1:53/UDP leads to Service default/a-taker, which is older")
}

// Services of other VPCs, of other proxies and without addresses cause no conflict.
func TestServicesWithoutConflict(t *testing.T) {
	w := controllertest.New(t)
	w.Start(steps)
	tenant, proxied, ours := requesting("a-tenant", "192.0.2.1"), requesting("b-proxied", "192.0.2.1"), requesting("c-ours", "192.0.2.1")
	tenant.Annotations = map[string]string{kubeovnv1.AnnotationVpc.Key(): "tenant"}
	proxied.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "another"}
	headless := requesting("b-headless", "192.0.2.1")
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	w.Create(tenant, proxied, headless, ours)
	front := []string{"192.0.2.1:53"}
	reached(w, ours, front, front)
	w.Change(tenant, func() { delete(tenant.Annotations, kubeovnv1.AnnotationVpc.Key()) }) // it moves to the default VPC
	reached(w, ours, nil, nil)
	reached(w, tenant, front, front)
}
