// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestTrimmedPodsKeepWhatTheNetworkIsAbout(t *testing.T) {
	kept := map[string]string{
		"ovn.kubernetes.io/ip_address":              "10.16.0.9",
		"ovn.kubernetes.io/pod_uid":                 "u1",
		"net1.default.ovn.kubernetes.io/ip_address": "10.17.0.9",
		"net2.default.kubernetes.io/logical_switch": "s2",
	}
	pod := func() *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "p", UID: "u1", ResourceVersion: "7", Labels: map[string]string{"app": "web"},
				Annotations: maps.Clone(kept), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
			},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c"}}},
		}
		p.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = "{…}"
		p.Annotations["example.com/note"] = "mine"
		return p
	}
	var trimmed []*corev1.Pod
	for range 2 {
		o, err := trimPod(pod())
		if err != nil {
			t.Fatal(err)
		}
		trimmed = append(trimmed, o.(*corev1.Pod))
	}
	got := trimmed[0]
	if !maps.Equal(got.Annotations, kept) {
		t.Errorf("annotations %v, want %v", got.Annotations, slices.Sorted(maps.Keys(kept)))
	}
	if got.Name != "p" || got.Namespace != "default" || got.UID != "u1" || got.ResourceVersion != "7" || got.Spec.NodeName != "n1" || got.Labels["app"] != "web" {
		t.Errorf("the pod is %+v", got)
	}
	if got.ManagedFields != nil || got.Spec.Containers != nil {
		t.Errorf("the cached pod has fields without a reader: %+v", got)
	}
	if a, b := reflect.ValueOf(got.Labels), reflect.ValueOf(trimmed[1].Labels); a.UnsafePointer() != b.UnsafePointer() {
		t.Error("two pods with the same labels have two copies of them")
	}
}

func TestTrimmedIPsAreTheSame(t *testing.T) {
	spec := kubeovnv1.IPSpec{
		PodName: "p", Namespace: "default", Subnet: "s", NodeName: "n1", IPAddress: "10.16.0.9,fd00::9", V4IPAddress: "10.16.0.9",
		V6IPAddress: "fd00::9", MACAddress: "06:4b:0a:10:00:09", ContainerID: "c", PodType: "StatefulSet",
	}
	o, err := trimIP(&kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: "p.default", UID: "u1", ResourceVersion: "7", Labels: map[string]string{"s": ""}}, Spec: spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := o.(*kubeovnv1.IP); !reflect.DeepEqual(got.Spec, spec) || got.Name != "p.default" || got.UID != "u1" || got.ResourceVersion != "7" {
		t.Errorf("the IP object is %+v", got)
	}
}
