// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
)

// The source of IP objects and the source that lists stale objects start at the same time. An IP object that is created in between is in the
// initial list of the first, but not in the list of the second.
func TestAnIPObjectBetweenTheTwoListsIsReconciled(t *testing.T) {
	reservation := &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: "db.default"},
		Spec:       kubeovnv1.IPSpec{PodName: "db", Namespace: "default", Subnet: "ovn-default", V4IPAddress: "10.16.0.40"},
	}
	for _, c := range []struct {
		name             string
		complete, listed bool // staleObjects has started; the event is part of the initial list
		want             int
	}{
		{"of the initial list, before staleObjects", false, true, 0},
		{"of the initial list, after staleObjects", true, true, 1},
		{"created later", true, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &ipObjectWriter{allocator: ipam.New()}
			r.complete.Store(c.complete)
			q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
			defer q.ShutDown()
			r.onIP().Create(t.Context(), event.TypedCreateEvent[client.Object]{Object: reservation, IsInInitialList: c.listed}, q)
			if q.Len() != c.want {
				t.Errorf("%d requests, want %d", q.Len(), c.want)
			}
		})
	}
}
