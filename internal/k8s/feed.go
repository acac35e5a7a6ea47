// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// RequestSource is a source of requests from other controllers. The zero value is ready. Requests are buffered until the source starts.
type RequestSource struct {
	mu    sync.Mutex
	queue queue
	early []reconcile.Request
}

// Start implements source.Source.
func (f *RequestSource) Start(_ context.Context, q queue) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = q
	for _, req := range f.early {
		q.Add(req)
	}
	f.early = nil
	return nil
}

// Add enqueues a cluster-scoped object. It never blocks.
func (f *RequestSource) Add(name string) { f.AddKey(types.NamespacedName{Name: name}) }

// AddKey enqueues an object. It never blocks.
func (f *RequestSource) AddKey(key types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	req := request(key)
	if f.queue == nil {
		f.early = append(f.early, req)
		return
	}
	f.queue.Add(req)
}
