// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/k8s"
)

// wakeDelay collects changes of a subnet before its waiting pods are retried, so that many pods at a full subnet cost little while other
// pods are created and deleted.
const wakeDelay = 100 * time.Millisecond

// wokenAtOnce is the number of pods that are retried at a time when they wait for any address of a full subnet, unless more addresses are
// free.
const wokenAtOnce = 32

// problem is the reason why a pod gets no address, as a message for its user.
type problem struct {
	message string
	// subnets are the subnets whose change may solve the problem.
	subnets []string
	// quiet problems cause no event on the pod: another condition reports them.
	quiet bool
	// full means that the subnets have no free address or port, and any address would do.
	full bool
}

// Error is the message of the event.
func (p *problem) Error() string { return p.message }

// pendingPods lists the pods without an address. A change that may solve a pod's problem retries it.
type pendingPods struct {
	k8s.RequestSource

	mu       sync.Mutex
	pods     map[types.NamespacedName]pendingPod
	bySubnet map[string]map[types.NamespacedName]struct{}
	due      map[string]bool // subnets whose pods wakeSubnet will wake
	// available returns the number of free addresses of a subnet. It is called without mu.
	available func(subnet string) float64
	// changes counts the changes of subnets that pods wait for; changed has the count at each subnet's last change.
	changes uint64
	changed map[string]uint64
}

type pendingPod struct {
	uid types.UID
	problem
	// tried is the count of changes when the pod was last woken.
	tried uint64
}

// add lists a pod. again is true if the pod is new in the list, or waits for other subnets than before: an address may have become free,
// or a namespace may have reached the cache, after the failed attempt. news is true if the pod's user has no event with this message yet.
func (w *pendingPods) add(key types.NamespacedName, uid types.UID, p *problem) (again, news bool) {
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
		w.pods, w.bySubnet, w.due = map[types.NamespacedName]pendingPod{}, map[string]map[types.NamespacedName]struct{}{}, map[string]bool{}
		w.changed = map[string]uint64{}
	}
	w.pods[key] = pendingPod{uid: uid, problem: *p, tried: before.tried}
	for _, s := range p.subnets {
		if w.bySubnet[s] == nil {
			w.bySubnet[s] = map[types.NamespacedName]struct{}{}
		}
		w.bySubnet[s][key] = struct{}{}
	}
	return again, news
}

// remove removes a pod from the list.
func (w *pendingPods) remove(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unlist(key)
}

func (w *pendingPods) unlist(key types.NamespacedName) {
	for _, s := range w.pods[key].subnets {
		delete(w.bySubnet[s], key)
		if len(w.bySubnet[s]) == 0 {
			delete(w.bySubnet, s)
		}
	}
	delete(w.pods, key)
}

// subnetChanged wakes the pods that wait for a subnet, after wakeDelay. It never blocks.
func (w *pendingPods) subnetChanged(subnet string) {
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

// wakeSubnet wakes the pods that wait for a subnet. If pods found the subnet full, it wakes at most as many of them as there are free
// addresses, but at least wokenAtOnce; the others follow after another wakeDelay. Each pod is retried once after the last change.
func (w *pendingPods) wakeSubnet(subnet string) {
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
		w.AddKey(key)
	}
	if w.due[subnet] {
		time.AfterFunc(wakeDelay, func() { w.wakeSubnet(subnet) })
	}
}

// wakeAll wakes every waiting pod.
func (w *pendingPods) wakeAll() { w.wake(func(types.NamespacedName) bool { return true }) }

// wakeNamespace wakes the waiting pods of a namespace.
func (w *pendingPods) wakeNamespace(namespace string) {
	w.wake(func(key types.NamespacedName) bool { return key.Namespace == namespace })
}

func (w *pendingPods) wake(which func(types.NamespacedName) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.pods {
		if which(key) {
			w.AddKey(key)
		}
	}
}
