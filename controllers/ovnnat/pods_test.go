// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/ovnnat"
)

// newPod returns a pod of namespace shop whose port is in subnet net, with requests in pairs of an annotation and a value.
func (w *world) newPod(name string, requests ...string) *corev1.Pod {
	w.Helper()
	return w.newPodOf(func(pod *corev1.Pod) { pod.Name = name }, requests...)
}

func (w *world) newPodOf(change func(*corev1.Pod), requests ...string) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: "n2", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	change(pod)
	w.Must(client.IgnoreAlreadyExists(w.Client.Create(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}})))
	for i := 0; i+1 < len(requests); i += 2 {
		pod.Annotations[kubeovnv1.Annotation(requests[i]).Key()] = requests[i+1]
	}
	w.Create(pod)
	w.Change(pod, func() {
		pod.Annotations[kubeovnv1.AnnotationAllocated.Key()], pod.Annotations[kubeovnv1.AnnotationPodUID.Key()] = "true", string(pod.UID)
	})
	return pod
}

// pod is newPod with the IP object of the pod.
func (w *world) pod(name, v4, v6 string, requests ...string) *corev1.Pod {
	w.Helper()
	pod := w.newPod(name, requests...)
	w.ip(name, "net", "n2", v4, v6)
	return pod
}

func (w *world) request(pod *corev1.Pod, annotation kubeovnv1.Annotation, value string) {
	w.Helper()
	w.Get(pod)
	w.Change(pod, func() { pod.Annotations[annotation.Key()] = value })
}

func (w *world) grant(eip *kubeovnv1.OvnEip, namespaces ...kubeovnv1.AllowedNamespace) {
	w.Helper()
	w.Get(eip)
	w.Change(eip, func() { eip.Spec.AllowedNamespaces = namespaces })
}

func forShop(s *kubeovnv1.OvnEipSpec) { s.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"shop"} }

// warned waits for an event about a request of a pod.
func (w *world) warned(pod *corev1.Pod, note string) {
	w.Helper()
	w.Event(pod, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: ovnnat.ReasonAddress, Note: note})
}

func TestPodsHaveGrantedAddresses(t *testing.T) {
	w := newWorld(t)
	web := w.eip("web", at("192.0.2.9", "2001:db8:2::9"), forShop)
	w.eip("out", at("192.0.2.10", ""), func(s *kubeovnv1.OvnEipSpec) {
		s.AllowedNamespaces = []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}
	})
	a := w.pod("a", "10.50.0.5", "fd00:50::5", "eip", "192.0.2.9, 2001:db8:2::9")
	b := w.pod("b", "10.50.0.6", "", "snat", "192.0.2.10")
	c := w.pod("c", "10.50.0.7", "", "snat", "192.0.2.10")
	applied := []string{
		"dnat_and_snat 192.0.2.9 10.50.0.5", "dnat_and_snat 2001:db8:2::9 fd00:50::5", "snat 192.0.2.10 10.50.0.6", "snat 192.0.2.10 10.50.0.7",
	}
	w.nat(applied...)
	fip := &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "a.shop"}}
	w.Ready(fip)
	if fip.Annotations[kubeovnv1.PodOfRule] != "shop/a" || fip.Spec.OvnEip != "web" || fip.Spec.IPName != "a.shop" {
		t.Errorf("the rule is %+v", fip)
	}
	w.Recreates(fip)
	w.nat(applied...)

	// A namespace that is no longer listed loses the addresses, also while the pod requests others that it cannot get.
	w.grant(web, "bank")
	w.Gone(fip)
	w.warned(a, "annotation ovn.kubernetes.io/eip: OvnEip web does not list namespace shop: add it to allowedNamespaces of the OvnEip")
	w.nat(applied[2:]...)
	w.grant(web, "bank", "shop")
	w.nat(applied...)

	w.Delete(a)
	w.Gone(fip)
	w.Get(b)
	b.Status.Phase = corev1.PodSucceeded
	w.Must(w.Client.Status().Update(w.Context(), b))
	w.nat("snat 192.0.2.10 10.50.0.7")

	w.process.Stop()
	w.Delete(c)
	w.run()
	w.nat()
}

