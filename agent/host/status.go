// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// conditionGrace is how long the network may be down, as during a restart of Open vSwitch, before the node's condition reports it: the
// condition keeps new pods off the node.
const conditionGrace = 30 * time.Second

// Reasons of the node condition NetworkUnavailable.
const (
	ReasonServing    = "JoinInterfaceServing"
	ReasonNotServing = "JoinInterfaceNotServing"
)

// status is the result of the last pass.
type status struct {
	mu     sync.Mutex
	passed bool
	err    error
	since  time.Time // the first of the consecutive failures
}

// set records the result of a pass. It returns whether it differs from the previous one, and for how long the network has been down.
func (s *status) set(err error, now time.Time) (changed bool, down time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = !s.passed || describe(err) != describe(s.err)
	switch {
	case err == nil:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = now
	}
	s.passed, s.err = true, err
	if err != nil {
		down = now.Sub(s.since)
	}
	return changed, down
}

func (s *status) get() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.passed {
		return Waiting("the first pass over the node's network")
	}
	return s.err
}

// condition returns the new NetworkUnavailable condition of the node. It returns nil if the present condition is right, or the network
// has been down for less than conditionGrace. Until then, a new node keeps the condition it was registered with. Partial errors are in
// the message.
func (r *Reconciler) condition(node *corev1.Node, err, partial error, down time.Duration) *corev1.NodeCondition {
	want := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: ReasonServing,
		Message: JoinInterface + " is connected and its flows are installed",
	}
	switch {
	case err != nil && down < conditionGrace:
		return nil
	case err != nil:
		want.Status, want.Reason, want.Message = corev1.ConditionTrue, ReasonNotServing, err.Error()
	case partial != nil:
		want.Message += ", but: " + words(partial)
	}
	for _, have := range node.Status.Conditions {
		if have.Type == want.Type && have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message {
			return nil
		}
	}
	return &want
}

// words returns the messages of joined errors in sorted order, so that the text is the same in every pass.
func words(err error) string {
	return strings.Join(slices.Sorted(strings.SplitSeq(err.Error(), "\n")), "; ")
}

// report writes one condition of the node and keeps the others, which the kubelet owns.
func (r *Reconciler) report(ctx context.Context, node *corev1.Node, condition corev1.NodeCondition) error {
	now := metav1.Now()
	condition.LastHeartbeatTime, condition.LastTransitionTime = now, now
	after := node.DeepCopy()
	after.Status.Conditions = nil
	for _, have := range node.Status.Conditions {
		if have.Type != condition.Type {
			after.Status.Conditions = append(after.Status.Conditions, have)
			continue
		}
		if have.Status == condition.Status {
			condition.LastTransitionTime = have.LastTransitionTime
		}
	}
	after.Status.Conditions = append(after.Status.Conditions, condition)
	if err := r.Client.Status().Patch(ctx, after, client.StrategicMergeFrom(node)); err != nil {
		return fmt.Errorf("set condition %s of node %s: %w", condition.Type, node.Name, err)
	}
	return nil
}
