// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

const webFromClients = `
podSelector: {matchLabels: {app: web}}
ingress:
- from: [{podSelector: {matchLabels: {app: client}}}]
  ports: [{port: 80}]
`

func TestAPolicyFollowsItsPods(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	web, client := w.pod("default", "web", "app=web"), w.pod("default", "client", "app=client")
	np := w.policyOf("default", "web", webFromClients)
	allowed := func(clients4, clients6 string) map[string]string {
		return map[string]string{
			"ingress/default": "drop outport == [web.default] && ip",
			"ingress/0/ip4":   "allow-related outport == [web.default] && ip4 && tcp.dst == 80 && ip4.src == " + clients4,
			"ingress/0/ip6":   "allow-related outport == [web.default] && ip6 && tcp.dst == 80 && ip6.src == " + clients6,
		}
	}
	_ = web
	w.expect(np, allowed("["+v4(client)+"]", "["+v6(client)+"]"))

	// A label costs one transaction, which changes sets only.
	other := w.pod("default", "other", "app=none")
	sent := process.Transactions()
	w.Change(other, func() { other.Labels["app"] = "client" })
	w.expect(np, allowed(fmt.Sprintf("[%s %s]", v4(client), v4(other)), fmt.Sprintf("[%s %s]", v6(client), v6(other))))
	if n := process.Transactions() - sent; n != 1 {
		t.Errorf("%d transactions for one label", n)
	}
	// So does a new pod with all its sets.
	sent = process.Transactions()
	third := w.pod("default", "third", "app=client")
	if n := process.Transactions() - sent; n != 1 {
		t.Errorf("%d transactions for a pod in a set", n)
	}
	w.Delete(third, other)
	w.expect(np, allowed("["+v4(client)+"]", "["+v6(client)+"]"))
	sent = process.Transactions()
	second := w.pod("default", "web2", "app=web")
	if n := process.Transactions() - sent; n != 1 {
		t.Errorf("%d transactions for a pod that is isolated", n)
	}
	if got := w.acls("NetworkPolicy/default/web")["ingress/default"]; got != "drop outport == [web.default web2.default] && ip" {
		t.Errorf("after the pod's network is published: %s", got)
	}
	w.Delete(second)

	w.Delete(np)
	w.Eventually(func() string {
		if n := w.rows("ACL") + w.rows("Port_Group") + w.rows("Address_Set"); n > 0 {
			return fmt.Sprintf("%d rows are left", n)
		}
		return ""
	})
}

func TestPoliciesAfterARestart(t *testing.T) {
	w := newWorld(t)
	first := w.start()
	web, client := w.pod("default", "web", "app=web"), w.pod("default", "client", "app=client")
	gone, kept := w.policyOf("default", "gone", "podSelector: {matchLabels: {app: client}}"), w.policyOf("default", "kept", webFromClients)
	sharing := w.policyOf("default", "sharing", "podSelector: {matchLabels: {app: web}}") // it shares the port group of kept
	want := map[string]string{
		"ingress/default": "drop outport == [web.default] && ip",
		"ingress/0/ip4":   "allow-related outport == [web.default] && ip4 && tcp.dst == 80 && ip4.src == [" + v4(client) + "]",
		"ingress/0/ip6":   "allow-related outport == [web.default] && ip6 && tcp.dst == 80 && ip6.src == [" + v6(client) + "]",
	}
	w.expect(kept, want)
	w.expect(gone, map[string]string{"ingress/default": "drop outport == [client.default] && ip"})
	w.expect(sharing, map[string]string{"ingress/default": want["ingress/default"]})
	first.Stop()
	second := w.start()
	w.Eventually(func() string { // the policy is complete when all of its pods were processed
		if !second.Sets.Complete(translate.NetworkPolicyOwner("default", "kept")) {
			return "pods are not in their sets"
		}
		return ""
	})
	marker := w.pod("default", "marker", "app=none")
	w.expect(kept, want)
	if n := second.Transactions(); n != 1 {
		t.Errorf("%d transactions after a restart, want only the new pod's", n)
	}
	w.Delete(marker)
	second.Stop()

	w.Delete(gone, sharing)
	w.Change(web, func() { web.Labels["app"] = "none" })
	third := w.start()
	w.expect(gone, map[string]string{})
	w.expect(sharing, map[string]string{})
	want["ingress/default"] = "drop outport == [] && ip"
	for _, family := range []string{"ip4", "ip6"} {
		want["ingress/0/"+family] = "allow-related outport == []" + want["ingress/0/"+family][len("allow-related outport == [web.default]"):]
	}
	w.expect(kept, want)
	w.Eventually(func() string { // a set is deleted when no policy uses it
		if groups := w.rows("Port_Group"); groups != 2 {
			return fmt.Sprintf("%d port groups are left", groups)
		}
		return ""
	})
	third.Stop()

	w.Delete(kept)
	w.start()
	w.Eventually(func() string {
		if n := w.rows("ACL") + w.rows("Port_Group") + w.rows("Address_Set"); n > 0 {
			return fmt.Sprintf("%d rows are left", n)
		}
		return ""
	})
}

