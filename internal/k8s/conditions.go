// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package k8s contains what reconcilers of the controller, the operator and the agents share: minimal patches, conditions, events, requests, pauses
// between attempts, and views of objects.
package k8s

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/validation"
)

// maxMessage is the longest message of a condition (metav1.Condition).
const maxMessage = 32768

// SetConditions sets conditions with the object's generation as observed, and keeps the other conditions.
func SetConditions(list *[]metav1.Condition, generation int64, conditions ...metav1.Condition) {
	for _, c := range conditions {
		c.ObservedGeneration = generation
		c.Message = c.Message[:min(len(c.Message), maxMessage)]
		apimeta.SetStatusCondition(list, c)
	}
}

// IsTrue reports whether a condition is True for this generation of its object.
func IsTrue(list []metav1.Condition, conditionType string, generation int64) bool {
	c := apimeta.FindStatusCondition(list, conditionType)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == generation
}

// Ready returns the Ready condition after an attempt to apply an object that ended with err. waiting is the error of an attempt
// that has to wait for another object.
func Ready(err, waiting error) metav1.Condition {
	switch {
	case err == nil:
		return metav1.Condition{Type: kubeovnv1.ConditionReady, Status: metav1.ConditionTrue, Reason: kubeovnv1.ReasonApplied, Message: "applied"}
	case errors.Is(err, waiting):
		return NotReady(kubeovnv1.ReasonWaiting, strings.ReplaceAll(err.Error(), waiting.Error()+": ", "")) // the reason says that it waits
	}
	return NotReady(kubeovnv1.ReasonFailed, err.Error())
}

// ReadyFor returns the Ready condition of an applied object that binds namespaces. Its message has that of the condition PodsPlaced if the object has
// no effect for pods or namespaces.
func ReadyFor(conditions []metav1.Condition) metav1.Condition {
	ready := Ready(nil, nil)
	if placed := apimeta.FindStatusCondition(conditions, kubeovnv1.ConditionPodsPlaced); placed != nil && placed.Reason != kubeovnv1.ReasonPlaced {
		ready.Message += ", but " + placed.Message
	}
	return ready
}

// NotReady returns the Ready condition of an object that is not applied.
func NotReady(reason, message string) metav1.Condition {
	return metav1.Condition{Type: kubeovnv1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// NotValid returns the Ready condition of an object with an invalid spec: it has the cause of the condition Validated.
func NotValid(problem *validation.Problem) metav1.Condition {
	return NotReady(problem.Reason, problem.Message)
}

// WhyNotValid returns the cause for users of an object that waits for another one, because its current spec is not valid, or not validated
// yet. what names the other object.
func WhyNotValid(what string, conditions []metav1.Condition, generation int64) string {
	c := apimeta.FindStatusCondition(conditions, kubeovnv1.ConditionValidated)
	if c == nil || c.Status != metav1.ConditionFalse || c.ObservedGeneration != generation {
		return what + " is not validated yet"
	}
	return what + " is not valid: " + c.Message
}

// WhyNotReady returns the message of the condition Ready if it is False for the current generation. known is false before an object has the
// condition for this generation: it may have been created together with an object that waits for it.
func WhyNotReady(conditions []metav1.Condition, generation int64) (why string, known bool) {
	c := apimeta.FindStatusCondition(conditions, kubeovnv1.ConditionReady)
	if c == nil || c.ObservedGeneration != generation {
		return "", false
	}
	if c.Status != metav1.ConditionFalse {
		return "", true
	}
	return c.Message, true
}

// Validated returns the condition of a checked spec; problem is nil if the spec is valid.
func Validated(problem *validation.Problem) metav1.Condition {
	if problem != nil {
		return metav1.Condition{
			Type:    kubeovnv1.ConditionValidated,
			Status:  metav1.ConditionFalse,
			Reason:  problem.Reason,
			Message: problem.Message,
		}
	}
	return metav1.Condition{
		Type:    kubeovnv1.ConditionValidated,
		Status:  metav1.ConditionTrue,
		Reason:  kubeovnv1.ReasonValid,
		Message: "nothing is wrong with the spec",
	}
}

// FieldsSupported returns the condition that lists the fields in use that have no effect in this version.
func FieldsSupported(ignored []string) metav1.Condition {
	if len(ignored) == 0 {
		return metav1.Condition{
			Type:    kubeovnv1.ConditionFieldsSupported,
			Status:  metav1.ConditionTrue,
			Reason:  kubeovnv1.ReasonAllInForce,
			Message: "every field in use has its effect",
		}
	}
	return metav1.Condition{
		Type:    kubeovnv1.ConditionFieldsSupported,
		Status:  metav1.ConditionFalse,
		Reason:  kubeovnv1.ReasonFieldsIgnored,
		Message: "without effect in this version: " + strings.Join(ignored, ", "),
	}
}

// Unless returns err, or nil if err is answered: an error that is handled otherwise and needs no retry. Joined errors are answered if each of
// them is.
func Unless(err, answered error) error {
	if isAnswered(err, answered) {
		return nil
	}
	return err
}

func isAnswered(err, answered error) bool {
	var joined interface {
		error
		Unwrap() []error
	}
	if !errors.As(err, &joined) {
		return errors.Is(err, answered)
	}
	parts := joined.Unwrap()
	// fmt.Errorf("%w: %w", answered, cause) names the cause of the answered error.
	return slices.Contains(parts, answered) || !slices.ContainsFunc(parts, func(part error) bool { return !isAnswered(part, answered) })
}

// SameMessage reports whether a condition has the same status, reason and message in both lists, so that another event would add
// nothing.
func SameMessage(before, after []metav1.Condition, conditionType string) bool {
	a, b := apimeta.FindStatusCondition(before, conditionType), apimeta.FindStatusCondition(after, conditionType)
	if a == nil || b == nil {
		return a == b
	}
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// Some returns a text with the first items, at most so many, and the number of the others.
func Some[T any](items []T, most int) string {
	texts := make([]string, 0, most+1)
	for i, item := range items {
		if i == most {
			texts = append(texts, fmt.Sprintf("and %d more", len(items)-most))
			break
		}
		texts = append(texts, fmt.Sprint(item))
	}
	return strings.Join(texts, ", ")
}
