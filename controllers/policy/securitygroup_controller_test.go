// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// group creates a SecurityGroup with a spec in YAML.
func (w world) group(name, spec string) *kubeovnv1.SecurityGroup {
	w.Helper()
	sg := newGroup(w.T, name, spec)
	w.Create(sg)
	return sg
}

func newGroup(t *testing.T, name, spec string) *kubeovnv1.SecurityGroup {
	t.Helper()
	sg := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &sg.Spec); err != nil {
		t.Fatal(err)
	}
	if sg.Spec.AllowedNamespaces == nil {
		sg.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"default"}
	}
	return sg
}

// grouped creates a pod that names security groups and returns it once it is annotated.
func (w world) grouped(name, groups string) *corev1.Pod {
	w.Helper()
	p := newPod("default", name, "")
	p.Annotations = map[string]string{kubeovnv1.AnnotationGroups.Key(): groups}
	w.Create(p)
	w.allocated(p)
	return p
}

// groupsOf returns the tiers in which security groups currently isolate a pod.
func (w world) groupsOf(p *corev1.Pod) string {
	w.Helper()
	names := w.contents()
	var tiers []string
	for _, row := range w.Database.Rows("Port_Group") {
		key, ours := strings.CutPrefix(row["external_ids"].(map[string]string)["kiln-key"], "grouped/")
		if ours && strings.Contains(names["@"+row["name"].(string)], p.Name+"."+p.Namespace) {
			tiers = append(tiers, key)
		}
	}
	return strings.Join(tiers, "")
}

func (w world) closedIn(p *corev1.Pod, tiers ...string) {
	w.Helper()
	w.Eventually(func() string {
		if have := w.groupsOf(p); len(have) != len(tiers) || !containsAll(have, tiers) {
			return fmt.Sprintf("pod %s is closed in tiers %q, want %q", p.Name, have, tiers)
		}
		return ""
	})
}

func containsAll(s string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

const webGroup = `
allowSameGroupTraffic: true
ingressRules:
- {ipVersion: ipv4, protocol: tcp, priority: 1, remoteType: address, remoteAddress: 10.16.0.0/16, portRangeMin: 80, portRangeMax: 81, policy: allow}
- {ipVersion: ipv6, protocol: all, priority: 2, remoteType: securityGroup, remoteSecurityGroup: clients, policy: allow}
egressRules:
- {ipVersion: ipv4, protocol: udp, priority: 3, remoteType: address, remoteAddress: 192.0.2.1, sourcePortRangeMin: 1024, sourcePortRangeMax: 65535, policy: pass}
`

func wantOfWeb(web *corev1.Pod, clients string) map[string]string {
	members := "[web.default]"
	four, six := "["+v4(web)+"]", "["+v6(web)+"]"
	return map[string]string{
		"ingress/0":        "allow-related outport == " + members + " && ip4 && ip4.src == 10.16.0.0/16 && tcp && 80 <= tcp.dst <= 81",
		"ingress/1":        "allow-related outport == " + members + " && ip6 && ip6.src == " + clients,
		"egress/0":         "pass inport == " + members + " && ip4 && ip4.dst == 192.0.2.1 && udp && 1024 <= udp.src <= 65535",
		"ingress/same/ip4": "allow-related outport == " + members + " && ip4.src == " + four,
		"ingress/same/ip6": "allow-related outport == " + members + " && ip6.src == " + six,
		"egress/same/ip4":  "allow-related inport == " + members + " && ip4.dst == " + four,
		"egress/same/ip6":  "allow-related inport == " + members + " && ip6.dst == " + six,
	}
}

// TestSecurityGroupsFollowTheirPods: the rows follow the creation and deletion of a group and of its pods.
func TestSecurityGroupsFollowTheirPods(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	sg := w.group("web", webGroup)
	w.condition(sg, &sg.Status.Conditions, "Validated", "False",
		"ingressRules[1]: SecurityGroup clients, which remoteSecurityGroup names, does not exist")
	w.Event(sg, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "SecurityGroup clients"})
	w.condition(sg, &sg.Status.Conditions, "Ready", "True", "") // from now on no other event enqueues it
	clients := w.group("clients", "{}")
	w.condition(sg, &sg.Status.Conditions, "Validated", "True", "")
	w.condition(clients, &clients.Status.Conditions, "Ready", "True", "")
	web, client := w.grouped("web", "web"), w.grouped("client", " clients ,clients")
	w.expectOf("SecurityGroup//web", wantOfWeb(web, "["+v6(client)+"]"))
	w.closedIn(web, "2", "3")
	w.condition(sg, &sg.Status.Conditions, "Ready", "True", "")
	if !sg.Status.AllowSameGroupTraffic || !sg.Status.IngressLastSyncSuccess || !sg.Status.EgressLastSyncSuccess {
		t.Errorf("status says %+v", sg.Status)
	}
	if content, ok := w.contents()["@"+sg.Status.PortGroup]; !ok || content != "[web.default]" {
		t.Errorf("status names port group %s with %s", sg.Status.PortGroup, content)
	}

	// The first transaction of a pod adds it to its groups, closed; a change of the annotation removes it from one by another transaction.
	sent := process.Transactions()
	second := w.grouped("second", "web,clients")
	if n := process.Transactions() - sent; n != 1 {
		t.Errorf("%d transactions for a pod in two groups", n)
	}
	if got := w.groupsOf(second); len(got) != 2 {
		t.Errorf("after its network is published the pod is closed in tiers %q", got)
	}
	if got := w.acls("SecurityGroup//web")["ingress/0"]; !strings.Contains(got, "[second.default web.default]") {
		t.Errorf("after the pod's network is published: %s", got)
	}
	sent = process.Transactions()
	w.Change(second, func() { delete(second.Annotations, kubeovnv1.AnnotationGroups.Key()) })
	w.expectOf("SecurityGroup//web", wantOfWeb(web, "["+v6(client)+"]"))
	w.closedIn(second)
	if n := process.Transactions() - sent; n != 1 {
		t.Errorf("%d transactions for a pod that leaves its groups", n)
	}

	w.Delete(sg)
	w.expectOf("SecurityGroup//web", map[string]string{})
	w.closedIn(web, "2", "3")
	w.Event(web, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "names web, which does not exist"})
	w.Delete(web, client, clients)
	w.Eventually(func() string {
		if n := w.rows("ACL") + w.rows("Port_Group") + w.rows("Address_Set"); n > 0 {
			return fmt.Sprintf("%d rows are left", n)
		}
		return ""
	})
}

