// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippool_test

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// waits checks that a pod has no address, but an event with the reason.
func (w world) waits(p *corev1.Pod, why string) {
	w.Helper()
	w.Event(p, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: "AcquireAddressFailed", Note: why})
	if w.Get(p); p.Annotations["ovn.kubernetes.io/ip_address"] != "" {
		w.Fatalf("pod %s has %s", p.Name, p.Annotations["ovn.kubernetes.io/ip_address"])
	}
}

func TestAPodOfAPoolWithoutAddressesLeftWaits(t *testing.T) {
	w := newWorld(t)
	w.Subnet("shop", func(s *kubeovnv1.SubnetSpec) {
		s.CIDRBlock, s.ExcludeIPs = "10.17.0.0/24", []string{"10.17.0.20..10.17.0.29"}
	})
	pool := &kubeovnv1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "excluded"},
		Spec:       kubeovnv1.IPPoolSpec{Subnet: "shop", IPs: []string{"10.17.0.20"}},
	}
	w.Create(pool)
	w.start()
	w.Ready(pool)
	p := w.pod("p", "ip_pool", "excluded")
	w.waits(p, "no free address of family IPv4 in IPPool excluded")
	w.Change(pool, func() { pool.Spec.IPs = []string{"10.17.0.20", "10.17.0.40"} })
	w.has(p, "10.17.0.40")
}

// Pods of a namespace with pools get addresses of these pools only, of the oldest pool first. The names of the pools sort the other way round.
func TestPodsOfANamespaceWithPoolsGetNoOtherAddresses(t *testing.T) {
	w := newWorld(t)
	w.start()
	older := w.pool("z-older", []string{"default"}, "10.16.0.40")
	w.Ready(older)
	time.Sleep(1100 * time.Millisecond) // creation timestamps have a resolution of one second
	newer := w.pool("a-newer", []string{"default"}, "10.16.0.41")
	w.Ready(newer)
	first := w.pod("first")
	w.has(first, "10.16.0.40")
	w.has(w.pod("second"), "10.16.0.41")
	third := w.pod("third")
	w.waits(third, "no free address of family IPv4 in IPPool z-older, a-newer")
	w.Delete(first)
	w.has(third, "10.16.0.40")
}

// A pod of a StatefulSet gets the address of the list at its ordinal, and keeps it; a list that is too short is reported.
func TestAListOfAddressesOfAStatefulSet(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(4)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
			},
		},
	}
	w.Create(set)
	replica := func(name, list string) *corev1.Pod {
		p := newPod(name, "ip_pool", list)
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
		w.Create(p)
		return p
	}
	const list = "10.16.0.50,10.16.0.51,10.16.0.52"
	two := replica("db-2", list) // created out of order
	w.has(two, "10.16.0.52")
	zero := replica("db-0", list)
	w.has(zero, "10.16.0.50")
	w.has(replica("db-1", list), "10.16.0.51")
	three := replica("db-3", list)
	w.waits(three, "lists 3 addresses, and none for ordinal 3")
	w.Delete(three)
	w.has(replica("db-3", list+",10.16.0.53"), "10.16.0.53")

	for _, restart := range []bool{false, true} {
		w.Delete(two)
		if restart {
			process.Stop()
			process = w.start()
		}
		two = replica("db-2", list)
		w.has(two, "10.16.0.52")
	}
}
