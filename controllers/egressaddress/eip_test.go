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
