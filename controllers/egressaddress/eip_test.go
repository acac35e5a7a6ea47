// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/egressaddress"
	"github.com/kiln-net/kiln/controllers/ovnnat"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestSelectedPodsOfACustomVPCHaveRules(t *testing.T) {
	w := newWorld(t)
	w.external()
	web, other := w.pod("team-a", "web", "web", inNet), w.pod("team-a", "other", "db", inNet)
	w.pod("team-a", "default", "web") // in the default VPC
	out := byEip("out", "a", "shop")
	w.Create(out)
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonEip, "OvnEip shop does not exist")
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "ext", V4IP: "192.0.2.40", V6IP: "2001:db8:2::40"}}
	w.Create(eip)
	w.Ready(out)
	of := func(pods ...*corev1.Pod) (want []string) {
		for _, p := range pods {
			want = append(want, "192.0.2.40 "+addresses(p)[0], "2001:db8:2::40 "+addresses(p)[1])
		}
		return want
	}
	w.sources(of(web)...)
	w.count(out, 1)
	rule := &kubeovnv1.OvnSnatRule{ObjectMeta: metav1.ObjectMeta{Name: "web.team-a"}}
	if !w.Get(rule) || rule.Annotations[kubeovnv1.PodOfRule] != "team-a/web" || rule.Annotations[kubeovnv1.EgressOfRule] != "out" {
		t.Errorf("the rule is %+v", rule)
	}
	w.Recreates(rule)
	w.actions() // the rows of the rules decide

	w.label(other, "web")
	w.sources(of(web, other)...)
	w.label(web, "db")
	w.sources(of(other)...)
	ns := w.namespace("team-a", "b")
	w.sources()
	w.Change(ns, func() { ns.Labels = map[string]string{"team": "a"} })
	w.sources(of(other)...)

	w.run()
	w.Rests("podrules")
	w.sources(of(other)...)
	w.process.Stop()
	w.Delete(other)
	w.label(web, "web")
	w.run()
	w.sources(of(web)...)

	// Another OvnEip.
	w.Create(&kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "ext", V4IP: "192.0.2.41", V6IP: "2001:db8:2::41"}})
	w.Get(out)
	w.Change(out, func() { out.Spec.OvnEip = "second" })
	w.sources("192.0.2.41 "+addresses(web)[0], "2001:db8:2::41 "+addresses(web)[1])
	w.Ready(out)
	w.Delete(out)
	w.sources()
	w.Gone(rule)
}

func TestARequestOfAPodPrecedesItsEgressAddress(t *testing.T) {
	w := newWorld(t)
	w.external()
	for name, address := range map[string]string{"shop": "192.0.2.40", "own": "192.0.2.41", "both": "192.0.2.42"} {
		w.Create(&kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.OvnEipSpec{
			ExternalSubnet: "ext", V4IP: address, AllowedNamespaces: []kubeovnv1.AllowedNamespace{"team-a"},
		}})
	}
	out := byEip("out", "a", "shop")
	w.Create(out)
	web := w.pod("team-a", "web", "web", inNet)
	w.sources("192.0.2.40 " + addresses(web)[0])
	w.Get(web)
	w.Change(web, func() { web.Annotations[kubeovnv1.AnnotationSnat.Key()] = "192.0.2.41" })
	w.sources("192.0.2.41 " + addresses(web)[0])
	w.Get(web)
	w.Change(web, func() { delete(web.Annotations, kubeovnv1.AnnotationSnat.Key()) })
	w.sources("192.0.2.40 " + addresses(web)[0])
	w.Ready(out)

	// A request that is refused has no effect.
	for annotation, of := range map[kubeovnv1.Annotation]*kubeovnv1.OvnEip{
		kubeovnv1.AnnotationSnat: {ObjectMeta: metav1.ObjectMeta{Name: "own"}}, kubeovnv1.AnnotationEip: {ObjectMeta: metav1.ObjectMeta{Name: "both"}},
	} {
		w.Get(of)
		address := of.Spec.V4IP
		w.Get(web)
		w.Change(web, func() { web.Annotations[annotation.Key()] = "192.0.2.99" })
		w.Event(web, eventsv1.Event{Reason: ovnnat.ReasonAddress, Note: "annotation " + annotation.Key() + ": no OvnEip has 192.0.2.99"})
		w.sources("192.0.2.40 " + addresses(web)[0])
		w.Get(web)
		w.Change(web, func() { web.Annotations[annotation.Key()] = address })
		w.sources(address + " " + addresses(web)[0])
		w.Get(of)
		allowed := of.Spec.AllowedNamespaces
		w.Change(of, func() { of.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"team-b"} })
		w.sources("192.0.2.40 " + addresses(web)[0])
		w.Get(of)
		w.Change(of, func() { of.Spec.AllowedNamespaces = allowed })
		w.sources(address + " " + addresses(web)[0])
		w.Get(web)
		w.Change(web, func() { delete(web.Annotations, annotation.Key()) })
		w.sources("192.0.2.40 " + addresses(web)[0])
	}
}

