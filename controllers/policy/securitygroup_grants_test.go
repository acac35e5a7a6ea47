// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// groupedIn is grouped for a pod of another namespace.
func (w world) groupedIn(namespace, name, groups string) *corev1.Pod {
	w.Helper()
	w.namespace(namespace, nil)
	p := newPod(namespace, name, "")
	p.Annotations = map[string]string{kubeovnv1.AnnotationGroups.Key(): groups}
	w.Create(p)
	w.allocated(p)
	return p
}

// sameGroup waits until the rule for the traffic of the group `db` has these members and peers.
func (w world) sameGroup(members string, peers ...*corev1.Pod) {
	w.Helper()
	var addresses []string
	for _, p := range peers {
		addresses = append(addresses, v4(p))
	}
	want := "allow-related outport == [" + members + "] && ip4.src == [" + strings.Join(addresses, " ") + "]"
	w.Eventually(func() string {
		if got := w.acls("SecurityGroup//db")["ingress/same/ip4"]; got != want {
			return fmt.Sprintf("traffic of the group: %s, want %s", got, want)
		}
		return ""
	})
}

// keeps waits until a pod's results have these groups.
func (w world) keeps(p *corev1.Pod, groups string) {
	w.Helper()
	w.Eventually(func() string {
		if w.Get(p); p.Annotations[kubeovnv1.AnnotationKeptGroups.Key()] != groups {
			return fmt.Sprintf("pod %s has %v, want groups %s", p.Name, p.Annotations, groups)
		}
		return ""
	})
}

// TestPodsOfOtherNamespacesAreNotInAGroup: a tenant names the group of another tenant.
func TestPodsOfOtherNamespacesAreNotInAGroup(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	group := w.group("db", "{allowSameGroupTraffic: true, allowedNamespaces: [default]}")
	w.group("open", `{allowedNamespaces: ["*"]}`)
	w.condition(group, &group.Status.Conditions, "Ready", "True", "")
	member := w.grouped("member", "db,open")
	w.sameGroup("member.default", member)
	intruder := w.groupedIn("attacker", "intruder", "db,open")
	w.Event(intruder, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: "SecurityGroupNotGranted", Note: "names db, which does not list namespace attacker"})
	w.sameGroup("member.default", member)
	w.closedIn(intruder, "2", "3")
	if got := intruder.Annotations[kubeovnv1.AnnotationKeptGroups.Key()]; got != "open" {
		t.Errorf("the intruder is in groups %q, want open", got)
	}

	// A running pod stays in the group, also after a restart. A new pod is not in it.
	w.Change(group, func() { group.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"attacker"} })
	w.sameGroup("intruder.attacker member.default", member, intruder)
	w.keeps(intruder, "db,open") // written after the rows
	w.Change(group, func() { group.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"shop"} })
	process.Stop()
	w.start()
	late := w.grouped("late", "db")
	w.closedIn(late, "2", "3")
	w.sameGroup("intruder.attacker member.default", member, intruder)

	// It leaves the group when it no longer names it, and does not come back.
	w.Get(intruder)
	w.Change(intruder, func() { intruder.Annotations[kubeovnv1.AnnotationGroups.Key()] = "open" })
	w.sameGroup("member.default", member)
	w.keeps(intruder, "open")
	w.Change(intruder, func() { intruder.Annotations[kubeovnv1.AnnotationGroups.Key()] = "db" })
	w.closedIn(intruder, "2", "3")
	w.sameGroup("member.default", member)
}

// TestAGroupAdmitsPodsThatWaitForIt: pods name a group before it exists.
func TestAGroupAdmitsPodsThatWaitForIt(t *testing.T) {
	w := newWorld(t)
	w.start()
	early := w.grouped("early", "db")
	w.Event(early, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: "SecurityGroupNotFound"})
	w.closedIn(early, "2", "3")
	w.group("db", "{allowSameGroupTraffic: true}")
	w.sameGroup("early.default", early)
}
