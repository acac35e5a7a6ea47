// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// define creates a definition whose schema accepts anything. The end of the test deletes it.
func (w world) define(plural, kind, version string) *unstructured.Unstructured {
	w.Helper()
	definition := &unstructured.Unstructured{}
	w.Must(yaml.Unmarshal(fmt.Appendf(nil, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %s.policy.networking.k8s.io
  annotations: {api-approved.kubernetes.io: unapproved}
spec:
  group: policy.networking.k8s.io
  scope: Cluster
  names: {plural: %s, kind: %s, listKind: %sList}
  versions:
  - name: %s
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, plural, plural, kind, kind, version), &definition.Object))
	w.Create(definition)
	w.Cleanup(func() {
		if err := w.Client.Delete(context.Background(), definition); client.IgnoreNotFound(err) != nil {
			w.Error(err)
		}
	})
	return definition
}

// createServed creates an object as soon as its kind is served.
func (w world) createServed(o client.Object, spec string, into any) {
	w.Helper()
	w.Must(yaml.UnmarshalStrict([]byte(spec), into))
	w.Eventually(func() string {
		if err := w.Client.Create(w.Context(), o); err != nil {
			return err.Error()
		}
		return ""
	})
}

// expectOf waits until an owner has exactly these ACLs.
func (w world) expectOf(owner string, want map[string]string) {
	w.Helper()
	w.Eventually(func() string {
		if have := w.acls(owner); fmt.Sprint(have) != fmt.Sprint(want) {
			return fmt.Sprintf("%s has\n%s\nwant\n%s", owner, lines(have), lines(want))
		}
		return ""
	})
}

// condition waits until a condition of an object has a status and, unless it is "", a message.
func (w world) condition(o client.Object, conditions *[]metav1.Condition, kind, status, message string) {
	w.Helper()
	w.Eventually(func() string {
		w.Get(o)
		c := meta.FindStatusCondition(*conditions, kind)
		if c == nil || string(c.Status) != status || message != "" && c.Message != message {
			return fmt.Sprintf("condition %s of %s is %+v", kind, o.GetName(), c)
		}
		return ""
	})
}

// TestClusterWidePolicies: the controller starts before the kinds are defined, and follows them once they are defined and after a restart.
func TestClusterWidePolicies(t *testing.T) {
	w := newWorld(t)
	first := w.start()
	w.namespace("tenant", map[string]string{"tenant": "a"})
	web, client := w.pod("tenant", "web", "app=web"), w.pod("default", "client", "app=client")
	w.define("adminnetworkpolicies", "AdminNetworkPolicy", "v1alpha1")
	w.define("baselineadminnetworkpolicies", "BaselineAdminNetworkPolicy", "v1alpha1")
	w.define("clusternetworkpolicies", "ClusterNetworkPolicy", "v1alpha2")

	anp := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "admin"}}
	w.createServed(anp, `
priority: 7
subject: {namespaces: {matchLabels: {tenant: a}}}
ingress:
- {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}}], ports: [{portNumber: {protocol: TCP, port: 80}}]}
- {action: Pass, from: [{namespaces: {}}]}
egress:
- {action: Allow, to: [{networks: [192.0.2.0/24]}], ports: [{portRange: {protocol: UDP, start: 1, end: 9}}]}
`, &anp.Spec)
	banp := &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	w.createServed(banp, `
subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}
ingress: [{action: Deny, from: [{namespaces: {matchLabels: {none: has}}}]}]
`, &banp.Spec)
	cnp := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	w.createServed(cnp, `
tier: Baseline
priority: 1000
subject: {namespaces: {matchLabels: {tenant: a}}}
egress:
- {action: Deny, to: [{networks: ["::/0", 0.0.0.0/0]}], protocols: [{tcp: {destinationPort: {range: {start: 1, end: 1023}}}}, {sctp: {}}]}
`, &cnp.Spec)

	want := map[string]string{
		"ingress/0/ip4": "drop outport == [web.tenant] && ip4 && tcp.dst == 80 && ip4.src == [" + v4(client) + "]",
		"ingress/0/ip6": "drop outport == [web.tenant] && ip6 && tcp.dst == 80 && ip6.src == [" + v6(client) + "]",
		"ingress/1/ip4": fmt.Sprintf("pass outport == [web.tenant] && ip4 && ip4.src == %s", w.both(v4(web), v4(client))),
		"ingress/1/ip6": fmt.Sprintf("pass outport == [web.tenant] && ip6 && ip6.src == %s", w.both(v6(web), v6(client))),
		"egress/0/ip4":  "allow-related inport == [web.tenant] && ip4 && 1 <= udp.dst <= 9 && ip4.dst == 192.0.2.0/24",
	}
	w.expectOf("AdminNetworkPolicy//admin", want)
	w.expectOf("BaselineAdminNetworkPolicy//default", map[string]string{
		"ingress/0/ip4": "drop outport == [web.tenant] && ip4 && ip4.src == []",
		"ingress/0/ip6": "drop outport == [web.tenant] && ip6 && ip6.src == []",
	})
	w.expectOf("ClusterNetworkPolicy//cluster", map[string]string{
		"egress/0/ip4": "drop inport == [web.tenant] && ip4 && (1 <= tcp.dst <= 1023 || sctp)",
		"egress/0/ip6": "drop inport == [web.tenant] && ip6 && (1 <= tcp.dst <= 1023 || sctp)",
	})
	priorities := map[string]string{}
	for _, row := range w.Database.Rows("ACL") {
		priorities[fmt.Sprint(row["name"])] = fmt.Sprintf("tier %v priority %v", row["tier"], row["priority"])
	}
	for name, said := range map[string]string{
		"anp/admin/ingress/0/ip4":    "tier 1 priority 29300",
		"anp/admin/ingress/1/ip4":    "tier 1 priority 29299",
		"banp/default/ingress/0/ip4": "tier 3 priority 1800",
		"cnp/cluster/egress/0/ip6":   "tier 3 priority 5000",
	} {
		if priorities[name] != said {
			t.Errorf("%s has %s, want %s", name, priorities[name], said)
		}
	}
	w.condition(anp, &anp.Status.Conditions, "Ready", "True", "")
	w.condition(banp, &banp.Status.Conditions, "Validated", "True", "")
	w.condition(cnp, &cnp.Status.Conditions, "Ready", "True", "")

	first.Stop()
	w.Delete(banp)
	second := w.start()
	w.expectOf("BaselineAdminNetworkPolicy//default", map[string]string{})
	w.expectOf("AdminNetworkPolicy//admin", want)
	_ = second
	w.Change(anp, func() { anp.Spec.Priority = 1000 })
	w.condition(anp, &anp.Status.Conditions, "Validated", "True", "")
	w.Change(anp, func() { anp.Spec.Priority = 1001 })
	w.condition(anp, &anp.Status.Conditions, "Validated", "False", "priority 1001 is out of range: write one from 0 to 1000; until then 1000 applies")
	w.expectOf("AdminNetworkPolicy//admin", want) // at the lowest priority: nothing opens
	w.Change(cnp, func() {
		cnp.Spec.Egress[0].Action, cnp.Spec.Egress[0].Protocols = "Accept", nil
		cnp.Spec.Egress[0].To = []v1alpha2.ClusterNetworkPolicyEgressPeer{{DomainNames: []v1alpha2.DomainName{"example.com"}}}
	})
	w.condition(cnp, &cnp.Status.Conditions, "Validated", "False",
		"egress rule 0, peer 0: this version does not resolve domainNames: write networks")
	w.expectOf("ClusterNetworkPolicy//cluster", map[string]string{})
	w.Delete(anp, cnp)
	w.Eventually(func() string {
		if n := w.rows("Port_Group") + w.rows("Address_Set"); n > 0 {
			return fmt.Sprintf("%d rows are left", n)
		}
		return ""
	})
}

