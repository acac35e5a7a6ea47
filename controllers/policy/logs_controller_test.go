// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// meters waits until the rates of all meters equal want, and each ACL that logs names an existing meter, which its rules share.
func (w *world) meters(want ...float64) {
	w.Helper()
	w.Eventually(func() string {
		var rates []float64
		ofLogs := func(row nbtest.Row) bool {
			return strings.HasPrefix(row["external_ids"].(map[string]string)["kiln-owner"], "PolicyLogs/")
		}
		for _, row := range w.Database.Rows("Meter_Band") {
			if ofLogs(row) {
				rates = append(rates, row["rate"].(float64))
			}
		}
		names := map[any]bool{}
		for _, row := range w.Database.Rows("Meter") {
			if !ofLogs(row) {
				continue
			}
			if names[row["name"]] = true; fmt.Sprint(row["fair"]) != "false" {
				return fmt.Sprintf("each rule has the whole rate of meter %v", row)
			}
		}
		for _, acl := range w.Database.Rows("ACL") {
			if acl["log"] == true && !names[acl["meter"]] {
				return fmt.Sprintf("ACL %v logs without a meter", acl["name"])
			}
		}
		if fmt.Sprint(rates) != fmt.Sprint(want) || len(names) != len(want) {
			return fmt.Sprintf("%d meters have the rates %v, want %v", len(names), rates, want)
		}
		return ""
	})
}

// TestThePoliciesOfANamespaceShareAMeter creates, deletes and restores logging policies.
func TestThePoliciesOfANamespaceShareAMeter(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	w.pod("default", "web", "app=web")
	const spec = "podSelector: {matchLabels: {app: web}}"
	first := w.policyOf("default", "first", spec, "enable_log", "true")
	w.meters(100)
	second := w.policyOf("default", "second", spec, "enable_log", "true", "acl_log_meter_rate", "2000000000")
	w.meters(1000)
	w.Change(second, func() { delete(second.Annotations, "ovn.kubernetes.io/enable_log") })
	w.meters(100)
	w.Database.Transact(nbtest.Op{"op": "delete", "table": "Meter", "where": []any{}}, nbtest.Op{"op": "delete", "table": "Meter_Band", "where": []any{}})
	w.meters(100)
	process.Stop()

	w.Delete(first)
	w.start()
	w.meters()
}

// TestTheLogOfDropsEnds: no event says that the time of the annotation has come.
func TestTheLogOfDropsEnds(t *testing.T) {
	w := newWorld(t)
	begin := time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC)
	var clock atomic.Pointer[time.Time]
	clock.Store(&begin)
	process := w.startWith(false, func() time.Time { return *clock.Load() })
	w.pod("default", "web", "app=web")
	const spec = "podSelector: {matchLabels: {app: web}}"
	until := begin.Add(20 * time.Millisecond)
	np := w.policyOf("default", "web", spec, "log_drops_until", until.Format(time.RFC3339Nano))
	w.meters(100)
	clock.Store(&until)
	w.meters()
	w.expect(np, map[string]string{"ingress/default": "drop outport == [web.default] && ip"})

	next := until.Add(time.Minute)
	w.Change(np, func() { np.Annotations["ovn.kubernetes.io/log_drops_until"] = next.Format(time.RFC3339) })
	w.meters(100)
	w.Change(np, func() { np.Annotations["ovn.kubernetes.io/log_drops_until"] = "tomorrow" })
	w.meters()
	w.Event(np, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: policy.ReasonNotExpressed, Note: `annotation ovn.kubernetes.io/log_drops_until is "tomorrow": write a time`})
	w.Change(np, func() { np.Annotations["ovn.kubernetes.io/log_drops_until"] = next.Format(time.RFC3339) })
	w.meters(100)
	process.Stop()

	clock.Store(&next) // the time came while no process ran
	w.startWith(false, func() time.Time { return next })
	w.meters()
}

// TestDropsOfGroupsAndClusterPoliciesAreLogged: a SecurityGroup and an AdminNetworkPolicy share a meter, log until the time of their annotation, and the controller may restart.
func TestDropsOfGroupsAndClusterPoliciesAreLogged(t *testing.T) {
	w := newWorld(t)
	begin := time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC)
	var clock atomic.Pointer[time.Time]
	clock.Store(&begin)
	now := func() time.Time { return *clock.Load() }
	process := w.startWith(false, now)
	w.grouped("web", "web")
	sg := w.group("web", "ingressRules: [{ipVersion: ipv4, protocol: tcp, priority: 1, remoteType: address, remoteAddress: 0.0.0.0/0, portRangeMin: 80, portRangeMax: 80, policy: drop}]")
	w.define("adminnetworkpolicies", "AdminNetworkPolicy", "v1alpha1")
	anp := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "admin"}}
	w.createServed(anp, "{priority: 7, subject: {namespaces: {}}, ingress: [{name: a, action: Deny, from: [{namespaces: {}}]}, {name: b, action: Allow, from: [{namespaces: {}}]}]}", &anp.Spec)
	w.condition(sg, &sg.Status.Conditions, "Ready", "True", "")
	w.condition(anp, &anp.Status.Conditions, "Ready", "True", "")
	w.meters()

	const key = "ovn.kubernetes.io/log_drops_until"
	until := begin.Add(20 * time.Millisecond)
	annotate := func(o client.Object, value string) {
		w.Change(o, func() { o.SetAnnotations(map[string]string{key: value}) })
	}
	annotate(sg, until.Format(time.RFC3339Nano))
	w.logged("sg/web/egress/default", "sg/web/ingress/0", "sg/web/ingress/default")
	w.meters(100)
	later := begin.Add(time.Minute)
	annotate(anp, later.Format(time.RFC3339))
	w.logged("anp/admin/ingress/0/ip4", "anp/admin/ingress/0/ip6", "sg/web/egress/default", "sg/web/ingress/0", "sg/web/ingress/default")
	w.meters(200)

	clock.Store(&until) // the group logs no longer
	w.logged("anp/admin/ingress/0/ip4", "anp/admin/ingress/0/ip6")
	w.meters(100)
	process.Stop()
	process = w.startWith(false, now)
	w.meters(100)
	annotate(anp, "tomorrow")
	w.logged()
	w.meters()
	w.Event(anp, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: policy.ReasonNotExpressed, Note: `annotation ovn.kubernetes.io/log_drops_until is "tomorrow": write a time`})
	annotate(sg, later.Format(time.RFC3339))
	w.meters(100)
	process.Stop()
	w.Delete(sg)
	w.startWith(false, now)
	w.logged()
	w.meters()
}

// logged waits until exactly the ACLs with these names log.
func (w *world) logged(want ...string) {
	w.Helper()
	w.Eventually(func() string {
		var names []string
		for _, acl := range w.Database.Rows("ACL") {
			if acl["log"] == true {
				names = append(names, fmt.Sprint(acl["name"]))
			}
		}
		if slices.Sort(names); fmt.Sprint(names) != fmt.Sprint(want) {
			return fmt.Sprintf("%v log, want %v", names, want)
		}
		return ""
	})
}
