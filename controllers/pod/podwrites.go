// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/k8s"
)

// podWrites stores the results that this process has written on pods and that the cache may not show yet. Without it a stale cache would cause a second patch.
type podWrites struct {
	mu   sync.Mutex
	pods map[types.NamespacedName]entry
}

type entry struct {
	uid types.UID
	// results are the annotations that a patch sets for the network of a provider; nil once the cache has them.
	results  map[string]string
	provider string
	// from is the subnet's spec that the results come from.
	from specOf
	// resourceVersion and annotations are the pod's in the server's response to the patch. They are empty before the response, and once
	// the cache has them.
	resourceVersion string
	annotations     map[string]string
}

// specOf identifies one generation of an object's spec.
type specOf struct {
	uid  types.UID
	view k8s.SubnetView
}

// set records a write of a pod.
func (l *podWrites) set(key types.NamespacedName, e entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pods == nil {
		l.pods = map[types.NamespacedName]entry{}
	}
	l.pods[key] = e
}

// shows compares the cached pod with this process's own write, in flight or done. It returns own if the cached results equal that write,
// and the spec that it came from. Such an update needs no work, unless the subnet's spec has changed since.
func (l *podWrites) shows(cached *corev1.Pod) (own bool, from specOf) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.pods[client.ObjectKeyFromObject(cached)]
	if !ok || e.uid != cached.UID || e.results == nil {
		return false, from
	}
	own = len(difference(cached.Annotations, e.results, e.provider)) == 0
	if e.resourceVersion != "" && !k8s.OlderVersion(cached.ResourceVersion, e.resourceVersion) {
		delete(l.pods, client.ObjectKeyFromObject(cached))
	}
	return own, e.from
}

// newest returns the pod, with its last written annotations if the cached pod is older than the write.
func (l *podWrites) newest(cached *corev1.Pod) *corev1.Pod {
	key := client.ObjectKeyFromObject(cached)
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.pods[key]
	if !ok || e.results == nil || e.uid != cached.UID {
		return cached
	}
	if e.resourceVersion == "" || !k8s.OlderVersion(cached.ResourceVersion, e.resourceVersion) { // no response arrived, or the cache has it
		delete(l.pods, key)
		return cached
	}
	pod := *cached
	pod.Annotations = e.annotations
	return &pod
}

// forget drops the entry of a pod.
func (l *podWrites) forget(key types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pods, key)
}
