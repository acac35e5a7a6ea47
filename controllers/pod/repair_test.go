// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestAPodWithoutAnAddressIsTriedAgainWhenItsAnnotationsChange(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	pods := map[string]*corev1.Pod{}
	for annotation, value := range map[string]string{
		"ip_address": "10.16.0.300", "mac_address": "02", "logical_switch": "nowhere", "ip_pool": "nowhere", "ip_family": "ipv7", "vip": "nowhere",
		"port_vips": "here", "north_gateway": "up", "routes": "home", "default_route": "maybe", "dhcp-v4-options": "nonsense",
	} {
		p := newPod("default", "p"+string(rune('a'+len(pods))), annotation, value)
		w.Create(p)
		w.warned(p, value)
		pods[annotation] = p
	}
	for annotation, p := range pods {
		w.Get(p)
		w.Change(p, func() { delete(p.Annotations, kubeovnv1.Annotation(annotation).Key()) })
	}
	for _, p := range pods {
		w.allocated(p)
	}
	w.agree(process)
}
