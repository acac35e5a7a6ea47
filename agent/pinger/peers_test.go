// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podOn(node string, podIP, hostIP string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-ovn-pinger-" + node},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: podIP, PodIPs: []corev1.PodIP{{IP: podIP}}, HostIPs: []corev1.HostIP{{IP: hostIP}},
		},
	}
}

func TestEveryNodeIsPingedByAsManyOthers(t *testing.T) {
	var pods []corev1.Pod
	for i := range 60 {
		pods = append(pods, podOn(fmt.Sprintf("node-%d", i), fmt.Sprintf("10.16.0.%d", i+2), fmt.Sprintf("192.0.2.%d", i+1)))
	}
	const count = 10
	sources := map[string]int{}
	before := map[string][]Peer{}
	for i := range pods {
		node := pods[i].Spec.NodeName
		before[node] = peers(node, pods, count)
		for _, p := range before[node] {
			if p.Node == node {
				t.Errorf("%s pings itself", node)
			}
			sources[p.Node]++
		}
	}
	for i := range pods {
		if n := sources[pods[i].Spec.NodeName]; n != count {
			t.Errorf("%s is pinged by %d nodes", pods[i].Spec.NodeName, n)
		}
	}
	changed := 0
	pods = append(pods, podOn("new", "10.16.1.2", "192.0.2.100"))
	for node, list := range before {
		if !reflect.DeepEqual(list, peers(node, pods, count)) {
			changed++
		}
	}
	if changed != count {
		t.Errorf("a new node changes the targets of %d nodes", changed)
	}
}

func TestPeersOfSmallClusters(t *testing.T) {
	pods := []corev1.Pod{podOn("a", "10.16.0.2", "192.0.2.1"), podOn("b", "10.16.0.3", "192.0.2.2"), podOn("c", "10.16.0.4", "192.0.2.3")}
	nodes := func(list []Peer) map[string]string {
		out := map[string]string{}
		for _, p := range list {
			out[p.Node] = p.PodIPs[0].String()
		}
		return out
	}
	if got := nodes(peers("a", pods, 10)); !reflect.DeepEqual(got, map[string]string{"b": "10.16.0.3", "c": "10.16.0.4"}) {
		t.Errorf("peers %v", got)
	}
	if got := peers("a", pods, 0); len(got) != 0 {
		t.Errorf("without peers: %v", got)
	}
	newer := podOn("b", "10.16.0.9", "192.0.2.2")
	newer.CreationTimestamp = metav1.NewTime(time.Now())
	ends, waits, failed := podOn("c", "10.16.0.8", "192.0.2.3"), podOn("d", "", "192.0.2.4"), podOn("e", "10.16.0.7", "192.0.2.5")
	ends.DeletionTimestamp, failed.Status.Phase = &newer.CreationTimestamp, corev1.PodFailed
	got := nodes(peers("a", append(pods[:2:2], newer, ends, waits, failed), 10))
	if !reflect.DeepEqual(got, map[string]string{"b": "10.16.0.9"}) {
		t.Errorf("the newest pod of each node that has a network: %v", got)
	}
}