func TestDamageToPoliciesHeals(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("default", "web", "app=web")
	client := w.pod("default", "client", "app=client")
	np := w.policyOf("default", "web", webFromClients)
	want := map[string]string{
		"ingress/default": "drop outport == [web.default] && ip",
		"ingress/0/ip4":   "allow-related outport == [web.default] && ip4 && tcp.dst == 80 && ip4.src == [" + v4(client) + "]",
		"ingress/0/ip6":   "allow-related outport == [web.default] && ip6 && tcp.dst == 80 && ip6.src == [" + v6(client) + "]",
	}
	w.expect(np, want)
	ofPeers := []any{[]any{"external_ids", "includes", nbtest.Map(map[string]string{"kiln-key": "ip4"})}}
	for what, op := range map[string]nbtest.Op{
		"rules changed": {"op": "update", "table": "ACL", "where": []any{}, "row": map[string]any{"action": "allow"}},
		"groups empty":  {"op": "update", "table": "Port_Group", "where": []any{}, "row": map[string]any{"ports": []any{"set", []any{}}}},
		"rules gone":    {"op": "update", "table": "Port_Group", "where": []any{}, "row": map[string]any{"acls": []any{"set", []any{}}}},
		"groups gone":   {"op": "delete", "table": "Port_Group", "where": []any{}},
		"sets empty":    {"op": "update", "table": "Address_Set", "where": ofPeers, "row": map[string]any{"addresses": []any{"set", []any{}}}},
		"sets gone":     {"op": "delete", "table": "Address_Set", "where": ofPeers},
	} {
		t.Log(what)
		w.Database.Transact(op)
		w.expect(np, want)
	}
}

func TestNamedPorts(t *testing.T) {
	w := newWorld(t)
	w.start()
	port := func(number int32) corev1.ContainerPort {
		return corev1.ContainerPort{Name: "http", ContainerPort: number}
	}
	one := w.pod("default", "one", "app=web", port(8080))
	np := w.policyOf("default", "web", `
podSelector: {matchLabels: {app: web}}
ingress:
- ports: [{port: http}]
`)
	first := map[string]string{
		"ingress/default":             "drop outport == [one.default] && ip",
		"ingress/0/TCP-http/8080/ip4": "allow-related outport == [one.default] && ip4 && ip4.dst == [" + v4(one) + "] && tcp.dst == 8080",
		"ingress/0/TCP-http/8080/ip6": "allow-related outport == [one.default] && ip6 && ip6.dst == [" + v6(one) + "] && tcp.dst == 8080",
	}
	w.expect(np, first)
	two := w.pod("default", "two", "app=web", port(9090))
	w.expect(np, map[string]string{
		"ingress/default":             "drop outport == [one.default two.default] && ip",
		"ingress/0/TCP-http/8080/ip4": "allow-related outport == [one.default two.default] && ip4 && ip4.dst == [" + v4(one) + "] && tcp.dst == 8080",
		"ingress/0/TCP-http/8080/ip6": "allow-related outport == [one.default two.default] && ip6 && ip6.dst == [" + v6(one) + "] && tcp.dst == 8080",
		"ingress/0/TCP-http/9090/ip4": "allow-related outport == [one.default two.default] && ip4 && ip4.dst == [" + v4(two) + "] && tcp.dst == 9090",
		"ingress/0/TCP-http/9090/ip6": "allow-related outport == [one.default two.default] && ip6 && ip6.dst == [" + v6(two) + "] && tcp.dst == 9090",
	})
	w.Delete(two)
	w.expect(np, first)
}

