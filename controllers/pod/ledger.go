// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ledger remembers what this process did for pods and the cache may not show yet: whom a lease was made for, and what was
// written on the pod. Without it a cache that lags behind would cause a second address or a second patch.
type ledger struct {
	mu   sync.Mutex
	pods map[types.NamespacedName]entry
}

type entry struct {
	uid  types.UID
	seen time.Time // when the address was asked for; zero once all legs are observed
	// resourceVersion and annotations are the pod's as written; empty when the cache has them.
	resourceVersion string
	annotations     map[string]string
}

// hold says that the lease of that name is the pod's.
func (l *ledger) hold(pod *corev1.Pod, seen time.Time) {
	l.set(client.ObjectKeyFromObject(pod), entry{uid: pod.UID, seen: seen})
}

// adopt says whom a lease that another process made is for, unless it is known.
func (l *ledger) adopt(key types.NamespacedName, uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.pods[key]; !ok {
		l.put(key, entry{uid: uid})
	}
}

// holder is whom the lease of that name was made for; empty when it is not known.
func (l *ledger) holder(key types.NamespacedName) types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[key].uid
}

// wrote keeps what the server answered to a patch of the pod.
func (l *ledger) wrote(pod *corev1.Pod) {
	l.set(client.ObjectKeyFromObject(pod), entry{
		uid: pod.UID, resourceVersion: pod.ResourceVersion, annotations: maps.Clone(pod.Annotations),
	})
}

// newest returns the pod with what was written on it, when the cache has it from before that.
func (l *ledger) newest(cached *corev1.Pod) *corev1.Pod {
	key := client.ObjectKeyFromObject(cached)
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.pods[key]
	if !ok || e.resourceVersion == "" || e.uid != cached.UID {
		return cached
	}
	if order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, e.resourceVersion); err != nil || order >= 0 {
		l.put(key, entry{uid: e.uid})
		return cached
	}
	pod := *cached
	pod.Annotations = e.annotations
	return &pod
}

// since is when the pod's address was asked for; false when its legs are observed already.
func (l *ledger) since(pod *corev1.Pod) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.pods[client.ObjectKeyFromObject(pod)]
	return e.seen, e.uid == pod.UID && !e.seen.IsZero()
}

// forget drops what is known of a pod.
func (l *ledger) forget(key types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pods, key)
}

func (l *ledger) set(key types.NamespacedName, e entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(key, e)
}

func (l *ledger) put(key types.NamespacedName, e entry) {
	if l.pods == nil {
		l.pods = map[types.NamespacedName]entry{}
	}
	l.pods[key] = e
}
