// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package allocations

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The cache lists pods in random order.
func TestRunnersOfAMachineHaveOneOrder(t *testing.T) {
	pod := func(name string, created int64, migration string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(created, 0)}}
		if migration != "" {
			p.Labels = map[string]string{labelMigration: migration}
		}
		return p
	}
	want := []string{"old", "a", "b", "target"}
	pods := []*corev1.Pod{pod("target", 2, "m"), pod("b", 2, ""), pod("a", 2, ""), pod("old", 1, "n")}
	for range 2 {
		slices.SortFunc(pods, CompareRunners)
		for i, p := range pods {
			if p.Name != want[i] {
				t.Errorf("pod %d is %s, want %s", i, p.Name, want[i])
			}
		}
		slices.Reverse(pods)
	}
}