// A rule with a misspelt port name allows nothing: users must learn it from an event.
func TestPortNamesThatNoPodHas(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("default", "one", "app=web", corev1.ContainerPort{Name: "http", ContainerPort: 8080})
	np := w.policyOf("default", "web", `
podSelector: {matchLabels: {app: web}}
ingress:
- ports: [{port: htpp}, {port: http}, {port: 80}]
`)
	const note = "no pod that the policy selects has a port of the name htpp: its rule for that port allows nothing: write the name as in the pods, or a number"
	w.Event(np, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: policy.ReasonPortNameUnknown, Note: note})
	mistakes.Sees(t, 41, note)
	to := w.policyOf("default", "to", `
podSelector: {matchLabels: {app: client}}
policyTypes: [Egress]
egress:
- {ports: [{port: htp}, {port: http}], to: [{podSelector: {matchLabels: {app: web}}}, {podSelector: {matchLabels: {app: none}}}]}
- {ports: [{port: htttp}, {port: http}]}
`)
	w.Event(to, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: policy.ReasonPortNameUnknown, Note: "no pod that its egress rules select has a port of the name htp, htttp: its rule"})
}

func TestInexpressibleRulesDenyAndAreReported(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("default", "web", "app=web")
	wrong := w.policyOf("default", "wrong", "podSelector: {matchLabels: {app: web}}", "enable_log", "true", "acl_log_meter_rate", "many")
	w.Event(wrong, eventsv1.Event{Type: corev1.EventTypeWarning, Note: `annotation ovn.kubernetes.io/acl_log_meter_rate is "many": write packets per second`})
	w.expect(wrong, map[string]string{"ingress/default": "drop outport == [web.default] && ip"})
	other := w.policyOf("default", "other", "podSelector: {matchLabels: {app: web}}", "network_policy_for", "default/net1")
	w.Event(other, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "names default/net1"})
	w.expect(other, map[string]string{})
	w.Change(wrong, func() { wrong.Annotations["ovn.kubernetes.io/network_policy_for"] = "default/net1,onv" })
	w.Event(wrong, eventsv1.Event{Type: corev1.EventTypeWarning, Note: `names "onv", which is no network`})
	w.expect(wrong, map[string]string{"ingress/default": "drop outport == [web.default] && ip"}) // a mistake opens nothing
	for _, row := range w.Database.Rows("Meter_Band") {
		limits := strings.HasPrefix(row["external_ids"].(map[string]string)["kiln-owner"], "Protection/") // of the VPC
		if row["rate"] != float64(100) && !limits {
			t.Errorf("meter band %v", row)
		}
	}
}

func TestExceptionsOfNetworks(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("default", "web", "app=web")
	np := w.policyOf("default", "web", `
podSelector: {matchLabels: {app: web}}
ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.64.0.0/10, 10.0.0.0/10]}}]}]
`)
	want := map[string]string{
		"ingress/default": "drop outport == [web.default] && ip",
		"ingress/0/ip4":   "allow-related outport == [web.default] && ip4 && ip4.src == 10.128.0.0/9",
	}
	w.expect(np, want)

	w.Change(np, func() { np.Spec.Ingress[0].From[0].IPBlock.Except = []string{"10.0.0.0/9", "10.128.0.0/9"} })
	delete(want, "ingress/0/ip4")
	w.expect(np, want)
}