func TestOnePodHasTheRuleOfAnAddressThatManyRequest(t *testing.T) {
	w := newWorld(t)
	w.eip("web", at("192.0.2.9", ""), forShop)
	pods := map[string]*corev1.Pod{"a": w.pod("a", "10.50.0.5", "", "eip", "192.0.2.9")}
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
	pods["b"], pods["c"] = w.pod("b", "10.50.0.6", "", "eip", "192.0.2.9"), w.pod("c", "10.50.0.7", "", "snat", "192.0.2.9")
	only := func(rule client.Object) {
		t.Helper()
		w.Rests("podrules")
		for _, o := range []client.Object{
			&kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "a.shop"}}, &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "b.shop"}},
			&kubeovnv1.OvnSnatRule{ObjectMeta: metav1.ObjectMeta{Name: "c.shop"}},
		} {
			if exists := w.Get(o); exists != (o.GetName() == rule.GetName()) {
				t.Errorf("%T %s exists: %t", o, o.GetName(), exists)
			}
		}
	}
	first := &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "a.shop"}}
	for _, name := range []string{"b", "c"} {
		w.warned(pods[name], "OvnFip a.shop has the addresses of OvnEip web: request other addresses, or remove the annotation")
	}
	only(first)
	w.run()
	only(first)
	w.request(pods["c"], kubeovnv1.AnnotationSnat, "")
	w.Delete(pods["a"])
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.6")
	only(&kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "b.shop"}})
	w.request(pods["c"], kubeovnv1.AnnotationSnat, "192.0.2.9")
	w.Rests("podrules")
	w.request(pods["b"], kubeovnv1.AnnotationEip, "")
	w.nat("snat 192.0.2.9 10.50.0.7")
}

func TestANamespaceRequestsABoundedNumberOfRules(t *testing.T) {
	w := newWorld(t)
	w.maxPodRules = 2
	w.run()
	w.eip("out", at("192.0.2.10", ""), func(s *kubeovnv1.OvnEipSpec) {
		s.AllowedNamespaces = []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}
	})
	pods := map[string]*corev1.Pod{}
	for i, name := range []string{"a", "b", "c", "d"} { // pods of the same second have the order of their names
		pods[name] = w.pod(name, fmt.Sprintf("10.50.0.%d", 5+i), "", "snat", "192.0.2.10")
	}
	const a, b, c, d, other = "snat 192.0.2.10 10.50.0.5", "snat 192.0.2.10 10.50.0.6", "snat 192.0.2.10 10.50.0.7", "snat 192.0.2.10 10.50.0.8", "snat 192.0.2.10 10.50.0.9"
	for _, name := range []string{"c", "d"} {
		w.warned(pods[name], "annotation ovn.kubernetes.io/snat: the pods of namespace shop request more than 2 rules, and older pods have theirs: remove annotations")
	}
	w.nat(a, b)
	w.newPodOf(func(pod *corev1.Pod) { pod.Namespace, pod.Name = "bank", "a" }, "snat", "192.0.2.10")
	w.Create(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "a.bank"}, Spec: kubeovnv1.IPSpec{PodName: "a", Namespace: "bank", Subnet: "net", V4IPAddress: "10.50.0.9"}})
	w.nat(a, b, other)
	w.run()
	w.Rests("podrules")
	w.nat(a, b, other)
	w.Delete(pods["a"])
	w.nat(b, c, other)
	w.request(pods["b"], kubeovnv1.AnnotationSnat, "")
	w.nat(c, d, other)
	// An older pod with a new request precedes younger ones.
	w.request(pods["b"], kubeovnv1.AnnotationSnat, "192.0.2.10")
	w.nat(b, c, other)
}

func TestAReservationBecomesTheIPOfItsPod(t *testing.T) {
	w := newWorld(t)
	w.eip("web", at("192.0.2.9", ""), forShop)
	ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "a.shop"}, Spec: kubeovnv1.IPSpec{Subnet: "net", V4IPAddress: "10.50.0.5"}}
	w.Create(ip)
	w.newPod("a", "eip", "192.0.2.9")
	w.Rests("podrules")
	w.Change(ip, func() { ip.Spec.Namespace, ip.Spec.PodName, ip.Spec.NodeName = "shop", "a", "n2" })
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
}

