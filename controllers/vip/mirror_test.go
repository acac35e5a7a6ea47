// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vip_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// TestAMirrorPodSharesNoVip: a node's own pod names a Vip, and has the labels that another Vip selects.
func TestAMirrorPodSharesNoVip(t *testing.T) {
	w := newWorld(t)
	w.start()
	named := w.vip("named")
	selecting := w.vip("selecting", func(s *kubeovnv1.VipSpec) { s.Namespace, s.Selector = "default", []string{"app:web"} })
	w.ready(named)
	w.ready(selecting)
	ordinary, mirror := newPod("ordinary", "aaps", "named"), newPod("mirror", "aaps", "named")
	mirror.Annotations[corev1.MirrorPodAnnotationKey] = "hash"
	for _, p := range []*corev1.Pod{mirror, ordinary} {
		p.Labels = map[string]string{"app": "web"}
		w.Create(p)
		w.published(p)
	}
	w.parents(named, "ordinary.default")
	w.parents(selecting, "ordinary.default")
}
