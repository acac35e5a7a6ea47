// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func podAt(uid types.UID, resourceVersion string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "a", UID: uid, ResourceVersion: resourceVersion, Annotations: annotations,
	}}
}

func TestTheLedgerHasTheWritesThatTheCacheDoesNotShowYet(t *testing.T) {
	var l podWrites
	l.set(key("a"), entry{uid: "u1", results: map[string]string{}, resourceVersion: "100", annotations: map[string]string{"k": "written"}})
	for _, c := range []struct {
		what   string
		cached *corev1.Pod
		want   string
	}{
		{"a cache without the patch", podAt("u1", "99", map[string]string{"k": "old"}), "written"},
		{"a successor of the same name", podAt("u2", "98", map[string]string{"k": "other"}), "other"},
		{"a cache with the patch", podAt("u1", "100", map[string]string{"k": "written"}), "written"},
		{"a cache that someone wrote to after the patch", podAt("u1", "101", map[string]string{"k": "damaged"}), "damaged"},
	} {
		if got := l.newest(c.cached).Annotations["k"]; got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
	l.forget(key("a"))
	if len(l.pods) != 0 {
		t.Errorf("a deleted pod has writes: %v", l.pods)
	}
}
