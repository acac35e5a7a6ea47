// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trim

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestTrimmedPodsKeepTheFieldsOfTheNetwork(t *testing.T) {
	kept := map[string]string{
		"ovn.kubernetes.io/ip_address":              "10.16.0.9",
		"ovn.kubernetes.io/pod_uid":                 "u1",
		"net1.default.ovn.kubernetes.io/ip_address": "10.17.0.9",
		"net2.default.kubernetes.io/logical_switch": "s2",
		"kubernetes.io/ingress-bandwidth":           "10M",
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
	static := pod()
	static.Annotations[corev1.MirrorPodAnnotationKey] = "hash"
	if o, err := trimPod(static); err != nil || !kubeovnv1.IsMirror(o.(*corev1.Pod).Annotations) {
		t.Errorf("a mirror pod cannot be recognized: %v %v", static.Annotations, err)
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

// The IP objects of nodes hold their addresses in annotations.
func TestTrimmedIPsOfNodesKeepTheirAddresses(t *testing.T) {
	ip := func(namespace string) *kubeovnv1.IP {
		return &kubeovnv1.IP{
			ObjectMeta: metav1.ObjectMeta{Name: "node-a", Annotations: map[string]string{
				kubeovnv1.AnnotationNodeAddresses.Key(): "192.0.2.1", "example.com/note": "mine",
			}},
			Spec: kubeovnv1.IPSpec{Namespace: namespace, NodeName: "a"},
		}
	}
	for namespace, want := range map[string]map[string]string{"": {kubeovnv1.AnnotationNodeAddresses.Key(): "192.0.2.1"}, "shop": nil} {
		if o, err := trimIP(ip(namespace)); err != nil || !maps.Equal(o.(*kubeovnv1.IP).Annotations, want) {
			t.Errorf("in namespace %q: %v, %v", namespace, o.(*kubeovnv1.IP).Annotations, err)
		}
	}
}

func TestTrimmedNodesHaveFewAddresses(t *testing.T) {
	since := metav1.Now()
	node := &corev1.Node{Status: corev1.NodeStatus{
		Addresses: make([]corev1.NodeAddress, 5000),
		Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: since, LastHeartbeatTime: since, Message: "silent"}, {Type: corev1.NodeDiskPressure},
		},
	}}
	o, err := trimNode(node)
	if err != nil {
		t.Fatal(err)
	}
	got := o.(*corev1.Node).Status
	if len(got.Addresses) != maxNodeAddresses || cap(got.Addresses) > 2*maxNodeAddresses {
		t.Errorf("%d addresses in a slice of %d", len(got.Addresses), cap(got.Addresses))
	}
	want := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: since}}
	if !reflect.DeepEqual(got.Conditions, want) {
		t.Errorf("conditions %v, want %v", got.Conditions, want)
	}
}
