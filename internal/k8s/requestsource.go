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
	queue Queue
	early []reconcile.Request
}

// Start implements source.Source.
func (s *RequestSource) Start(_ context.Context, q Queue) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = q
	for _, req := range s.early {
		q.Add(req)
	}
	s.early = nil
	return nil
}

// Add enqueues a cluster-scoped object. It never blocks.
func (s *RequestSource) Add(name string) { s.AddKey(types.NamespacedName{Name: name}) }

// AddKey enqueues an object. It never blocks.
func (s *RequestSource) AddKey(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	req := reconcile.Request{NamespacedName: key}
	if s.queue == nil {
		s.early = append(s.early, req)
		return
	}
	s.queue.Add(req)
}
