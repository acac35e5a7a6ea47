// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// costing creates a policy whose estimate is 64 flows plus 120 for each of its ranges of ports.
func (w world) costing(namespace, name string, ranges int) *networkingv1.NetworkPolicy {
	w.Helper()
	var ports []string
	for i := range ranges {
		ports = append(ports, fmt.Sprintf("{port: %d, endPort: %d}", 1+i, 65534-i))
	}
	return w.policyOf(namespace, name, "podSelector: {matchLabels: {app: web}}\ningress: [{ports: ["+strings.Join(ports, ", ")+"]}]")
}

// TestTheYoungestPoliciesOfANamespaceExceedItsBound: the youngest policies isolate their pods, but their rules are ignored until older
// policies are deleted. Policies of other namespaces do not count.
func TestTheYoungestPoliciesOfANamespaceExceedItsBound(t *testing.T) {
	w := newWorld(t)
	first := w.start()
	w.namespace("crowded", nil)
	w.pod("crowded", "web", "app=web")
	w.pod("default", "web", "app=web")
	inForce := func(np *networkingv1.NetworkPolicy, want bool) {
		w.Helper()
		w.Eventually(func() string {
			acls := w.acls("NetworkPolicy/" + np.Namespace + "/" + np.Name)
			if acls["ingress/default"] != "drop outport == [web."+np.Namespace+"] && ip" {
				return fmt.Sprintf("policy %s does not isolate: %v", np.Name, acls)
			}
			if _, allows := acls["ingress/0"]; allows != want {
				return fmt.Sprintf("policy %s is applied: %t", np.Name, allows)
			}
			return ""
		})
	}
	var large []*networkingv1.NetworkPolicy
	for i := range 8 {
		large = append(large, w.costing("crowded", fmt.Sprint("large-", i), 545))
		inForce(large[i], true)
	}
	small := w.costing("crowded", "small", 10) // if both are created in the same second, the order of names decides
	elsewhere := w.costing("default", "elsewhere", 10)
	inForce(small, false)
	inForce(elsewhere, true)
	w.Event(small, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "the rules of this policy are ignored: together with the older NetworkPolicies of its namespace it costs a node more than 524288 flows"})
	first.Stop()
	w.start()
	inForce(small, false)
	w.Delete(large[1])
	inForce(small, true)
}
