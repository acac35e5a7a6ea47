// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kiln-net/kiln/internal/k8s"
)

// wakeDelay gathers changes of a subnet before the pods that wait for it are tried again, so that many pods at a full subnet
// cost little while others come and go.
const wakeDelay = 100 * time.Millisecond

// wokenAtOnce is how many of the pods that wait for any address of a full subnet are tried at a time, unless it has more free addresses than that.
const wokenAtOnce = 32

// queue is the work queue of a controller.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// feed is a k8s.Feed of requests.
type feed struct{ k8s.Feed }

// Add enqueues req. It never blocks.
func (f *feed) Add(req ctrl.Request) { f.AddKey(req.NamespacedName) }

// problem is what keeps a pod from an address, in words for its user.
type problem struct {
	message string
	// subnets are those whose change may help.
	subnets []string
	// quiet problems are told elsewhere.
	quiet bool
	// full: the subnets have no free address, and any would do.
	full bool
}

// Error is the message of the event.
func (p *problem) Error() string { return p.message }

// waiting are the pods that have no address. They are tried again when what is in their way may have changed.
type waiting struct {
	feed

	mu       sync.Mutex
	pods     map[types.NamespacedName]waiter
	bySubnet map[string]map[types.NamespacedName]struct{}
	due      map[string]bool // subnets whose pods are about to be woken
	// available is how many addresses of a subnet are free. It is called without mu.
	available func(subnet string) float64
	// changes counts changes of subnets that pods waited for, and changed has the last one of each.
	changes uint64
	changed map[string]uint64
}

type waiter struct {
	uid types.UID
	problem
	// tried is the last change of a subnet after which the pod was woken.
	tried uint64
}

// add lists a pod. It returns again when the pod is new in the list, or waits for other subnets than before: an address may have become free, or
// a namespace known, after the failed attempt. It returns news when the pod's user has no event with this message yet.
func (w *waiting) add(key types.NamespacedName, uid types.UID, p *problem) (again, news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, listed := w.pods[key]
	again, news = !listed, !listed || before.uid != uid || before.message != p.message
	for _, s := range p.subnets {
		if _, ok := w.bySubnet[s][key]; !ok {
			again = true
		}
	}
	w.unlist(key)
	if w.pods == nil {
		w.pods, w.bySubnet, w.due = map[types.NamespacedName]waiter{}, map[string]map[types.NamespacedName]struct{}{}, map[string]bool{}
		w.changed = map[string]uint64{}
	}
	w.pods[key] = waiter{uid: uid, problem: *p, tried: before.tried}
	for _, s := range p.subnets {
		if w.bySubnet[s] == nil {
			w.bySubnet[s] = map[types.NamespacedName]struct{}{}
		}
		w.bySubnet[s][key] = struct{}{}
	}
	return again, news
}

// remove takes a pod from the list.
func (w *waiting) remove(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unlist(key)
}

func (w *waiting) unlist(key types.NamespacedName) {
	for _, s := range w.pods[key].subnets {
		delete(w.bySubnet[s], key)
		if len(w.bySubnet[s]) == 0 {
			delete(w.bySubnet, s)
		}
	}
	delete(w.pods, key)
}

// subnetChanged wakes the pods that wait for a subnet, after wakeDelay. It never blocks.
func (w *waiting) subnetChanged(subnet string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.bySubnet[subnet]) == 0 {
		return
	}
	w.changes++
	if w.changed[subnet] = w.changes; w.due[subnet] {
		return
	}
	w.due[subnet] = true
	time.AfterFunc(wakeDelay, func() { w.wakeSubnet(subnet) })
}

// wakeSubnet wakes the pods that wait for a subnet. Of the pods for which it was full, it wakes as many as there are free addresses, but at
// least wokenAtOnce, and the others after another wakeDelay. Each pod is tried once after the last change.
func (w *waiting) wakeSubnet(subnet string) {
	left := max(int(min(w.available(subnet), math.MaxInt32)), wokenAtOnce)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.due, subnet)
	for key := range w.bySubnet[subnet] {
		pod := w.pods[key]
		switch {
		case pod.tried >= w.changed[subnet]:
			continue
		case pod.full && left == 0:
			w.due[subnet] = true
			continue
		case pod.full:
			left--
		}
		pod.tried = w.changes
		w.pods[key] = pod
		w.Add(ctrl.Request{NamespacedName: key})
	}
	if w.due[subnet] {
		time.AfterFunc(wakeDelay, func() { w.wakeSubnet(subnet) })
	}
}

// wakeAll wakes every pod that waits.
func (w *waiting) wakeAll() { w.wake(func(types.NamespacedName) bool { return true }) }

// wakeNamespace wakes the pods of a namespace that wait.
func (w *waiting) wakeNamespace(namespace string) {
	w.wake(func(key types.NamespacedName) bool { return key.Namespace == namespace })
}

func (w *waiting) wake(which func(types.NamespacedName) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.pods {
		if which(key) {
			w.Add(ctrl.Request{NamespacedName: key})
		}
	}
}
