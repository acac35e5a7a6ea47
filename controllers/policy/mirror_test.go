// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestMirrorPodsAreSubjectsAndNoPeers: a policy isolates a pod that a node created, and does not admit it by its labels.
func TestMirrorPodsAreSubjectsAndNoPeers(t *testing.T) {
	w := newWorld(t)
	w.start()
	web, client := w.pod("default", "web", "app=web"), w.pod("default", "client", "app=client")
	fake := newPod("default", "fake", "app=client")
	static := newPod("default", "static", "app=web")
	for _, p := range []*corev1.Pod{fake, static} {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		w.Create(p)
		w.allocated(p)
	}
	np := w.policyOf("default", "web", webFromClients)
	_ = web
	w.expect(np, map[string]string{
		"ingress/default": "drop outport == [static.default web.default] && ip",
		"ingress/0/ip4":   "allow-related outport == [static.default web.default] && ip4 && tcp.dst == 80 && ip4.src == [" + v4(client) + "]",
		"ingress/0/ip6":   "allow-related outport == [static.default web.default] && ip6 && tcp.dst == 80 && ip6.src == [" + v6(client) + "]",
	})
}