// TestTiersOfSecurityGroups: the first tier decides for pods that name a group of this tier or a group that does not exist.
func TestTiersOfSecurityGroups(t *testing.T) {
	w := newWorld(t)
	w.start()
	const spec = `{tier: %d, ingressRules: [{ipVersion: ipv4, priority: 5, remoteType: address, remoteAddress: 0.0.0.0/0, policy: allow}]}`
	w.group("first", fmt.Sprintf(spec, 0))
	last := w.group("last", fmt.Sprintf(spec, 1))
	w.condition(last, &last.Status.Conditions, "Ready", "True", "")
	onlyLast, both := w.grouped("only-last", "last"), w.grouped("both", "first,last")
	unknown, denied := w.grouped("unknown", "last,typo"), w.grouped("denied", kubeovnv1.DenyAllGroup)
	w.closedIn(onlyLast, "3")
	for _, p := range []*corev1.Pod{both, unknown, denied} {
		w.closedIn(p, "2", "3")
	}
	w.Event(unknown, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "ovn.kubernetes.io/security_groups names typo, which does not exist: nothing passes by it"})
	tier := func() string {
		for _, row := range w.Database.Rows("ACL") {
			if row["external_ids"].(map[string]string)["kiln-owner"] == "SecurityGroup//last" {
				return fmt.Sprintf("tier %v priority %v %s", row["tier"], row["priority"], w.acls("SecurityGroup//last")["ingress/0"])
			}
		}
		return ""
	}
	const members = "allow-related outport == [both.default only-last.default unknown.default] && ip4"
	if got := tier(); got != "tier 3 priority 18479 "+members {
		t.Errorf("a group of tier 1 has %s", got)
	}
	w.Change(last, func() { last.Spec.Tier = 0 })
	w.closedIn(onlyLast, "2", "3")
	w.Eventually(func() string {
		if got := tier(); got != "tier 2 priority 18479 "+members {
			return "once it is of tier 0 it has " + got
		}
		return ""
	})
	w.Change(last, func() { last.Spec.Tier = 1 })
	w.closedIn(onlyLast, "3")
	typo := w.group("typo", "{tier: 1}")
	w.closedIn(unknown, "3")
	w.condition(typo, &typo.Status.Conditions, "Ready", "True", "") // once the pod is in its set
}

func TestSecurityGroupsAfterARestart(t *testing.T) {
	w := newWorld(t)
	first := w.start()
	const open = `{tier: 1, ingressRules: [{ipVersion: ipv4, priority: 1, remoteType: address, remoteAddress: 0.0.0.0/0, policy: allow}]}`
	sg, gone := w.group("web", webGroup), w.group("gone", open)
	w.group("clients", "{}")
	web, client, orphan := w.grouped("web", "web"), w.grouped("client", "clients"), w.grouped("orphan", "gone")
	w.expectOf("SecurityGroup//web", wantOfWeb(web, "["+v6(client)+"]"))
	w.condition(sg, &sg.Status.Conditions, "Validated", "True", "")
	w.condition(gone, &gone.Status.Conditions, "Ready", "True", "")
	w.closedIn(orphan, "3")
	first.Stop()
	second := w.start()
	marker := w.pod("default", "marker", "app=none")
	w.expectOf("SecurityGroup//web", wantOfWeb(web, "["+v6(client)+"]"))
	w.closedIn(orphan, "3")
	if n := second.Transactions(); n != 1 {
		t.Errorf("%d transactions after a restart, want only the new pod's", n)
	}
	w.Delete(marker)
	second.Stop()

	w.Delete(gone)
	w.Change(client, func() { client.Annotations[kubeovnv1.AnnotationGroups.Key()] = "none" })
	w.start()
	w.closedIn(orphan, "2", "3")
	w.expectOf("SecurityGroup//gone", map[string]string{})
	w.expectOf("SecurityGroup//web", wantOfWeb(web, "[]"))
	w.closedIn(client, "2", "3")
}

