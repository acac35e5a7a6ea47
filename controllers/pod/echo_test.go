// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/podset"
)

func TestTheEchoOfAnOwnPatchIsNoNews(t *testing.T) {
	network := kubeovnv1.PodNetwork{UID: "u1", Allocated: true, Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.2")}}.Annotations()
	damaged := maps.Clone(network)
	damaged[kubeovnv1.AnnotationIPAddress.Key()] = "10.16.0.99"
	asked := maps.Clone(network)
	asked[kubeovnv1.AnnotationPortSecurity.Key()] = "true"
	answer := &metav1.PartialObjectMetadata{ObjectMeta: podAt("u1", "100", network).ObjectMeta}
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
			r.podWrites.hold(before)
			r.podWrites.write(before, network, specOf{})
			if c.answered {
				r.podWrites.wrote(answer, network, specOf{})
			}
			before.Spec.NodeName, c.after.Spec.NodeName = "n1", "n1"
			q := newQueue(t)
			r.onPod().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: c.after}, q)
			if got := q.Len() > 0; got != c.news {
				t.Errorf("news: %t", got)
			}
			if !c.answered {
				r.podWrites.wrote(answer, network, specOf{})
			}
			r.podWrites.newest(podAt("u1", "100", network))
			if e := r.podWrites.pods[key("a")]; e.annotations != nil || e.results != nil {
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

// staleClient has a cache that never shows written IP objects, and counts the writes.
type staleClient struct {
	client.Client
	pod            *corev1.Pod
	cached         *kubeovnv1.IP
	posts, patches int
	deletes        int
}

func (c *staleClient) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch o := o.(type) {
	case *corev1.Pod:
		c.pod.DeepCopyInto(o)
		return nil
	case *kubeovnv1.IP:
		if c.cached != nil {
			c.cached.DeepCopyInto(o)
			return nil
		}
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
		c := &staleClient{pod: podAt("u1", "5", nil)}
		c.pod.Spec.NodeName = "n1"
		pods := &Reconciler{Client: c}
		w := &ipObjectWriter{
			client: c, allocator: allocator, retained: &retainedLeases{}, podAt: pods.podAt, typeOf: pods.podTypeOf, done: func(types.NamespacedName) {},
		}
		pass := func() time.Duration {
			result, err := w.Reconcile(t.Context(), ctrl.Request{NamespacedName: key("a")})
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

		c.pod.Spec.NodeName = "n2"
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
