// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import admissionv1 "k8s.io/api/admissionregistration/v1"

// PolicySubjectsName is the name of the policy for subjects of cluster-wide policies.
const PolicySubjectsName = "kiln-policy-subjects"

// policySubjects denies cluster-wide policies whose subject has a label selector that cannot be read: such a policy has no subjects, so that
// a change to it would open everything that the policy closes. The schema of these kinds does not check selectors. Peers need no check: a
// deny rule with an unreadable peer denies everything, and another rule allows nothing. An error in an expression denies nothing.
func policySubjects() policy {
	const (
		isKey   = `matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')`
		isValue = `matches('^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$')`
	)
	return policy{
		name: PolicySubjectsName, app: ControllerName, informs: true,
		group: "policy.networking.k8s.io", resources: []string{"adminnetworkpolicies", "baselineadminnetworkpolicies", "clusternetworkpolicies"},
		operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		when:       "oldObject == null || dyn(object).?spec.?subject != dyn(oldObject).?spec.?subject",
		variables: []admissionv1.Variable{
			{Name: "subject", Expression: "dyn(object).?spec.?subject.orValue({})"},
			{Name: "selectors", Expression: "[?dyn(variables.subject).?namespaces, ?dyn(variables.subject).?pods.?namespaceSelector, " +
				"?dyn(variables.subject).?pods.?podSelector]"},
			{Name: "labels", Expression: "variables.selectors.map(s, s.?matchLabels.orValue({}))"},
			{Name: "terms", Expression: "variables.selectors.map(s, s.?matchExpressions.orValue([]))"},
		},
		validations: []admissionv1.Validation{{
			Expression: "variables.labels.all(l, l.all(k, string(k)." + isKey + " && string(l[k])." + isValue + ")) && variables.terms.all(t, t.all(e, " +
				"string(e.key)." + isKey + " && (e.operator in ['In', 'NotIn'] ? e.?values.orValue([]).size() > 0 && e.values.all(v, string(v)." + isValue + ") : " +
				"e.operator in ['Exists', 'DoesNotExist'] && e.?values.orValue([]).size() == 0)))",
			Message: "a label selector of the subject cannot be read, so that the policy would apply to no pod: write the operators In and NotIn with values, " +
				"Exists and DoesNotExist without, and keys and values of labels",
		}},
	}
}
