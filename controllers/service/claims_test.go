// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/service"
	"github.com/kiln-net/kiln/internal/svc/assignment"
)

func dnat(name string, port int) *kubeovnv1.OvnDnatRule {
	return &kubeovnv1.OvnDnatRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.OvnDnatRuleSpec{
		OvnEip: "web", Vpc: "blue", V4IP: "10.50.0.7", Protocol: "tcp", ExternalPort: fmt.Sprint(port), InternalPort: "8080",
	}}
}

// aSecond makes objects that are created next younger than those before: creation times have seconds.
func (w *world) aSecond(older metav1.Object) {
	w.Helper()
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "probe-"}}
	w.Eventually(func() string {
		probe.Name, probe.ResourceVersion, probe.UID = "", "", ""
		w.Must(w.Client.Create(w.Context(), probe))
		created := probe.CreationTimestamp
		w.Must(w.Client.Delete(w.Context(), probe))
		if at := older.GetCreationTimestamp(); !at.Before(&created) {
			return "the object is not older than a new one"
		}
		return ""
	})
}

func TestEachPortOfAnOvnEipHasOneUser(t *testing.T) {
	w := newWorld(t)
	w.DiffersFromFresh("applied ports precede ports of older objects")
	eip := w.eip("web", "192.0.2.9", "", "default")
	rule := dnat("first", 80)
	w.Create(rule)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	const ofRule = "blue first 192.0.2.9:80=10.50.0.7:8080"
	w.aSecond(rule)

	// A rule keeps its port, and the Service has its others.
	s := balancer("web", "192.0.2.9", 80, 443)
	w.Create(s, of(s, "blue"))
	w.has(s, "192.0.2.9", assignment.ReasonAddressInUse, "annotation ovn.kubernetes.io/ip_address: the older OvnDnatRule first has port 80/TCP of OvnEip web: choose another port, or request an address of another OvnEip")
	w.outside(ofRule, web443)
	w.Event(s, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: assignment.ReasonAddressInUse})
	w.Eventually(func() string {
		if w.Get(eip); eip.Status.NAT != "dnat,lb" {
			return "the OvnEip is used by " + eip.Status.NAT
		}
		return ""
	})

	// The Service keeps its port. Younger users get none of it: rules of all kinds, and a Service.
	second, fip := dnat("second", 443), &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "fip"}, Spec: kubeovnv1.OvnFipSpec{OvnEip: "web", Vpc: "blue", V4IP: "10.50.0.8"}}
	router := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "router"}, Spec: kubeovnv1.RouterLBRuleSpec{OvnEip: "web", VPC: "blue", LBRuleBackends: kubeovnv1.LBRuleBackends{
		Endpoints: []string{"10.50.0.7"}, Ports: []kubeovnv1.LBRulePort{{Name: "https", Port: 443, TargetPort: 8080, Protocol: "TCP"}},
	}}}
	late := balancer("late", "192.0.2.9", 443, 444)
	w.aSecond(s)
	w.Create(second, router, late, of(late, "blue"))
	w.Says(second, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "has port 443/TCP of OvnEip web") // of the three, the first by kind is named
	w.Says(router, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "has port 443/TCP of OvnEip web")
	w.has(late, "192.0.2.9", assignment.ReasonAddressInUse, "Service default/web has port 443/TCP of OvnEip web")
	const late444 = "blue default/late/external/tcp 192.0.2.9:444=10.50.0.5:8444"
	w.outside(ofRule, web443, late444)
	w.aSecond(late)
	w.Create(fip)
	w.Says(fip, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "and an OvnFip needs the whole address")
	w.Delete(fip)

	// An applied port stays with its user over restarts. An older Service with a new port does not get it.
	w.run()
	w.Rests("service")
	w.outside(ofRule, web443, late444)
	w.Change(s, func() { s.Spec.Ports = tcpPorts(80, 443, 444) })
	w.has(s, "192.0.2.9", assignment.ReasonAddressInUse)
	w.Rests("service")
	w.outside(ofRule, web443, late444)
	w.run()
	w.Rests("service")
	w.outside(ofRule, web443, late444)

	// Released ports have their next user.
	w.Delete(rule)
	w.outside(web80, web443, late444)
	w.has(s, "192.0.2.9", assignment.ReasonAddressInUse, "Service default/late has port 444/TCP")
	w.Change(s, func() { s.Spec.Ports = tcpPorts(80) })
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.Eventually(func() string {
		w.Get(second)
		w.Get(router)
		w.Get(late)
		users := 0
		for _, row := range w.Database.Rows("Load_Balancer") {
			if _, has := vipsOf(row)["192.0.2.9:443"]; has {
				users++
			}
		}
		if users != 1 {
			return fmt.Sprintf("port 443 has %d users", users)
		}
		return ""
	})
}

// Each of two Services releases its port before it gets the other one.
func TestServicesSwapPorts(t *testing.T) {
	w := newWorld(t)
	w.eip("web", "192.0.2.9", "", "default")
	s, other := balancer("web", "192.0.2.9", 80), balancer("other", "192.0.2.9", 81)
	w.Create(s, other, of(s, "blue"), of(other, "blue"))
	w.outside(web80, "blue default/other/external/tcp 192.0.2.9:81=10.50.0.5:8081")
	w.Change(s, func() { s.Spec.Ports = tcpPorts(81) })
	w.Change(other, func() { other.Spec.Ports = tcpPorts(80) })
	w.outside("blue default/web/external/tcp 192.0.2.9:81=", "blue default/other/external/tcp 192.0.2.9:80=")
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.has(other, "192.0.2.9", assignment.ReasonAssigned)
}

