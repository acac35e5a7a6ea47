// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// requested waits until the requests to a node are these, in the form `external internal`, and returns their IDs.
func (w *world) requested(node string, want ...string) (ids []string) {
	w.Helper()
	w.Eventually(func() string {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		w.Get(n)
		requests, err := kubeovnv1.ParseConnectionFlushes(n.Annotations[kubeovnv1.AnnotationFlush.Key()])
		w.Must(err)
		var got []string
		ids = nil
		for _, r := range requests {
			got, ids = append(got, fmt.Sprint(r.Address, " ", r.Internal)), append(ids, r.ID)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Sprintf("requests to %s are %q, want %q", node, got, want)
		}
		return ""
	})
	return ids
}

// confirm does the work of a node's agent.
func (w *world) confirm(node string, ids ...string) {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	w.Get(n)
	base := n.DeepCopy()
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[kubeovnv1.AnnotationFlushed.Key()] = strings.Join(ids, ",")
	w.Must(w.Client.Patch(w.Context(), n, client.MergeFrom(base)))
}

func (w *world) node(name string) *corev1.Node {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.Create(n)
	return n
}

func TestAnAddressMovesOnceNodesHaveEndedItsConnections(t *testing.T) {
	w := newWorld(t)
	n1, n2 := w.node("n1"), w.node("n2")
	w.ready("n1", "n2") // both can host the port, and n2 has the pods
	eip := w.eip("web", at("192.0.2.9", ""))
	w.ip("a", "net", "n2", "10.50.0.5", "")
	w.ip("b", "net", "n2", "10.50.0.6", "")
	first := w.fip("a", kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "a.shop"})
	w.Ready(first)
	w.requested("n1")
	second := w.fip("b", kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "b.shop"})
	w.waits(second, "OvnFip a has the addresses")

	w.Delete(first)
	w.Gone(first)
	w.waits(second, "nodes n1, n2 to end the connections of 192.0.2.9 with 10.50.0.5/32, by OvnFip a")
	w.nat()
	w.confirm("n2", w.requested("n2", "192.0.2.9 10.50.0.5/32")...)
	w.waits(second, "nodes n1 to end the connections")
	w.run()
	w.Rests("ovnfip")
	w.nat()
	w.requested("n2")
	w.confirm("n1", w.requested("n1", "192.0.2.9 10.50.0.5/32")...)
	w.Ready(second)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.6")
	w.requested("n1")

	// A changed rule is another owner; a confirmation of the earlier request does not count.
	w.Get(second)
	w.Change(second, func() { second.Spec.IPName = "a.shop" })
	w.waits(second, "nodes n1, n2 to end the connections of 192.0.2.9 with 10.50.0.6/32, by OvnFip b")
	w.nat()
	for _, node := range []string{"n1", "n2"} {
		w.confirm(node, w.requested(node, "192.0.2.9 10.50.0.6/32")...)
	}
	w.Ready(second)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")

	// The pod of a rule is created again, while a node does not answer.
	w.Delete(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "a.shop"}})
	w.waits(second, "IP a.shop, which does not exist")
	w.ip("a", "net", "n1", "10.50.0.7", "")
	w.Ready(second)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.7")
	w.requested("n1", "192.0.2.9 10.50.0.5/32")

	// The OvnEip stays for connections that a node tracks. A deleted node tracks none.
	w.Delete(second, eip)
	w.Gone(second)
	w.Says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "connections of 192.0.2.9 with 10.50.0.7/32 on n1, n2")
	w.Delete(n2)
	w.Says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "connections of 192.0.2.9 with 10.50.0.7/32 on n1")
	w.Delete(n1)
	w.Gone(eip)
}

func TestOnlyTheSamePortWaits(t *testing.T) {
	w := newWorld(t)
	w.node("n1")
	w.eip("shared", at("192.0.2.9", ""))
	w.ip("a", "net", "n2", "10.50.0.5", "")
	port := func(name, external string) *kubeovnv1.OvnDnatRule {
		return w.dnat(name, kubeovnv1.OvnDnatRuleSpec{OvnEip: "shared", IPName: "a.shop", Protocol: "tcp", ExternalPort: external, InternalPort: "8080"})
	}
	first := port("first", "80")
	w.Ready(first)
	w.Delete(first)
	w.Gone(first)
	ids := w.requested("n1", "192.0.2.9 10.50.0.5/32")
	other := port("other", "81")
	source := w.snat("source", kubeovnv1.OvnSnatRuleSpec{OvnEip: "shared", VpcSubnet: "net"})
	w.Ready(other, source)
	floating := w.dnat("same", kubeovnv1.OvnDnatRuleSpec{OvnEip: "shared", Vpc: "blue", V4IP: "10.50.0.9", Protocol: "tcp", ExternalPort: "80", InternalPort: "8080"})
	w.waits(floating, "nodes n1 to end the connections of 192.0.2.9 with 10.50.0.5/32, by OvnDnatRule first")
	w.confirm("n1", ids...)
	w.Ready(floating)
}

