// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Pauses between the attempts to reconcile one object, each twice as long as the one before.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
)

// Retries is when a controller tries again what has failed. The usual one allows all objects together ten attempts a second: of a thousand that
// are created at once, each of which meets a conflict, the last would wait for minutes. And its pauses grow to a quarter of an hour: after an API
// server that was away for as long, or where nothing tells that what was missing is there, objects would wait once more until then.
func Retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
}

// Workers are the options of a controller with this many at work, which tries again as Retries says.
func Workers(n int) controller.Options {
	return controller.Options{MaxConcurrentReconciles: n, RateLimiter: Retries()}
}
