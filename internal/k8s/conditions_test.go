// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/validation"
)

func TestReady(t *testing.T) {
	waiting := errors.New("waiting")
	for _, tt := range []struct {
		name   string
		err    error
		status metav1.ConditionStatus
		reason string
	}{
		{"applied", nil, metav1.ConditionTrue, kubeovnv1.ReasonApplied},
		{"waiting for another", fmt.Errorf("apply: %w", waiting), metav1.ConditionFalse, kubeovnv1.ReasonWaiting},
		{"failed", errors.New("broken"), metav1.ConditionFalse, kubeovnv1.ReasonFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if c := k8s.Ready(tt.err, waiting); c.Status != tt.status || c.Reason != tt.reason {
				t.Errorf("condition %+v", c)
			}
		})
	}
}

// TestReadyNamesTheCause: users read the condition Ready first, and tenants may not be able to read other objects.
func TestReadyNamesTheCause(t *testing.T) {
	waiting := errors.New("waiting for a row of another owner")
	err := errors.Join(fmt.Errorf("apply: %w: VPC a does not exist", waiting), fmt.Errorf("%w: no address", waiting))
	if c := k8s.Ready(err, waiting); c.Message != "apply: VPC a does not exist\nno address" {
		t.Errorf("the message of an object that waits is %q", c.Message)
	}
	problem := validation.Problemf(validation.ReasonCIDRInvalid, "cidrBlock is wrong")
	if c := k8s.NotValid(problem); c.Type != kubeovnv1.ConditionReady || c.Reason != validation.ReasonCIDRInvalid || c.Message != problem.Message {
		t.Errorf("an invalid object is not ready because of %s: %s", c.Reason, c.Message)
	}
	var list []metav1.Condition
	for _, tt := range []struct {
		generation int64
		want       string
	}{{1, "subnet s is not validated yet"}, {2, "subnet s is not valid: cidrBlock is wrong"}, {3, "subnet s is not validated yet"}} {
		if got := k8s.WhyNotValid("subnet s", list, tt.generation); got != tt.want {
			t.Errorf("generation %d: %q, want %q", tt.generation, got, tt.want)
		}
		k8s.SetConditions(&list, 2, k8s.Validated(problem))
	}
}

func TestConditionsAreOfAGeneration(t *testing.T) {
	var list []metav1.Condition
	k8s.SetConditions(&list, 2, k8s.Validated(nil), metav1.Condition{
		Type: kubeovnv1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Long", Message: strings.Repeat("x", 40000),
	})
	if !k8s.IsTrue(list, kubeovnv1.ConditionValidated, 2) || k8s.IsTrue(list, kubeovnv1.ConditionValidated, 3) {
		t.Errorf("Validated holds for another generation than its own: %+v", list[0])
	}
	if n := len(list[1].Message); n != 32768 {
		t.Errorf("a message of %d bytes was kept", n)
	}
	before := append([]metav1.Condition(nil), list...)
	k8s.SetConditions(&list, 3, k8s.Validated(nil))
	if !k8s.SameMessage(before, list, kubeovnv1.ConditionValidated) {
		t.Error("a new generation alone is news")
	}
}

func TestUnless(t *testing.T) {
	waiting, broken := errors.New("waiting"), errors.New("broken")
	for _, tt := range []struct {
		name     string
		err      error
		answered bool
	}{
		{"none", nil, true},
		{"answered", fmt.Errorf("apply: %w", waiting), true},
		{"another", fmt.Errorf("apply: %w", broken), false},
		{"answered, with its cause", fmt.Errorf("apply: %w", fmt.Errorf("%w: %w", waiting, broken)), true},
		{"two answered ones", errors.Join(waiting, fmt.Errorf("apply: %w", waiting)), true},
		{"one of two", errors.Join(fmt.Errorf("a: %w", waiting), broken), false},
		{"one of two, wrapped", fmt.Errorf("apply: %w", errors.Join(broken, fmt.Errorf("a: %w", waiting))), false},
	} {
		if got := k8s.Unless(tt.err, waiting); got != nil && !errors.Is(got, tt.err) || (got == nil) != tt.answered {
			t.Errorf("%s: got %v, want answered: %v", tt.name, got, tt.answered)
		}
	}
}
