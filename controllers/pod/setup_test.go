// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/podset"
)

func TestTheEchoOfAnOwnPatchIsNoNews(t *testing.T) {
	network := kubeovnv1.PodNetwork{UID: "u1", Allocated: true, Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.2")}}.Annotations()
	damaged := maps.Clone(network)
	damaged[kubeovnv1.AnnotationIPAddress.Key()] = "10.16.0.99"
	asked := maps.Clone(network)
	asked[kubeovnv1.AnnotationPortSecurity.Key()] = "true"
	for name, c := range map[string]struct {
		answered bool
		after    *corev1.Pod
		news     bool
	}{
		"the echo after the answer":      {true, podAt("u1", "100", network), false},
		"the echo before the answer":     {false, podAt("u1", "100", network), false},
		"a change after it":              {true, podAt("u1", "101", damaged), true},
		"a request of the user with it":  {true, podAt("u1", "101", asked), true},
		"a pod of the same name":         {true, podAt("u2", "101", network), true},
		"an older change of the results": {false, podAt("u1", "99", damaged), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{Sets: podset.New()}
			before := podAt("u1", "98", nil)
			write := entry{uid: "u1", results: network, provider: kubeovnv1.ProviderOVN}
			r.podWrites.set(key("a"), write)
			answer := write
			answer.resourceVersion, answer.annotations = "100", network
			if c.answered {
				r.podWrites.set(key("a"), answer)
			}
			before.Spec.NodeName, c.after.Spec.NodeName = "n1", "n1"
			q := newQueue(t)
			r.onPod().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: c.after}, q)
			if got := q.Len() > 0; got != c.news {
				t.Errorf("news: %t", got)
			}
			if !c.answered {
				r.podWrites.set(key("a"), answer)
			}
			r.podWrites.newest(podAt("u1", "100", network))
			if e, kept := r.podWrites.pods[key("a")]; kept {
				t.Errorf("kept for good: %+v", e)
			}
		})
	}
}

// A standby drops a pod's measurement when another process connects the pod.
func TestAStandbyMeasuresNothing(t *testing.T) {
	r := &Reconciler{Sets: podset.New()}
	q := newQueue(t)
	before := podAt("u1", "1", nil)
	before.Spec.NodeName = "n1"
	after := before.DeepCopy()
	after.Annotations = kubeovnv1.PodNetwork{UID: "u1", Allocated: true}.Annotations()
	r.onPod().Create(t.Context(), event.CreateEvent{Object: before}, q)
	if len(r.latencies.pods) != 1 {
		t.Error("a new pod is not on its way")
	}
	r.onPod().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, q)
	if len(r.latencies.pods) != 0 {
		t.Errorf("on their way: %v", r.latencies.pods)
	}
}

// At the start all pods are in the initial list.
func TestPodsWithoutANetworkComeFirst(t *testing.T) {
	r := &Reconciler{Sets: podset.New()}
	q := priorityqueue.New[ctrl.Request](t.Name())
	defer q.ShutDown()
	for _, name := range []string{"old1", "old2", "new1", "old3", "new2"} {
		pod := podAt(types.UID(name), "1", nil)
		pod.Name, pod.Spec.NodeName = name, "n1"
		if name[:3] == "old" {
			pod.Annotations = kubeovnv1.PodNetwork{UID: pod.UID, Allocated: true}.Annotations()
		}
		r.onPod().Create(t.Context(), event.CreateEvent{Object: pod, IsInInitialList: true}, q)
	}
	host := podAt("host", "1", nil)
	host.Spec.NodeName, host.Spec.HostNetwork = "n1", true
	r.onPod().Create(t.Context(), event.CreateEvent{Object: host, IsInInitialList: true}, q)
	var order []string
	for q.Len() > 0 {
		req, _ := q.Get()
		order = append(order, req.Name)
	}
	if want := []string{"new1", "new2", "old1", "old2", "old3"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}