func TestRequestsOfPodsThatAreNotGranted(t *testing.T) {
	w := newWorld(t)
	eip := w.eip("web", at("192.0.2.9", "2001:db8:2::9"))
	a := w.pod("a", "10.50.0.5", "", "eip", "192.0.2.9", "snat", "192.0.2.200")
	w.warned(a, "OvnEip web does not list namespace shop")
	w.warned(a, "annotation ovn.kubernetes.io/snat: no OvnEip has 192.0.2.200: create one, with namespace shop in allowedNamespaces")
	w.nat()
	w.grant(eip, "shop")
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
	w.eip("late", at("192.0.2.200", ""), forShop)
	w.warned(a, "10.50.0.5 of VPC blue has an address in external subnet ext by")

	// The addresses of two OvnEips, and of the port of a router.
	w.request(a, kubeovnv1.AnnotationEip, "192.0.2.200,2001:db8:2::9")
	w.warned(a, "no OvnEip has 192.0.2.200,2001:db8:2::9")
	w.nat("snat 192.0.2.200 10.50.0.5")
	port := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "blue-ext"}}
	w.Get(port)
	w.grant(port, "shop")
	w.request(a, kubeovnv1.AnnotationSnat, port.Status.V4IP)
	w.warned(a, "OvnEip blue-ext is of type lrp")
	w.nat()

	// A rule that waits, and an OvnEip that another pod has.
	w.eip("far", func(s *kubeovnv1.OvnEipSpec) { s.ExternalSubnet, s.V4IP = "ext2", "192.0.3.9" }, forShop)
	w.request(a, kubeovnv1.AnnotationEip, "192.0.3.9")
	w.warned(a, "VPC blue to have a port in external subnet ext2")
	w.request(a, kubeovnv1.AnnotationEip, "192.0.2.9")
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
	b := w.pod("b", "10.50.0.6", "", "eip", "192.0.2.9")
	w.warned(b, "OvnFip a.shop has the addresses of OvnEip web")
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")

	// The pod keeps an OvnEip that is being deleted, and new pods do not get it.
	w.Delete(eip)
	w.Says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "OvnFip a.shop")
	w.Delete(b)
	w.Gone(&kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "b.shop"}})
	c := w.pod("c", "10.50.0.7", "", "eip", "192.0.2.9")
	w.warned(c, "OvnEip web is being deleted")
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
	w.Delete(a)
	w.Gone(eip)
	w.nat()
}

func TestRulesOfPodsHaveTheNamesOfTheirIPs(t *testing.T) {
	w := newWorld(t)
	w.eip("web", at("192.0.2.9", ""), forShop)
	w.eip("admin", at("192.0.2.10", ""))
	mine := w.fip("a.shop", kubeovnv1.OvnFipSpec{OvnEip: "admin", IPName: "a.shop"})
	w.waits(mine, "IP a.shop, which does not exist")
	a := w.newPod("a", "eip", "192.0.2.9")
	w.Rests("podrules")
	w.ip("a", "net", "n2", "10.50.0.5", "")
	w.warned(a, "OvnFip a.shop exists already, and does not follow the annotation")
	w.nat("dnat_and_snat 192.0.2.10 10.50.0.5")
	w.Delete(mine)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")

	// An invalid request is none.
	w.request(a, kubeovnv1.AnnotationEip, "192.0.2.9,192.0.2.10")
	w.nat()
	// The IP belongs to another port with the same name.
	w.request(a, kubeovnv1.AnnotationEip, "")
	b := w.newPod("b", "eip", "192.0.2.9")
	w.Create(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "b.shop"}, Spec: kubeovnv1.IPSpec{PodName: "b", Namespace: "bank", Subnet: "net", V4IPAddress: "10.50.0.8"}})
	w.Rests("podrules")
	w.nat()
	if fip := (&kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "b.shop"}}); w.Get(fip) {
		t.Error(fmt.Sprint("there is ", fip.Name, " of ", b.Name))
	}
}
