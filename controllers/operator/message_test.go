// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheMessageIsThatOfTheMostImportantCondition(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Message: kind + " is " + string(status)}
	}
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	tests := []struct {
		name                                        string
		available, progressing, degraded, protected metav1.ConditionStatus
		want                                        string
	}{
		{"all is well", yes, no, no, yes, "Available is True"},
		{"an upgrade", yes, yes, no, yes, "Progressing is True"},
		{"the installation", no, yes, no, yes, "Available is False"},
		{"a member is lost", yes, no, yes, yes, "Degraded is True"},
		{"an upgrade has stopped", no, yes, yes, no, "Degraded is True"},
		{"a policy is missing", yes, yes, no, no, "Protected is False"},
		{"no database answers", "Unknown", "Unknown", "Unknown", "Unknown", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := message([]metav1.Condition{
				condition("Available", tt.available), condition("Progressing", tt.progressing), condition("Degraded", tt.degraded), condition("Protected", tt.protected),
			})
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if got := message(nil); got != "" {
		t.Errorf("a cluster without conditions: %q", got)
	}
}
