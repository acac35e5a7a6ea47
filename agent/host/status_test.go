// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestConditionFollowsTheNetwork(t *testing.T) {
	r := &Reconciler{}
	node := &corev1.Node{}
	start := time.Now()
	away := Waiting("ovs-vswitchd to make the device ovn0")
	if err := r.status.get(); err == nil {
		t.Error("ready before the first pass")
	}
	for _, step := range []struct {
		name    string
		err     error
		after   time.Duration
		changed bool
		want    corev1.ConditionStatus // empty if nothing is written
	}{
		{"it serves", nil, 0, true, corev1.ConditionFalse},
		{"it still serves", nil, time.Minute, false, ""},
		{"it goes away", away, time.Minute, true, ""},
		{"it is away for a while", away, time.Minute + 10*time.Second, false, ""},
		{"it is away for long", away, time.Minute + conditionGrace, false, corev1.ConditionTrue},
		{"it fails otherwise", errors.New("x"), 2 * time.Minute, true, corev1.ConditionTrue},
		{"it is back", nil, 3 * time.Minute, true, corev1.ConditionFalse},
		{"the problem ends", away, 4 * time.Minute, true, ""},
	} {
		changed, down := r.status.set(step.err, start.Add(step.after))
		got := r.condition(node, step.err, nil, down)
		switch {
		case changed != step.changed:
			t.Errorf("%s: changed is %v", step.name, changed)
		case (got == nil) != (step.want == ""), got != nil && got.Status != step.want:
			t.Errorf("%s: the condition becomes %+v, want %q", step.name, got, step.want)
		case (r.status.get() == nil) != (step.err == nil):
			t.Errorf("%s: ready is %v", step.name, r.status.get())
		}
		if got != nil {
			node.Status.Conditions = []corev1.NodeCondition{*got}
		}
	}
}
