// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// reconciled returns the number of passes of a controller, in all processes.
func reconciled(t *testing.T, controller string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var total float64
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "controller" && label.GetValue() == controller {
					total += m.GetCounter().GetValue()
				}
			}
		}
	}
	return total
}

func TestARestartLeavesSettledPodsAlone(t *testing.T) {
	const pods = 30
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	first := w.start()
	for i := range pods {
		w.Create(newPod("default", fmt.Sprintf("p%d", i)))
	}
	for i := range pods {
		w.allocated(newPod("default", fmt.Sprintf("p%d", i)))
	}
	w.agree(first)
	if n := first.Writes(http.MethodPost, "/ips"); n != pods {
		t.Errorf("%d creations of %d IP objects", n, pods)
	}
	first.Stop()

	before, beforeIPs := reconciled(t, "pod"), reconciled(t, "ip")
	second := w.start()
	w.Eventually(func() string {
		if n := reconciled(t, "pod") - before; n < pods {
			return fmt.Sprintf("%v of %d passes", n, pods)
		}
		return ""
	})
	if n := reconciled(t, "ip") - beforeIPs; n != 0 {
		t.Errorf("%v passes for IP objects that are as they should be", n)
	}
	if n := second.Transactions(); n != 0 {
		t.Errorf("%d transactions", n)
	}
	for _, method := range []string{http.MethodPatch, http.MethodPost, http.MethodPut, http.MethodDelete} {
		for _, path := range []string{"/pods/", "/ips"} {
			if n := second.Writes(method, path); n != 0 {
				t.Errorf("%d %s %s", n, method, path)
			}
		}
	}
	w.agree(second)
}

// broken is an API server that fails all lists.
type broken struct{ client.Reader }

func (broken) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("the API server was asked for cached objects")
}

// The process is a standby until its restoration succeeds.
func TestAStandbyTakesTheIPObjectsOfItsCache(t *testing.T) {
	w := newWorld(t)
	var r *pod.Reconciler
	steps := stepsWith(ipobject.Pace{}, func(own *pod.Reconciler) { r = own })
	steps.Restore = func(ctx context.Context, _ *controllertest.Process) error {
		w.Eventually(func() string {
			if err := r.Restore(ctx, broken{}); err != nil {
				return err.Error()
			}
			return ""
		})
		return nil
	}
	w.Start(steps)
}

func TestWhatHappenedWhileTheControllerWasDown(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	w.subnet("other", "10.17.0.0/24")
	first := w.start()
	deleted := w.pod("default", "deleted")
	replaced := w.pod("default", "replaced")
	moved := w.pod("default", "moved")
	edited := w.pod("default", "edited")
	kept := w.pod("default", "kept")
	was := address(edited)
	w.agree(first)
	first.Stop()

	w.Delete(deleted, replaced, moved)
	again := newPod("default", "replaced")
	again.Spec.NodeName = "n2"
	for k, v := range replaced.Annotations { // as in a copy of the old pod's manifest
		again.Annotations[k] = v
	}
	elsewhere := newPod("default", "moved", "logical_switch", "other", "ip_address", "10.17.0.50")
	w.Create(again, elsewhere)
	w.Change(edited, func() { edited.Annotations["ovn.kubernetes.io/ip_address"] = address(kept) })

	second := w.start()
	w.allocated(again)
	w.allocated(elsewhere)
	w.gone(second, deleted)
	port := w.port(again)
	if port["options"].(map[string]string)["requested-chassis"] != "n2" {
		t.Errorf("the successor's port is still where its predecessor was: %v", port["options"])
	}
	if got := w.port(elsewhere).Strings("addresses")[0]; !strings.HasSuffix(got, " 10.17.0.50") {
		t.Errorf("the successor in another subnet has %s", got)
	}
	w.Eventually(func() string {
		w.Get(edited)
		if address(edited) != was {
			return fmt.Sprintf("the pod that was edited has %s, not %s", address(edited), was)
		}
		return ""
	})
	w.agree(second)
}

// The cache of a new leader may lag behind the previous leader's.
func TestAPodThatTheCacheHasNotGotYetKeepsItsPort(t *testing.T) {
	const others = 20
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	late := w.pod("default", "late")
	gone := make([]*corev1.Pod, others)
	for i := range gone {
		gone[i] = w.pod("default", fmt.Sprint("gone-", i))
	}
	process.Stop()
	for _, p := range gone {
		w.Delete(p)
	}
	behind := stepsAt(ipobject.Pace{})
	behind.Cache.ByObject = map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Field: fields.OneTermNotEqualSelector("metadata.name", late.Name)},
	}
	process = w.Start(behind)
	for _, p := range gone {
		w.gone(process, p)
	}
	w.port(late)
	w.held(process, "late.default", address(late))
	process.Stop()
	process = w.start()
	w.agree(process)
}

func TestAnAddressIsNotFreeWhileAPortHoldsIt(t *testing.T) {
	w := newWorld(t)
	w.DiffersFromFresh("the steps of the last process hold transactions")
	w.subnet("ovn-default", "10.16.0.0/30") // one address
	first := w.start()
	old := w.pod("default", "old")
	first.Stop()
	w.Delete(old)
	next := newPod("default", "next")
	w.Create(next)
	steps := stepsAt(ipobject.Pace{})
	restore := steps.Restore
	steps.Restore = func(ctx context.Context, p *controllertest.Process) error {
		p.Northbound().Hold()
		return restore(ctx, p)
	}
	second := w.Start(steps)
	second.Northbound().AwaitHeld() // the deletion of the old port
	w.warned(next, "subnet ovn-default is full")
	if _, held := second.Allocator.Lookup("old.default"); !held || w.portNow(old) == nil {
		t.Error("the address of the deleted pod is free while its port is there")
	}
	if allocation, held := second.Allocator.Lookup("next.default"); held || address(w.get(next)) != "" {
		t.Errorf("pod next got %v while the port of the deleted pod was there", allocation.Addresses)
	}
	second.Northbound().Release()
	w.allocated(next)
	w.gone(second, old)
	w.agree(second)
}