func TestDamageToSecurityGroupsHeals(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.group("web", webGroup)
	w.group("clients", "{}")
	web, client := w.grouped("web", "web"), w.grouped("client", "clients")
	want := wantOfWeb(web, "["+v6(client)+"]")
	w.expectOf("SecurityGroup//web", want)
	ofPeers := []any{[]any{"external_ids", "includes", nbtest.Map(map[string]string{"kiln-key": "ip4"})}}
	for what, op := range map[string]nbtest.Op{
		"rules changed": {"op": "update", "table": "ACL", "where": []any{}, "row": map[string]any{"action": "allow"}},
		"groups empty":  {"op": "update", "table": "Port_Group", "where": []any{}, "row": map[string]any{"ports": []any{"set", []any{}}}},
		"groups gone":   {"op": "delete", "table": "Port_Group", "where": []any{}},
		"sets gone":     {"op": "delete", "table": "Address_Set", "where": ofPeers},
	} {
		t.Log(what)
		w.Database.Transact(op)
		w.expectOf("SecurityGroup//web", want)
		w.closedIn(web, "2", "3")
	}
}

// TestWrongSecurityGroupsAreRefused: the API server rejects them with a message that says what to write.
func TestWrongSecurityGroupsAreRefused(t *testing.T) {
	w := newWorld(t)
	const rule = `{ingressRules: [{ipVersion: %s, priority: %s, remoteType: %s, policy: %s}]}`
	address4 := `address, remoteAddress: 10.0.0.0/8`
	for name, c := range map[string]struct{ spec, want string }{
		"a family that is none":      {fmt.Sprintf(rule, "ip4", "1", address4, "allow"), "Unsupported value"},
		"no priority":                {fmt.Sprintf(rule, "ipv4", "0", address4, "allow"), "greater than or equal to 1"},
		"a priority too high":        {fmt.Sprintf(rule, "ipv4", "16385", address4, "allow"), "less than or equal to 16384"},
		"no address":                 {fmt.Sprintf(rule, "ipv4", "1", "address", "allow"), `remoteAddress "" must be an address or a CIDR`},
		"an address of the other":    {fmt.Sprintf(rule, "ipv6", "1", address4, "allow"), "of the family in ipVersion"},
		"a name for an address":      {fmt.Sprintf(rule, "ipv4", "1", "address, remoteAddress: db", "allow"), `remoteAddress "db" must be`},
		"no group":                   {fmt.Sprintf(rule, "ipv4", "1", "securityGroup", "allow"), "remoteSecurityGroup must name a group"},
		"a remote type that is none": {fmt.Sprintf(rule, "ipv4", "1", "pod", "allow"), "Unsupported value"},
		"a policy that is none":      {fmt.Sprintf(rule, "ipv4", "1", address4, "reject"), "Unsupported value"},
		"half a range":               {fmt.Sprintf(rule, "ipv4", "1", address4+", protocol: tcp, portRangeMin: 80", "allow"), "portRangeMin and portRangeMax"},
		"a range upside down":        {fmt.Sprintf(rule, "ipv4", "1", address4+", protocol: udp, sourcePortRangeMin: 80, sourcePortRangeMax: 79", "allow"), "sourcePortRangeMin is above sourcePortRangeMax: exchange them"},
		"ports of all protocols":     {fmt.Sprintf(rule, "ipv4", "1", address4+", protocol: all, portRangeMin: 80, portRangeMax: 80", "allow"), "ports need protocol tcp or udp"},
		"source ports without a protocol": {
			fmt.Sprintf(rule, "ipv6", "1", `address, remoteAddress: "fd00::/8", sourcePortRangeMin: 53, sourcePortRangeMax: 53`, "allow"), "ports need protocol tcp or udp",
		},
		"a wrong local address": {fmt.Sprintf(rule, "ipv4", "1", address4+`, localAddress: "fd00::1"`, "allow"), `localAddress "fd00::1" must be`},
		"tier 2":                {"{tier: 2}", "less than or equal to 1"},
		"pass in tier 1":        {strings.Replace(fmt.Sprintf(rule, "ipv4", "1", address4, "pass"), "{", "{tier: 1, ", 1), "there is no tier behind tier 1"},
	} {
		err := w.Client.Create(w.Context(), newGroup(t, "wrong", c.spec))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.Create(newGroup(t, "right", fmt.Sprintf(rule, "ipv6", "16384", `address, remoteAddress: "::/0", localAddress: "fd00::1", protocol: icmp, portRangeMin: 0, portRangeMax: 0`, "pass")))
}
