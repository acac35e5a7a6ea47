// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
)

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: name}
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

func TestRequestsFromBeforeTheStartAreKept(t *testing.T) {
	var f requestSource
	f.Add(ctrl.Request{NamespacedName: key("early")})
	q := newQueue(t)
	if err := f.Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	f.Add(ctrl.Request{NamespacedName: key("late")})
	expect(t, "requests", controllertest.Drain(q), "early", "late")
}

func TestWaitingPodsAreWokenByWhatTheyWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pendingPods{available: func(string) float64 { return 0 }}
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
		defer q.ShutDown()
		if err := w.Start(context.Background(), q); err != nil {
			t.Fatal(err)
		}
		w.add(key("a"), "1", &problem{message: "full", subnets: []string{"s1"}})
		w.add(key("b"), "1", &problem{message: "full", subnets: []string{"s1", "s2"}})
		w.add(types.NamespacedName{Namespace: "other", Name: "c"}, "1", &problem{message: "bad annotation"})

		for range 3 {
			w.subnetChanged("s1")
		}
		w.subnetChanged("s3")
		expect(t, "at once", controllertest.Drain(q))
		time.Sleep(2 * wakeDelay)
		expect(t, "after a change of s1", controllertest.Drain(q), "a", "b")

		w.remove(key("b"))
		w.subnetChanged("s2")
		time.Sleep(2 * wakeDelay)
		expect(t, "after a change of s2", controllertest.Drain(q))

		w.wakeNamespace("other")
		expect(t, "after a change of the namespace", controllertest.Drain(q), "c")
		w.wakeAll()
		expect(t, "after a change of any subnet", controllertest.Drain(q), "a", "c")
	})
}

// Each release of an address of a full subnet wakes some of the waiting pods. After a while each of them has been woken once.
func TestPodsOfAFullSubnetAreWokenByAndBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := 0.0
		w := pendingPods{available: func(string) float64 { return free }}
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
		defer q.ShutDown()
		if err := w.Start(context.Background(), q); err != nil {
			t.Fatal(err)
		}
		full := &problem{message: "full", subnets: []string{"s"}, full: true}
		const pods = 3*wokenAtOnce + 1
		for i := range pods {
			w.add(key(fmt.Sprint("p", i)), "1", full)
		}
		taken := &problem{message: "taken", subnets: []string{"s"}}
		w.add(key("static"), "1", taken)
		woken := func() (all []string) {
			for _, name := range controllertest.Drain(q) {
				if all = append(all, name); name == "static" {
					w.add(key(name), "1", taken)
				} else {
					w.add(key(name), "1", full) // still no address
				}
			}
			return all
		}
		w.subnetChanged("s")
		seen := map[string]int{}
		time.Sleep(wakeDelay / 2)
		for round := range 6 {
			time.Sleep(wakeDelay)
			now := woken()
			if want := []int{wokenAtOnce + 1, wokenAtOnce, wokenAtOnce, 1, 0, 0}[round]; len(now) != want {
				t.Errorf("round %d: %d woken, want %d", round, len(now), want)
			}
			for _, name := range now {
				seen[name]++
			}
		}
		for name, n := range seen {
			if n != 1 {
				t.Errorf("%s was woken %d times after one change", name, n)
			}
		}
		if len(seen) != pods+1 {
			t.Errorf("%d of %d were woken", len(seen), pods+1)
		}
		free = 1000 // as after an enlargement of the subnet
		w.subnetChanged("s")
		time.Sleep(2 * wakeDelay)
		if now := woken(); len(now) != pods+1 {
			t.Errorf("%d of %d were woken for a thousand addresses", len(now), pods+1)
		}
	})
}

func TestAWaitingPodIsToldOnceAndTriedAgainOnce(t *testing.T) {
	var w pendingPods
	for _, step := range []struct {
		uid         types.UID
		p           problem
		again, news bool
	}{
		{"1", problem{message: "full", subnets: []string{"s1"}}, true, true},
		{"1", problem{message: "full", subnets: []string{"s1"}}, false, false},
		{"1", problem{message: "taken", subnets: []string{"s1"}}, false, true},
		{"1", problem{message: "taken", subnets: []string{"s1", "s2"}}, true, false},
		{"2", problem{message: "taken", subnets: []string{"s1", "s2"}}, false, true},
		{"2", problem{message: "bad annotation"}, false, true},
	} {
		again, news := w.add(key("a"), step.uid, &step.p)
		if again != step.again || news != step.news {
			t.Errorf("%s %+v: again %t, news %t", step.uid, step.p, again, news)
		}
	}
	w.remove(key("a"))
	if len(w.pods)+len(w.bySubnet) != 0 {
		t.Errorf("left behind: %v %v", w.pods, w.bySubnet)
	}
}

func podAt(uid types.UID, resourceVersion string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "a", UID: uid, ResourceVersion: resourceVersion, Annotations: annotations,
	}}
}