// Thousands of ports can share an OvnEip.
func TestADeletedRuleCausesNoPassOfRulesThatDoNotWait(t *testing.T) {
	w := newWorld(t)
	n1 := w.node("n1")
	shared := w.eip("shared", at("192.0.2.9", ""))
	w.ip("a", "net", "n1", "10.50.0.5", "")
	const others = 20
	port := func(i int) *kubeovnv1.OvnDnatRule {
		return w.dnat(fmt.Sprint("port-", i), kubeovnv1.OvnDnatRuleSpec{OvnEip: "shared", IPName: "a.shop", Protocol: "tcp", ExternalPort: fmt.Sprint(80 + i), InternalPort: "8080"})
	}
	deleted := port(0)
	all := []client.Object{deleted}
	for i := range others {
		all = append(all, port(i+1))
	}
	w.Ready(all...)
	w.Rests("ovndnatrule")
	before := w.Reconciles("ovndnatrule")
	w.Delete(deleted)
	w.Gone(deleted)
	w.confirm("n1", w.requested("n1", "192.0.2.9 10.50.0.5/32")...)
	w.requested("n1")
	w.Rests("ovndnatrule")
	if n := w.Reconciles("ovndnatrule") - before; n >= others {
		t.Errorf("%d passes after the deletion of one of %d rules", n, others+1)
	}
	w.Delete(append(all[1:], n1, shared)...)
	w.Gone(shared)
}

// Nodes would never be without the flows of a translation that is applied again.
func TestATranslationThatIsAppliedAgainHasNoRecord(t *testing.T) {
	w := newWorld(t)
	n1 := w.node("n1")
	web, front := w.eip("web", at("192.0.2.9", "")), w.eip("front", at("192.0.2.10", ""))
	w.ip("a", "net", "n1", "10.50.0.5", "")
	floating := w.fip("a", kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "a.shop"})
	port := w.dnat("a", kubeovnv1.OvnDnatRuleSpec{OvnEip: "front", IPName: "a.shop", Protocol: "tcp", ExternalPort: "80", InternalPort: "8080"})
	w.Ready(floating, port)
	absent := func() {
		t.Helper()
		w.Delete(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "a.shop"}})
		w.waits(floating, "IP a.shop, which does not exist")
		w.waits(port, "IP a.shop, which does not exist")
	}
	absent()
	w.ip("a", "net", "n1", "10.50.0.5", "")
	w.Ready(floating, port)
	w.requested("n1")

	absent()
	w.ip("a", "net", "n1", "10.50.0.6", "")
	w.Ready(floating, port)
	w.confirm("n1", w.requested("n1", "192.0.2.10 10.50.0.5/32", "192.0.2.9 10.50.0.5/32")...)
	w.requested("n1")
	w.Delete(n1, floating, port, web, front)
	w.Gone(web)
	w.Gone(front)
}

func TestANodeThatReturnsEndsConnectionsOfATranslationThatWasAppliedTwice(t *testing.T) {
	w := newWorld(t)
	n1 := w.node("n1")
	w.node("n2")
	w.ready("n1", "n2")
	eip := w.eip("web", at("192.0.2.9", ""))
	w.ip("a", "net", "n2", "10.50.0.5", "")
	w.ip("b", "net", "n2", "10.50.0.6", "")
	absent := func(want string) {
		t.Helper()
		w.Eventually(func() string {
			w.Get(eip)
			got := ""
			for _, release := range eip.Status.Releasing {
				got += fmt.Sprint(release.Internal, " ", release.Nodes, " ", release.Absent)
			}
			if got != want {
				return fmt.Sprintf("the records are %s, want %s", got, want)
			}
			return ""
		})
	}
	applyAndDelete := func() {
		t.Helper()
		before := eip.Status.Releasing
		w.requested("n2")
		first := w.fip("a", kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "a.shop"})
		w.Ready(first)
		w.Rests("ovnfip")
		if w.Get(eip); len(eip.Status.Releasing) != len(before) {
			t.Errorf("while the translation is applied, the records are %v", eip.Status.Releasing)
		}
		w.Delete(first)
		w.Gone(first)
		w.confirm("n2", w.requested("n2", "192.0.2.9 10.50.0.5/32")...)
	}
	applyAndDelete()
	w.Delete(n1)
	w.ready("n2")
	absent("10.50.0.5/32 [] [n1]")
	applyAndDelete()
	absent("10.50.0.5/32 [] [n1]")
	w.Ready(w.fip("b", kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "b.shop"}))
	w.node("n1")
	w.confirm("n1", w.requested("n1", "192.0.2.9 10.50.0.5/32")...)
	absent("")
}
