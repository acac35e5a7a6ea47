// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"context"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

func request(n types.NamespacedName) reconcile.Request { return reconcile.Request{NamespacedName: n} }

// Request returns the request for a cluster-scoped object.
func Request(name string) reconcile.Request { return request(types.NamespacedName{Name: name}) }

// Requests returns the requests for cluster-scoped objects.
func Requests(names ...string) []reconcile.Request {
	requests := make([]reconcile.Request, 0, len(names))
	for _, name := range names {
		requests = append(requests, Request(name))
	}
	return requests
}

// RequestsOf returns the requests for the objects that have type T.
func RequestsOf[T, O client.Object](objects []O) []reconcile.Request {
	requests := make([]reconcile.Request, 0, len(objects))
	for _, o := range objects {
		if _, ok := client.Object(o).(T); ok {
			requests = append(requests, request(client.ObjectKeyFromObject(o)))
		}
	}
	return requests
}

// Listed returns the requests for the results of a list from the cache; none if the cache is stopping.
func Listed(ctx context.Context, cache client.Reader, list client.ObjectList, options ...client.ListOption) []reconcile.Request {
	if err := cache.List(ctx, list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil
	}
	requests := make([]reconcile.Request, 0, apimeta.LenList(list))
	_ = apimeta.EachListItem(list, func(o runtime.Object) error { // the function returns no error
		requests = append(requests, request(client.ObjectKeyFromObject(o.(client.Object))))
		return nil
	})
	return requests
}

// Notifier notifies of each change in the use of a subnet's addresses. The allocator implements it.
type Notifier interface {
	Notify(func(subnet string))
}

// OnUse enqueues the cluster-scoped objects that concerned returns for a subnet after the use of its addresses has changed. It
// waits for moment, so that several changes enqueue an object once.
func OnUse(n Notifier, moment time.Duration, concerned func(subnet string) []string) source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		n.Notify(func(subnet string) {
			for _, name := range concerned(subnet) {
				q.AddAfter(Request(name), moment)
			}
		})
		return nil
	})
}
