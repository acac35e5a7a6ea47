// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSelectorsHaveNames(t *testing.T) {
	all, err := Labels(&metav1.LabelSelector{})
	if err != nil || all != "" {
		t.Errorf("the empty selector is %q (%v)", all, err)
	}
	one, err := Labels(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "b", Operator: metav1.LabelSelectorOpIn, Values: []string{"2", "1"}}, {Key: "a", Operator: metav1.LabelSelectorOpExists},
	}})
	if err != nil || one != "a,b in (1,2)" {
		t.Errorf("the selector is %q (%v)", one, err)
	}
	if _, err := Labels(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "b", Operator: "Near"}}}); err == nil {
		t.Error("an operator that does not exist is taken")
	}
	a, b := Selector{Role: Peers, Namespace: "a"}, Selector{Role: Peers, Namespaces: "a"}
	if a.Name() == b.Name() || len(a.Name()) != 20 || strings.ContainsAny(a.Name(), "/.") {
		t.Errorf("names %s and %s", a.Name(), b.Name())
	}
	// Rows in live databases have this name: it never changes.
	if got := a.Name(); got != "611728b2230511dda46c" {
		t.Errorf("the name of %v has become %s", a, got)
	}
}
