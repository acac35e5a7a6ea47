// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// message returns the message of the most important condition: of what needs a person first, then of what is not available, of what is not
// protected, and of what is in progress. A cluster without any of these shows why it is available.
func message(conditions []metav1.Condition) string {
	for _, important := range []struct {
		kind   string
		status metav1.ConditionStatus
	}{
		{v1alpha1.ConditionDegraded, metav1.ConditionTrue},
		{v1alpha1.ConditionAvailable, metav1.ConditionFalse},
		{v1alpha1.ConditionProtected, metav1.ConditionFalse},
		{v1alpha1.ConditionProgressing, metav1.ConditionTrue},
		{v1alpha1.ConditionAvailable, metav1.ConditionTrue},
	} {
		if c := meta.FindStatusCondition(conditions, important.kind); c != nil && c.Status == important.status {
			return c.Message
		}
	}
	return ""
}
