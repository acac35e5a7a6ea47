// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipobject

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
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
			r := &Writer{Allocator: ipam.New(), Allocations: &held{}}
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

// staleClient has a cache that never shows written IP objects, and counts the writes.
type staleClient struct {
	client.Client
	cached         *kubeovnv1.IP
	posts, patches int
	deletes        int
}

func (c *staleClient) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if c.cached != nil {
		c.cached.DeepCopyInto(o.(*kubeovnv1.IP))
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (c *staleClient) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	c.posts++
	o.SetUID("ip1")
	o.SetResourceVersion("100")
	return nil
}

func (c *staleClient) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	c.patches++
	o.SetResourceVersion("101")
	return nil
}

func (c *staleClient) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	c.deletes++
	return nil
}

func (c *staleClient) expect(t *testing.T, when string, posts, patches, deletes int) {
	t.Helper()
	if c.posts != posts || c.patches != patches || c.deletes != deletes {
		t.Errorf("%s: %d POST, %d PATCH, %d DELETE", when, c.posts, c.patches, c.deletes)
	}
}

// held are allocations that a pod has.
type held struct{ pod *corev1.Pod }

func (h *held) Want(_ context.Context, _ string, _ *kubeovnv1.IP, allocation ipam.Allocation) (*kubeovnv1.IP, error) {
	return OfPod(kubeovnv1.NewPort(h.pod.Namespace, h.pod.Name, kubeovnv1.ProviderOVN), h.pod.Spec.NodeName, "", allocation), nil
}

func (*held) Obstacle(string) string       { return "" }
func (*held) Decide(string, *kubeovnv1.IP) {}
func (*held) IsAbsent(string) bool         { return false }
func (*held) Recorded(string)              {}

func TestAStaleCacheCausesNoSecondWriteOfAnIPObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		allocator := ipam.New()
		cidrs := []netip.Prefix{netip.MustParsePrefix("10.16.0.0/24")}
		if err := allocator.SetSubnet("s1", ipam.Subnet{CIDRs: cidrs}); err != nil {
			t.Fatal(err)
		}
		if _, err := allocator.Allocate("a.shop", ipam.Request{Subnet: "s1"}); err != nil {
			t.Fatal(err)
		}
		c := &staleClient{}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}, Spec: corev1.PodSpec{NodeName: "n1"}}
		w := &Writer{
			Client: c, Allocator: allocator, Allocations: &held{pod: pod},
		}
		pass := func() time.Duration {
			result, err := w.Reconcile(t.Context(), requestFor("a.shop"))
			if err != nil {
				t.Fatal(err)
			}
			return result.RequeueAfter
		}
		pass()
		again := pass()
		c.expect(t, "a second pass", 1, 0, 0)

		time.Sleep(again)
		pass()
		c.expect(t, "after the time that a cache can lag", 2, 0, 0)

		pod.Spec.NodeName = "n2"
		pass()
		pass()
		c.expect(t, "a pod of the same name elsewhere", 2, 1, 0)

		c.cached = &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "a.shop", UID: "ip1", ResourceVersion: "100"}}
		allocator.Release("a.shop")
		pass()
		pass()
		c.expect(t, "a deleted pod", 2, 1, 1)

		c.cached = nil
		pass()
		if len(w.writes.ips) != 0 {
			t.Errorf("kept for good: %v", w.writes.ips)
		}
	})
}
