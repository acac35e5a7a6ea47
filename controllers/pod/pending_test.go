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
	"github.com/kiln-net/kiln/controllers/pod/address"
)

func TestWaitingPodsAreWokenByTheObjectsTheyNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w pendingPorts
		w.pace(func(string) float64 { return 0 })
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
		defer q.ShutDown()
		if err := w.Start(context.Background(), q); err != nil {
			t.Fatal(err)
		}
		w.add(portOf("a"), "1", &address.Problem{Message: "full", Subnets: []string{"s1"}})
		w.add(portOf("b"), "1", &address.Problem{Message: "full", Subnets: []string{"s1", "s2"}})
		w.add(kubeovnv1.NewPort("other", "c", kubeovnv1.ProviderOVN), "1", &address.Problem{Message: "bad annotation"})

		for range 3 {
			w.subnetChanged("s1")
		}
		w.subnetChanged("s3")
		expect(t, "at once", controllertest.Drain(q))
		time.Sleep(2 * wakeDelay)
		expect(t, "after a change of s1", controllertest.Drain(q), "a", "b")

		w.remove(portOf("b").Name)
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
		var w pendingPorts
		w.pace(func(string) float64 { return free })
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
		defer q.ShutDown()
		if err := w.Start(context.Background(), q); err != nil {
			t.Fatal(err)
		}
		full := &address.Problem{Message: "full", Subnets: []string{"s"}, Full: true}
		const pods = 3*wokenAtOnce + 1
		for i := range pods {
			w.add(portOf(fmt.Sprint("p", i)), "1", full)
		}
		taken := &address.Problem{Message: "taken", Subnets: []string{"s"}}
		w.add(portOf("static"), "1", taken)
		woken := func() (all []string) {
			for _, name := range controllertest.Drain(q) {
				if all = append(all, name); name == "static" {
					w.add(portOf(name), "1", taken)
				} else {
					w.add(portOf(name), "1", full) // still no address
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

func TestAWaitingPodGetsOneEventAndOneRetry(t *testing.T) {
	var w pendingPorts
	for _, step := range []struct {
		uid         types.UID
		p           address.Problem
		again, news bool
	}{
		{"1", address.Problem{Message: "full", Subnets: []string{"s1"}}, true, true},
		{"1", address.Problem{Message: "full", Subnets: []string{"s1"}}, false, false},
		{"1", address.Problem{Message: "taken", Subnets: []string{"s1"}}, false, true},
		{"1", address.Problem{Message: "taken", Subnets: []string{"s1", "s2"}}, true, false},
		{"2", address.Problem{Message: "taken", Subnets: []string{"s1", "s2"}}, false, true},
		{"2", address.Problem{Message: "bad annotation"}, false, true},
	} {
		again, news := w.add(portOf("a"), step.uid, &step.p)
		if again != step.again || news != step.news {
			t.Errorf("%s %+v: again %t, news %t", step.uid, step.p, again, news)
		}
	}
	w.remove(portOf("a").Name)
	if len(w.ports)+w.bySubnet.Len() != 0 {
		t.Errorf("left behind: %v, and %d in subnets", w.ports, w.bySubnet.Len())
	}
}

// noObjects is an empty cache.
type noObjects struct{ client.Client }

func (noObjects) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(corev1.Resource("namespaces"), key.Name)
}

func TestAPodWaitsForItsNamespace(t *testing.T) {
	r := &Reconciler{}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "early"}}
	addresses := address.Chooser{Client: noObjects{}}
	claim := address.ClaimOf(portOf("early"), pod, "")
	_, _, err := addresses.For(t.Context(), &claim, nil)
	var p *address.Problem
	if !errors.As(err, &p) || !p.Quiet {
		t.Fatalf("got %v, want a problem without an event", err)
	}
	q := newQueue(t)
	if err := r.pending.Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if again, _ := r.pending.add(portOf("early"), pod.UID, p); !again {
		t.Error("the namespace may have come between the try and the listing, but there is no second try")
	}
	if again, _ := r.pending.add(portOf("early"), pod.UID, p); again {
		t.Error("a pod that is listed is tried again at once")
	}
	r.pending.wakeNamespace("shop")
	expect(t, "the namespace is there", controllertest.Drain(q), "early")
}
