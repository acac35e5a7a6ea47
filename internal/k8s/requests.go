// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"context"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Queue is the work queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// RequestOf returns the request for an object.
func RequestOf(n types.NamespacedName) reconcile.Request { return reconcile.Request{NamespacedName: n} }

// Request returns the request for a cluster-scoped object.
func Request(name string) reconcile.Request { return RequestOf(types.NamespacedName{Name: name}) }

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
			requests = append(requests, RequestOf(client.ObjectKeyFromObject(o)))
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
		requests = append(requests, RequestOf(client.ObjectKeyFromObject(o.(client.Object))))
		return nil
	})
	return requests
}