// Users change the VPC of their pods. So the Service that moves does not take the OvnEip from others.
func TestAServiceThatMovesTakesNoOvnEip(t *testing.T) {
	w := newWorld(t)
	w.DiffersFromFresh("applied ports precede ports of older objects")
	w.eip("web", "192.0.2.9", "", "default")
	s, other := balancer("web", "192.0.2.9", 80), balancer("other", "192.0.2.9", 81)
	slice := of(s, "blue")
	w.Create(s, slice)
	w.outside(web80)
	w.aSecond(s)
	w.Create(other, of(other, "blue"))
	const other81 = "blue default/other/external/tcp 192.0.2.9:81=10.50.0.5:8081"
	w.outside(web80, other81)
	w.Change(slice, func() { slice.Endpoints = of(s, "red").Endpoints })
	w.has(s, "", assignment.ReasonAddressInUse, "Service default/other uses OvnEip web for VPC blue")
	w.outside(other81)
	w.has(other, "192.0.2.9", assignment.ReasonAssigned)

	// Nor does it keep younger users of the VPC from other ports, while it waits.
	rule := dnat("first", 83)
	w.Change(other, func() { other.Spec.Ports = tcpPorts(81, 82) })
	w.Create(rule)
	w.has(other, "192.0.2.9", assignment.ReasonAssigned)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	w.outside(other81, "blue default/other/external/tcp 192.0.2.9:82=", "blue first 192.0.2.9:83=10.50.0.7:8080")
	w.Delete(rule)
	w.outside(other81, "blue default/other/external/tcp 192.0.2.9:82=")
	w.Delete(other)
	w.outside("red default/web/external/tcp 192.0.2.9:80=10.60.0.5:8080")
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
}

// An administrator has granted the address: externalIPs, which any user may write, do not take it within the VPC.
func TestGrantedAddressesPrecedeExternalIPs(t *testing.T) {
	w := newWorld(t)
	w.eip("web", "192.0.2.9", "", "default")
	older := balancer("older", "", 80)
	older.Annotations, older.Spec.Type, older.Spec.LoadBalancerClass, older.Spec.ExternalIPs = nil, corev1.ServiceTypeClusterIP, nil, []string{"192.0.2.9"}
	rule := &kubeovnv1.SwitchLBRule{ObjectMeta: metav1.ObjectMeta{Name: "rule", Annotations: map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): "blue"}}}
	rule.Spec = kubeovnv1.SwitchLBRuleSpec{VIP: "192.0.2.9", LBRuleBackends: kubeovnv1.LBRuleBackends{
		Endpoints: []string{"10.50.0.7"}, Ports: []kubeovnv1.LBRulePort{{Name: "https", Port: 443, TargetPort: 8080, Protocol: "TCP"}},
	}}
	w.Create(older, of(older, "blue"), rule)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	has := func(name string, want bool) {
		w.Helper()
		w.Eventually(func() string {
			for _, row := range w.Database.Rows("Load_Balancer") {
				for vip := range vipsOf(row) {
					if row["name"] == name && strings.HasPrefix(vip, "192.0.2.9:") {
						if want {
							return ""
						}
						return fmt.Sprintf("%s has %s", name, vip)
					}
				}
			}
			if want {
				return name + " does not have the address"
			}
			return ""
		})
	}
	has("default/older/tcp", true)
	w.aSecond(older)
	s := balancer("web", "192.0.2.9", 80, 443)
	s.Spec.ExternalIPs = older.Spec.ExternalIPs
	w.Create(s, of(s, "blue"))
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.outside(web80, web443)
	has("default/older/tcp", false)
	w.Event(older, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: service.ReasonAddressInUse, Note: "spec.externalIPs: 80/TCP of 192.0.2.9 leads to Service default/web, which has the address by an OvnEip"})
	w.Says(rule, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "vip: Service default/web has 192.0.2.9 443/TCP")
	w.Delete(s)
	has("default/older/tcp", true)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue)
}

// Nodes that hosted the port of a rule track its connections: until they have ended these, the address has no other user.
func TestAPortWaitsForTheConnectionsOfItsFormerOwner(t *testing.T) {
	w := newWorld(t)
	w.eip("web", "192.0.2.9", "2001:db8:2::9", "default")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	rule := dnat("first", 80)
	rule.Spec.V4IP, rule.Spec.V6IP = "", "fd00:50::7" // the Service, of the other family, can get this one later
	w.Create(node, rule)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	s := balancer("web", "192.0.2.9", 80, 443)
	w.Create(s, of(s, "blue"))
	w.has(s, "192.0.2.9", assignment.ReasonAddressInUse)
	w.Delete(rule)
	w.has(s, "192.0.2.9", kubeovnv1.ReasonWaiting, "waiting for nodes n1 to end connections of the former owner of 2001:db8:2::9: until the agents of these nodes report it, their Nodes are deleted, or")
	w.outside(web443)
	w.run()
	w.Rests("service")
	w.outside(web443)
	w.Get(node)
	requests, err := kubeovnv1.ParseConnectionFlushes(node.Annotations[kubeovnv1.AnnotationFlush.Key()])
	if err != nil || len(requests) != 1 {
		t.Fatalf("the requests are %+v (%v)", requests, err)
	}
	w.Change(node, func() { node.Annotations[kubeovnv1.AnnotationFlushed.Key()] = requests[0].ID })
	w.has(s, "192.0.2.9", assignment.ReasonAssigned)
	w.outside(web80, web443)
	w.Delete(node)
}