// TestARequestThatIsNotServedLeavesAPodItsEgressAddress: a tenant could get another source by a request for an OvnEip that another rule has.
func TestARequestThatIsNotServedLeavesAPodItsEgressAddress(t *testing.T) {
	w := newWorld(t)
	w.external()
	for name, address := range map[string]string{"shop": "192.0.2.40", "pods": "192.0.2.41", "admin": "192.0.2.42"} {
		w.Create(&kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.OvnEipSpec{
			ExternalSubnet: "ext", V4IP: address, AllowedNamespaces: []kubeovnv1.AllowedNamespace{"team-a"},
		}})
	}
	other := w.pod("team-a", "other", "db", inNet, func(p *corev1.Pod) { p.Annotations[kubeovnv1.AnnotationEip.Key()] = "192.0.2.41" })
	db := w.pod("team-a", "db", "db", inNet)
	admin := &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "admin"}, Spec: kubeovnv1.OvnFipSpec{OvnEip: "admin", IPName: "db.team-a"}}
	w.Create(admin)
	w.sources("192.0.2.41 "+addresses(other)[0], "192.0.2.42 "+addresses(db)[0])
	out := byEip("out", "a", "shop")
	w.Create(out)
	web := w.pod("team-a", "web", "web", inNet)
	held := []string{"192.0.2.41 " + addresses(other)[0], "192.0.2.42 " + addresses(db)[0]}
	kept := append([]string{"192.0.2.40 " + addresses(web)[0]}, held...)
	w.sources(kept...)
	for _, annotation := range []kubeovnv1.Annotation{kubeovnv1.AnnotationEip, kubeovnv1.AnnotationSnat} {
		for address, why := range map[string]string{"192.0.2.41": "OvnFip other.team-a has the addresses of OvnEip pods", "192.0.2.42": "OvnFip admin has the addresses of OvnEip admin"} {
			w.Get(web)
			w.Change(web, func() { web.Annotations[annotation.Key()] = address })
			w.Event(web, eventsv1.Event{Reason: ovnnat.ReasonAddress, Note: "annotation " + annotation.Key() + ": "})
			w.Event(web, eventsv1.Event{Reason: ovnnat.ReasonAddress, Note: why})
			w.Rests("podrules")
			w.sources(kept...)
		}
		w.run()
		w.Rests("podrules")
		w.sources(kept...)
		w.Get(web)
		w.Change(web, func() { delete(web.Annotations, annotation.Key()) })
		w.Rests("podrules")
	}
	w.Ready(out)
	// Both requests are served once the addresses are free.
	w.Get(web)
	w.Change(web, func() { web.Annotations[kubeovnv1.AnnotationSnat.Key()] = "192.0.2.42" })
	w.Event(web, eventsv1.Event{Reason: ovnnat.ReasonAddress, Note: "the pod keeps the addresses of its EgressAddress"})
	w.Rests("podrules")
	w.Delete(admin)
	w.sources("192.0.2.40 "+addresses(web)[0], "192.0.2.41 "+addresses(other)[0]) // nodes end the connections first
	w.released("admin")
	w.sources("192.0.2.41 "+addresses(other)[0], "192.0.2.42 "+addresses(web)[0])
	w.Get(web)
	w.Change(web, func() {
		delete(web.Annotations, kubeovnv1.AnnotationSnat.Key())
		web.Annotations[kubeovnv1.AnnotationEip.Key()] = "192.0.2.41"
	})
	w.sources("192.0.2.40 "+addresses(web)[0], "192.0.2.41 "+addresses(other)[0])
	w.Delete(other)
	w.released("pods")
	w.sources("192.0.2.41 " + addresses(web)[0])
	if snat := (&kubeovnv1.OvnSnatRule{ObjectMeta: metav1.ObjectMeta{Name: "web.team-a"}}); w.Get(snat) && snat.DeletionTimestamp == nil {
		t.Errorf("the rule of the EgressAddress still exists: %+v", snat)
	}
}

// released deletes the records of former translations of an OvnEip, as if the nodes had ended their connections.
func (w *world) released(name string) {
	w.Helper()
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.Eventually(func() string {
		if w.Get(eip); len(eip.Status.Releasing) == 0 {
			return "OvnEip " + name + " has no former translations"
		}
		return ""
	})
	base := eip.DeepCopy()
	eip.Status.Releasing = nil
	w.Must(w.Client.Status().Patch(w.Context(), eip, client.MergeFrom(base)))
}

