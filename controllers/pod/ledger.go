// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ledger remembers what this process did for pods and the cache may not show yet: whom a lease was made for, and what was
// written on the pod. Without it a cache that lags behind would cause a second address or a second patch.
type ledger struct {
	mu   sync.Mutex
	pods map[types.NamespacedName]entry
}

type entry struct {
	uid types.UID
	// results are the annotations that a patch brings to the pod; nil when the cache has them.
	results map[string]string
	// from is the subnet's spec that they come from.
	from specOf
	// resourceVersion and annotations are the pod's as the server answered the patch; empty before that, and when the cache has them.
	resourceVersion string
	annotations     map[string]string
}

// specOf is the spec of an object as it was at a time.
type specOf struct {
	uid        types.UID
	generation int64
}

func specIn(o client.Object) specOf { return specOf{o.GetUID(), o.GetGeneration()} }

// hold says that the lease of that name is the pod's.
func (l *ledger) hold(pod *corev1.Pod) {
	l.set(client.ObjectKeyFromObject(pod), entry{uid: pod.UID})
}

// holder is whom the lease of that name was made for; empty when it is not known.
func (l *ledger) holder(key types.NamespacedName) types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[key].uid
}

// write says that a patch which brings these results to the pod is about to be sent, and from which spec of the subnet they come.
func (l *ledger) write(pod *corev1.Pod, results map[string]string, from specOf) {
	l.set(client.ObjectKeyFromObject(pod), entry{uid: pod.UID, results: results, from: from})
}

// wrote keeps what the server answered to the patch.
func (l *ledger) wrote(pod *metav1.PartialObjectMetadata, results map[string]string, from specOf) {
	l.set(client.ObjectKeyFromObject(pod), entry{
		uid: pod.UID, results: results, from: from, resourceVersion: pod.ResourceVersion, annotations: maps.Clone(pod.Annotations),
	})
}

// shows takes note of what the cache has of a pod now. It reports whether those are the results that this process has written, or is
// about to: then there is nothing to do about them, unless the subnet's spec is another one by now.
func (l *ledger) shows(cached *corev1.Pod) (own bool, from specOf) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.pods[client.ObjectKeyFromObject(cached)]
	if !ok || e.uid != cached.UID || e.results == nil {
		return false, from
	}
	own = len(difference(cached.Annotations, e.results)) == 0
	if e.resourceVersion != "" && !older(cached.ResourceVersion, e.resourceVersion) {
		l.put(client.ObjectKeyFromObject(cached), entry{uid: e.uid})
	}
	return own, e.from
}

// newest returns the pod with what was written on it, when the cache has it from before that.
func (l *ledger) newest(cached *corev1.Pod) *corev1.Pod {
	key := client.ObjectKeyFromObject(cached)
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.pods[key]
	if !ok || e.results == nil || e.uid != cached.UID {
		return cached
	}
	if e.resourceVersion == "" || !older(cached.ResourceVersion, e.resourceVersion) { // no answer came, or the cache has it
		l.put(key, entry{uid: e.uid})
		return cached
	}
	pod := *cached
	pod.Annotations = e.annotations
	return &pod
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