func TestAnAddressIsNotFreeUntilItsPortIsDeleted(t *testing.T) {
	w := newWorld(t)
	w.DiffersFromFresh("the server that the test started again ends before the comparison")
	w.subnet("ovn-default", "10.16.0.0/30") // one address
	process := w.start()
	old := w.pod("default", "old")
	w.Database.Stop()
	w.Delete(old)
	next := newPod("default", "next")
	w.Create(next)
	w.warned(next, "subnet ovn-default is full")
	w.Database.Restart()
	w.allocated(next)
	w.gone(process, old)
	w.agree(process)
}

func (w world) get(p *corev1.Pod) *corev1.Pod {
	w.Helper()
	w.Get(p)
	return p
}

// The test watches every pod: no address may be published on a pod while another pod with that address exists.
func TestPodsRecreatedUnderOneNameWhileTheControllerRestarts(t *testing.T) {
	const names, rounds, restarts = 8, 50, 6
	drawn := seed.New(t)
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/28") // 13 addresses, so that they are reused soon
	stop := watchHolders(w)
	process := w.start()

	var wg sync.WaitGroup
	begun := make(chan struct{})
	for i := range names {
		wg.Go(func() { recreate(w, seed.Rand(drawn, uint64(i)), fmt.Sprintf("p%d", i), rounds, begun) })
	}
	go func() { wg.Wait(); close(begun) }()
	n := 0
	for range begun {
		if n++; n%(names*rounds/(restarts+1)) == 0 {
			process.Stop()
			process = w.start()
		}
	}
	for i := range names {
		w.allocated(newPod("default", fmt.Sprintf("p%d", i)))
	}
	w.agree(process)
	if n := stop(); n < names*rounds/patientEvery {
		t.Errorf("only %d of %d pods got an address: too few for a result", n, names*rounds)
	} else {
		t.Logf("%d of %d pods got an address", n, names*rounds)
	}
}

// patientEvery is the interval of the rounds of recreate in which the pod stays until it has its address.
const patientEvery = 3

// recreate deletes and creates a pod repeatedly, on alternating nodes. It sends on begun in each round. In every third round it waits for
// the pod's address, and in the others for 60 ms at most.
func recreate(w world, random *rand.Rand, name string, rounds int, begun chan<- struct{}) {
	for round := range rounds {
		p := newPod("default", name)
		p.Spec.NodeName = w.Nodes[round%2]
		if err := client.IgnoreAlreadyExists(w.Client.Create(w.Context(), p)); err != nil { // the client may repeat a request
			w.Errorf("create: %v", err)
			return
		}
		begun <- struct{}{}
		patience := time.Duration(random.IntN(60)) * time.Millisecond
		if round%patientEvery == 0 {
			patience = time.Minute
		}
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
			if err := w.Client.Get(w.Context(), client.ObjectKeyFromObject(p), p); err != nil || address(p) != "" {
				break
			}
		}
		if round == rounds-1 {
			return
		}
		if err := client.IgnoreNotFound(w.Client.Delete(w.Context(), p, client.GracePeriodSeconds(0))); err != nil {
			w.Errorf("delete: %v", err)
			return
		}
	}
}

// watchHolders checks the addresses published on pods. The function that it returns stops the watch, and returns the number of addresses
// published.
func watchHolders(w world) func() int {
	c, err := kubernetes.NewForConfig(controllertest.Config())
	w.Must(err)
	list, err := c.CoreV1().Pods("").List(w.Context(), metav1.ListOptions{})
	w.Must(err)
	pods := toolscache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", "", fields.Everything())
	// The API server closes watches with slow readers; RetryWatcher resumes them.
	watcher, err := watchtools.NewRetryWatcherWithContext(w.Context(), list.ResourceVersion, pods)
	w.Must(err)
	var stopping atomic.Bool
	published := make(chan int, 1)
	go func() {
		n := 0
		defer func() { published <- n }()
		byAddress, byPod := map[string]types.UID{}, map[types.UID]string{}
		for e := range watcher.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				if !stopping.Load() {
					w.Errorf("watch: %v", e.Object)
				}
				return
			}
			if e.Type == watch.Deleted {
				delete(byAddress, byPod[p.UID])
				delete(byPod, p.UID)
				continue
			}
			if uid := p.Annotations["ovn.kubernetes.io/pod_uid"]; uid != "" && uid != string(p.UID) {
				w.Errorf("pod %s has the results of %s", p.UID, uid)
			}
			a := address(p)
			if a == "" || byPod[p.UID] == a {
				continue
			}
			if had := byPod[p.UID]; had != "" {
				w.Errorf("pod %s got %s and then %s", p.Name, had, a)
			}
			if holder := byAddress[a]; holder != "" {
				w.Errorf("address %s of pod %s is held by pod %s", a, p.UID, holder)
			}
			byAddress[a], byPod[p.UID] = p.UID, a
			n++
		}
	}()
	return func() int {
		stopping.Store(true)
		watcher.Stop()
		return <-published
	}
}