// TestARequestInAnExternalSubnetThatTheVPCDoesNotReach is not served until the VPC has a port there.
func TestARequestInAnExternalSubnetThatTheVPCDoesNotReach(t *testing.T) {
	w := newWorld(t)
	w.external()
	w.Create(
		&kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "ext", V4IP: "192.0.2.40"}},
		&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "ext2"}, Spec: kubeovnv1.SubnetSpec{Vlan: "ext", CIDRBlock: "192.0.3.0/24", Gateway: "192.0.3.254"}},
		&kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "far"}, Spec: kubeovnv1.OvnEipSpec{
			ExternalSubnet: "ext2", V4IP: "192.0.3.41", AllowedNamespaces: []kubeovnv1.AllowedNamespace{"team-a"},
		}},
	)
	out := byEip("out", "a", "shop")
	w.Create(out)
	web := w.pod("team-a", "web", "web", inNet, func(p *corev1.Pod) { p.Annotations[kubeovnv1.AnnotationSnat.Key()] = "192.0.3.41" })
	w.sources("192.0.2.40 " + addresses(web)[0])
	w.Event(web, eventsv1.Event{Reason: ovnnat.ReasonAddress, Note: "waiting for VPC blue to have a port in external subnet ext2"})
	w.Rests("podrules")
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
	w.Get(vpc)
	w.Change(vpc, func() { vpc.Spec.ExtraExternalSubnets = []string{"ext", "ext2"} })
	w.sources("192.0.3.41 " + addresses(web)[0])
}

func TestRulesThatAreNotAppliedAreReported(t *testing.T) {
	w := newWorld(t)
	w.external()
	w.Create(&kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "ext", V4IP: "192.0.2.40"}})
	web := w.pod("team-a", "web", "web", inNet)
	admin := &kubeovnv1.OvnSnatRule{ObjectMeta: metav1.ObjectMeta{Name: "admin"}, Spec: kubeovnv1.OvnSnatRuleSpec{OvnEip: "shop", IPName: "web.team-a"}}
	w.Create(admin)
	w.sources("192.0.2.40 " + addresses(web)[0])
	out := byEip("out", "a", "shop")
	w.Create(out)
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonRules, "1 rules of pods are not applied: OvnSnatRule web.team-a")
	w.Delete(admin)
	w.Ready(out)
}

func TestAnOvnEipMayComeLater(t *testing.T) {
	w := newWorld(t)
	w.external()
	out := byEip("out", "a", "shop")
	w.Create(out)
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonEip, "OvnEip shop does not exist")
	w.Rests("egressaddress")
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "ext", V4IP: "192.0.2.40"}}
	w.Create(eip)
	w.Ready(out)
	w.Eventually(func() string {
		if w.Get(out); !slices.Equal(out.Status.Addresses, []string{"192.0.2.40"}) {
			return fmt.Sprintf("the addresses are %v", out.Status.Addresses)
		}
		return ""
	})
	w.Rests("egressaddress")
	w.Delete(eip)
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonEip, "OvnEip shop does not exist")
}

// TestPacketsOfPodsWithoutARuleAreDroppedInTheDefaultVPC: nodes would translate them.
func TestPacketsOfPodsWithoutARuleAreDroppedInTheDefaultVPC(t *testing.T) {
	w := newWorld(t)
	w.external()
	web := w.pod("team-a", "web", "web")
	out := byEip("out", "a", "shop")
	out.Spec.Vpc = kubeovnv1.DefaultVpc
	w.Create(out)
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonEip, "OvnEip shop does not exist")
	w.has("out", web)
	w.actions("drop", "drop")
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: "ext", V4IP: "192.0.2.40"}}
	w.Create(eip)
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionFalse, egressaddress.ReasonRules, "1 rules of pods are not applied: OvnSnatRule web.team-a")
	w.actions("drop") // the OvnEip has no IPv6 address
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}}
	w.Get(vpc)
	w.Change(vpc, func() { vpc.Spec.ExtraExternalSubnets = []string{"ext"} })
	w.sources("192.0.2.40 " + addresses(web)[0])
	w.Ready(out)
	w.Eventually(func() string { return w.uncovered(web) })
	w.Rows("Logical_Router_Policy", func(row nbtest.Row) string { // the rule precedes
		if fmt.Sprint(row["priority"]) != "29247" {
			return ""
		}
		return fmt.Sprint(row["action"], " ", row["match"])
	}, "reroute ip4.src == "+addresses(web)[0])
	w.Delete(out)
	w.sources()
	w.actions()
}