func TestTheLedgerKnowsWhatTheCacheDoesNotShowYet(t *testing.T) {
	var l podWrites
	l.hold(podAt("u1", "5", nil))
	l.wrote(&metav1.PartialObjectMetadata{ObjectMeta: podAt("u1", "100", map[string]string{"k": "written"}).ObjectMeta}, map[string]string{}, specOf{})
	for _, c := range []struct {
		what   string
		cached *corev1.Pod
		want   string
	}{
		{"a cache without the patch", podAt("u1", "99", map[string]string{"k": "old"}), "written"},
		{"a successor of the same name", podAt("u2", "98", map[string]string{"k": "other"}), "other"},
		{"a cache with the patch", podAt("u1", "100", map[string]string{"k": "written"}), "written"},
		{"a cache that someone wrote to after the patch", podAt("u1", "101", map[string]string{"k": "damaged"}), "damaged"},
	} {
		if got := l.newest(c.cached).Annotations["k"]; got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
	if l.holder(key("a")) != "u1" {
		t.Error("the holder is forgotten")
	}
	l.forget(key("a"))
	if uid := l.holder(key("a")); uid != "" {
		t.Errorf("a deleted pod still holds the lease: %s", uid)
	}
}

func TestDifferenceIsWhatOnePatchChanges(t *testing.T) {
	network := kubeovnv1.PodNetwork{
		UID: "u1", Allocated: true, Routed: true, LogicalSwitch: "s1", LogicalRouter: "ovn-cluster",
		Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.2")}, MTU: 1400, NICType: kubeovnv1.PodNICTypeVeth,
	}
	have := maps.Clone(network.Annotations())
	have["mine"] = "untouched"
	if d := difference(have, network.Annotations()); len(d) != 0 {
		t.Errorf("a pod that has it all is patched: %v", d)
	}
	network.MTU = 0
	have[kubeovnv1.AnnotationIPAddress.Key()] = "10.16.0.99"
	delete(have, kubeovnv1.AnnotationRouted.Key())
	d := difference(have, network.Annotations())
	if len(d) != 3 || d[kubeovnv1.AnnotationMTU.Key()] != nil || *d[kubeovnv1.AnnotationIPAddress.Key()] != "10.16.0.2" ||
		*d[kubeovnv1.AnnotationRouted.Key()] != "true" {
		t.Errorf("patch of a damaged pod: %v", d)
	}
	// A user may change a request, or add one, after the cache saw the pod.
	requested := map[string]string{kubeovnv1.AnnotationIPAddress.Key(): "10.16.0.2"}
	d = difference(requested, network.Annotations())
	machine, isSent := d[kubeovnv1.AnnotationMachine.Key()]
	if len(d) != len(results) || *d[kubeovnv1.AnnotationIPAddress.Key()] != "10.16.0.2" || !isSent || machine != nil {
		t.Errorf("the patch that allocates has not every result: %v", d)
	}
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
		if got := onPodNetwork(p); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestExplainSaysWhatToChange(t *testing.T) {
	a := netip.MustParseAddr("10.16.0.9")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"full": {
			fmt.Errorf("allocate: %w", &ipam.ExhaustedError{}),
			"subnet s1 is full, it has no free IPv4 address: delete pods, enlarge its cidrBlock or shorten its excludeIps",
		},
		"taken": {
			fmt.Errorf("allocate: %w", &ipam.TakenError{Address: a, By: "web.shop"}),
			"address 10.16.0.9 is taken by web.shop: ask for another one",
		},
		"no family": {
			fmt.Errorf("allocate: %w", ipam.ErrNoFamily),
			"subnet s1 has no CIDR of the family in annotation ovn.kubernetes.io/ip_family",
		},
		"outside": {
			&ipam.OutsideError{Address: a, Subnet: "s1", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.17.0.0/16")}},
			"address 10.16.0.9 is not one that a port of subnet s1 (10.17.0.0/16) can have: ask for one inside",
		},
		"a failure": {errors.New("connection refused"), ""},
	} {
		if got, _ := explain("s1", c.err); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// noObjects is an empty cache.
type noObjects struct{ client.Client }

func (noObjects) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(corev1.Resource("namespaces"), key.Name)
}

func TestAPodWaitsForItsNamespace(t *testing.T) {
	r := &Reconciler{Client: noObjects{}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "early"}}
	_, err := r.candidates(t.Context(), pod, kubeovnv1.PodRequest{})
	var p *problem
	if !errors.As(err, &p) || !p.quiet {
		t.Fatalf("got %v, want a problem without an event", err)
	}
	q := newQueue(t)
	if err := r.pending.Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if again, _ := r.pending.add(key("early"), pod.UID, p); !again {
		t.Error("the namespace may have come between the try and the listing, but there is no second try")
	}
	if again, _ := r.pending.add(key("early"), pod.UID, p); again {
		t.Error("a pod that is listed is tried again at once")
	}
	r.pending.wakeNamespace("shop")
	expect(t, "the namespace is there", controllertest.Drain(q), "early")
}
