// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPoliciesShareTheirSets(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("default", "web", "app=web")
	client := w.pod("default", "client", "app=client")
	first := w.policyOf("default", "first", webFromClients)
	second := w.policyOf("default", "second", webFromClients)
	for _, np := range []string{"first", "second"} {
		w.Eventually(func() string {
			if n := len(w.acls("NetworkPolicy/default/" + np)); n != 3 {
				return fmt.Sprintf("%s has %d ACLs", np, n)
			}
			return ""
		})
	}
	if groups, sets := w.rows("Port_Group"), w.rows("Address_Set"); groups != 2 || sets != 2 {
		t.Errorf("%d port groups and %d address sets: want one of all isolated pods, one of the subjects, and one set per family", groups, sets)
	}
	w.Delete(first)
	w.Eventually(func() string {
		if n := w.rows("ACL"); n != 3+5 {
			return fmt.Sprintf("%d ACLs: want the second policy's, and the permanent ones: two for each of DHCP and hairpins, one for health checks", n)
		}
		return ""
	})
	w.expect(second, map[string]string{
		"ingress/default": "drop outport == [web.default] && ip",
		"ingress/0/ip4":   "allow-related outport == [web.default] && ip4 && tcp.dst == 80 && ip4.src == [" + v4(client) + "]",
		"ingress/0/ip6":   "allow-related outport == [web.default] && ip6 && tcp.dst == 80 && ip6.src == [" + v6(client) + "]",
	})
}

func TestPeersInOtherNamespacesAndOnNodes(t *testing.T) {
	w := newWorld(t)
	w.start()
	friends := w.namespace("friends", map[string]string{"team": "a"})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	w.Create(node)
	joined := w.Joined("n1", "100.64.0.2,fd00:64::2", "192.0.2.1")
	// A kubelet can write these, so they have no effect.
	w.Change(node, func() { node.Annotations = map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.9"} })
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.16.0.10"}}
	w.Must(w.Client.Status().Update(w.Context(), node))

	w.pod("default", "web", "app=web")
	friend := w.pod("friends", "friend", "app=client")
	np := w.policyOf("default", "web", `
podSelector: {matchLabels: {app: web}}
ingress:
- from: [{namespaceSelector: {matchLabels: {team: a}}}]
`)
	want := func(peers4, peers6 string) map[string]string {
		return map[string]string{
			"ingress/default": "drop outport == [web.default] && ip",
			"ingress/0/ip4":   "allow-related outport == [web.default] && ip4 && ip4.src == " + peers4,
			"ingress/0/ip6":   "allow-related outport == [web.default] && ip6 && ip6.src == " + peers6,
		}
	}
	w.expect(np, want("["+v4(friend)+"]", "["+v6(friend)+"]"))
	isolation := w.acls("Isolation//pods")
	if got := isolation["node/n1/ip4"]; got != `allow-related outport == [web.default] && ip4.src == {100.64.0.2, 192.0.2.1} && is_chassis_resident("node-n1")` {
		t.Errorf("traffic from the pod's node: %s", got)
	}
	w.Change(friends, func() { friends.Labels["team"] = "b" })
	w.expect(np, want("[]", "[]"))
	w.Change(friends, func() { friends.Labels["team"] = "a" })
	w.expect(np, want("["+v4(friend)+"]", "["+v6(friend)+"]"))

	host := newPod("friends", "host", "app=client")
	host.Spec.HostNetwork = true
	w.Create(host)
	w.expect(np, want("["+v4(friend)+" 100.64.0.2 192.0.2.1]", "["+v6(friend)+" fd00:64::2]"))
	w.Delete(joined)
	w.Joined("n1", "100.64.0.3,fd00:64::3", "192.0.2.1")
	w.expect(np, want("["+v4(friend)+" 100.64.0.3 192.0.2.1]", "["+v6(friend)+" fd00:64::3]"))
	w.Eventually(func() string {
		if got := w.acls("Isolation//pods")["node/n1/ip4"]; !strings.Contains(got, "{100.64.0.3, 192.0.2.1}") {
			return "once the node has another address, it may send: " + got
		}
		return ""
	})
	w.Delete(host)
	w.expect(np, want("["+v4(friend)+"]", "["+v6(friend)+"]"))
}
