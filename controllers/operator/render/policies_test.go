// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// The API server ends an expression that costs more than 1,000,000. One loop over annotations costs at most 10 for each,
// and a pod can have 87,000 of them.
func TestAnExpressionHasOneLoopOverAnnotationsOfPods(t *testing.T) {
	for _, o := range Policies(defaults()) {
		policy, ok := o.(*admissionv1.ValidatingAdmissionPolicy)
		if !ok || !slices.Contains(policy.Spec.MatchConstraints.ResourceRules[0].Resources, "pods") {
			continue
		}
		for _, v := range policy.Spec.Validations {
			if n := strings.Count(v.Expression, "variables.before.all(") + strings.Count(v.Expression, "variables.after.all("); n > 1 {
				t.Errorf("%s loops %d times over annotations: %s", policy.Name, n, v.Expression)
			}
		}
	}
}

// OLM does not install config/admission/ovncluster_removal.yaml.
func TestTheOperatorGuardsTheOVNClusterToo(t *testing.T) {
	for _, o := range Policies(defaults()) {
		if policy, ok := o.(*admissionv1.ValidatingAdmissionPolicy); ok && policy.Name == RemovalPolicy {
			if !slices.Contains(policy.Spec.MatchConstraints.ResourceRules[0].Resources, "ovnclusters") || !strings.HasPrefix(policy.Spec.MatchConditions[0].Expression, "request.resource.resource == 'ovnclusters' || ") {
				t.Errorf("the policy guards %+v", policy.Spec)
			}
			return
		}
	}
	t.Error("there is no policy " + RemovalPolicy)
}
