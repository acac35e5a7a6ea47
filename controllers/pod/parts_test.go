// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/k8s"
)

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: name}
}

func portOf(name string) kubeovnv1.Port {
	return kubeovnv1.NewPort("shop", name, kubeovnv1.ProviderOVN)
}

func newQueue(t *testing.T) k8s.Queue {
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	t.Cleanup(q.ShutDown)
	return q
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestRequestsMadeBeforeTheStartAreKept(t *testing.T) {
	var f k8s.RequestSource
	f.AddKey(key("early"))
	q := newQueue(t)
	if err := f.Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	f.AddKey(key("late"))
	expect(t, "requests", controllertest.Drain(q), "early", "late")
}

func TestOnPodNetwork(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"a pod on a node":             {func(*corev1.Pod) {}, true},
		"a running pod":               {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, true},
		"an unknown pod":              {func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }, true},
		"a pod without a node":        {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"a pod on the host's network": {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false},
		"a pod that has succeeded":    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"a pod that has failed":       {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1"}}
		c.change(p)
		if got := allocations.OnPodNetwork(p); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