// TestClusterWidePoliciesFollowNodes: policies follow the addresses and labels of nodes. Rows that other clients change are restored.
func TestClusterWidePoliciesFollowNodes(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("default", "web", "app=web")
	w.define("adminnetworkpolicies", "AdminNetworkPolicy", "v1alpha1")
	anp := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nodes"}}
	w.createServed(anp, `{priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{nodes: {matchLabels: {zone: a}}}]}]}`, &anp.Spec)
	w.condition(anp, &anp.Status.Conditions, "Ready", "True", "")
	closed := map[string]string{"egress/0/ip4": "drop inport == [web.default] && ip4 && ip4.dst == 192.0.2.1/32"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}}
	w.Create(node)
	w.Joined("n1", "", "192.0.2.1")
	w.expectOf("AdminNetworkPolicy//nodes", closed)
	w.Database.Transact(nbtest.Op{"op": "update", "table": "ACL", "where": []any{}, "row": map[string]any{"action": "allow"}})
	w.expectOf("AdminNetworkPolicy//nodes", closed)
	w.Change(node, func() { node.Labels["zone"] = "b" })
	w.expectOf("AdminNetworkPolicy//nodes", map[string]string{})
}

// TestGroupsDecideBeforeBaselinePolicies: a baseline policy does not open a pod that is in a security group.
func TestGroupsDecideBeforeBaselinePolicies(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.define("clusternetworkpolicies", "ClusterNetworkPolicy", "v1alpha2")
	w.group("closed", "tier: 1")
	w.pod("default", "free", "app=web")
	closed := w.grouped("closed", "closed")
	w.closedIn(closed, "3")
	policy := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "open"}}
	w.createServed(policy, `
tier: Baseline
priority: 0
subject: {namespaces: {}}
ingress:
- {action: Accept, from: [{namespaces: {}}]}
`, &policy.Spec)
	subjects := func(want string) {
		t.Helper()
		w.Eventually(func() string {
			acls := w.acls("ClusterNetworkPolicy//open")
			if len(acls) == 0 {
				return "no ACLs"
			}
			for key, acl := range acls {
				if !strings.HasPrefix(acl, "allow-related outport == "+want+" && ") {
					return fmt.Sprintf("%s: %s, want the subjects %s", key, acl, want)
				}
			}
			return ""
		})
	}
	subjects("[free.default]")
	w.Change(closed, func() { delete(closed.Annotations, kubeovnv1.AnnotationGroups.Key()) })
	subjects("[closed.default free.default]")
	w.Change(closed, func() { closed.Annotations[kubeovnv1.AnnotationGroups.Key()] = "closed" })
	subjects("[free.default]")
}

// both returns two addresses in the format of contents.
func (w world) both(a, b string) string {
	if a > b {
		a, b = b, a
	}
	return "[" + a + " " + b + "]"
}
