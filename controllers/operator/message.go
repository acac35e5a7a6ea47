// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// message returns the message of the first of these conditions that has the given status. Degraded comes first because an administrator has to act;
// Available=True comes last and is the message of a cluster without problems.
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
