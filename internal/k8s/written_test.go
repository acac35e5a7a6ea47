// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAWaitEndsWhenItsWriteIsDropped simulates a restore of etcd from a backup: resource versions continue from older
// ones.
func TestAWaitEndsWhenItsWriteIsDropped(t *testing.T) {
	now := time.Now()
	v := versions{now: func() time.Time { return now }}
	object := func(version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: version}}
	}
	v.add(object("1000"))
	if !v.newerThan(object("900")) || v.newerThan(object("1000")) {
		t.Error("a cache that is behind is believed, or one that is not is not")
	}
	now = now.Add(believedFor)
	if v.newerThan(object("900")) {
		t.Error("the written state is still waited for")
	}
	v.add(object("901"))
	if !v.newerThan(object("900")) {
		t.Error("of the next write nothing is known")
	}
}
