// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/kiln-net/kiln/internal/k8s"
)

func TestChangedLooksAtTheViewOnly(t *testing.T) {
	p := k8s.Changed(func(n *corev1.Node) string { return n.Labels["a"] })
	node := func(label string, generation int64) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Generation: generation, Labels: map[string]string{"a": label}}}
	}
	if p.Update(event.UpdateEvent{ObjectOld: node("x", 1), ObjectNew: node("x", 2)}) {
		t.Error("a change outside of the view passes")
	}
	if !p.Update(event.UpdateEvent{ObjectOld: node("x", 1), ObjectNew: node("y", 1)}) {
		t.Error("a change of the view does not pass")
	}
}
