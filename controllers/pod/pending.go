// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// wakeDelay collects changes of a subnet before its waiting pods are retried, so that many pods at a full subnet cost little while other
// pods are created and deleted.
const wakeDelay = 100 * time.Millisecond

// wokenAtOnce is the number of pods that are retried at a time when they wait for any address of a full subnet, unless more addresses are
// free.
const wokenAtOnce = 32

// pendingPorts lists the ports without an address, by name. A change that may solve a port's problem retries its pod.
type pendingPorts struct {
	k8s.RequestSource

	mu       sync.Mutex
	ports    map[string]pendingPort
	bySubnet interest.Index[string, string]
	due      reconciler.Paced // subnets whose ports wakeSubnet will wake
	// available returns the number of free addresses of a subnet. It is called without mu.
	available func(subnet string) float64
	// changes counts the changes of subnets that pods wait for; changed has the count at each subnet's last change.
	changes uint64
	changed map[string]uint64
}

type pendingPort struct {
	port kubeovnv1.Port
	uid  types.UID
	address.Problem
	// tried is the count of changes when the port was last woken.
	tried uint64
}

// pace prepares the list for changes of subnets.
func (w *pendingPorts) pace(available func(subnet string) float64) {
	w.available = available
	w.due.Delay, w.due.Every, w.due.Do = wakeDelay, wakeDelay, w.wakeSubnet
}

// add lists a port of a pod with that UID. again is true if the port is new in the list, or waits for other subnets than before: an address may have become free,
// or a namespace may have reached the cache, after the failed attempt. news is true if the pod's user has no event with this message yet.
func (w *pendingPorts) add(port kubeovnv1.Port, uid types.UID, p *address.Problem) (again, news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, listed := w.ports[port.Name]
	again = !listed || slices.ContainsFunc(p.Subnets, func(s string) bool { return !slices.Contains(before.Subnets, s) })
	news = !listed || before.uid != uid || before.Message != p.Message
	if w.ports == nil {
		w.ports, w.changed = map[string]pendingPort{}, map[string]uint64{}
	}
	w.ports[port.Name] = pendingPort{port: port, uid: uid, Problem: *p, tried: before.tried}
	w.bySubnet.Set(port.Name, p.Subnets...)
	return again, news
}

// remove removes a port from the list.
func (w *pendingPorts) remove(port string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bySubnet.Set(port)
	delete(w.ports, port)
}

// problem returns the message of the problem of a port, "" if it is not in the list.
func (w *pendingPorts) problem(port string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ports[port].Message
}

// subnetChanged wakes the pods that wait for a subnet, after wakeDelay. It never blocks.
func (w *pendingPorts) subnetChanged(subnet string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.bySubnet.Any(subnet) {
		return
	}
	w.changes++
	w.changed[subnet] = w.changes
	w.due.Changed(subnet)
}

// wakeSubnet wakes the pods that wait for a subnet. If pods found the subnet full, it wakes at most as many of them as there are free
// addresses, but at least wokenAtOnce; the others follow after another wakeDelay. Each pod is retried once after the last change.
func (w *pendingPorts) wakeSubnet(subnet string) {
	left := max(int(min(w.available(subnet), math.MaxInt32)), wokenAtOnce)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range w.bySubnet.Of(subnet) {
		waiting := w.ports[name]
		switch {
		case waiting.tried >= w.changed[subnet]:
			continue
		case waiting.Full && left == 0:
			w.due.Changed(subnet)
			continue
		case waiting.Full:
			left--
		}
		waiting.tried = w.changes
		w.ports[name] = waiting
		w.AddKey(waiting.port.Key())
	}
}

// wakeAll wakes every waiting pod.
func (w *pendingPorts) wakeAll() { w.wake(func(kubeovnv1.Port) bool { return true }) }

// wakeNamespace wakes the waiting pods of a namespace.
func (w *pendingPorts) wakeNamespace(namespace string) {
	w.wake(func(port kubeovnv1.Port) bool { return port.Namespace == namespace })
}

func (w *pendingPorts) wake(which func(kubeovnv1.Port) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, waiting := range w.ports {
		if which(waiting.port) {
			w.AddKey(waiting.port.Key())
		}
	}
}
