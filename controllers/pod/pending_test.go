// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
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
)

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
