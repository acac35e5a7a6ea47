// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Back-off between the attempts to reconcile one object; it doubles each time.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
)

// Back-off under OnlyEvents: retries with a pause of up to lastFewRetry, which all take place within a second, and then none.
const (
	lastFewRetry = 320 * time.Millisecond
	never        = time.Hour
)

// onlyEvents is set by OnlyEvents.
var onlyEvents atomic.Bool

// OnlyEvents is for tests. It prevents recovery by mere repetition, so that a test fails if an event source is missing: until
// restore is called, controllers retry for a second and then wait for an event, and a Periodic pause is an hour.
func OnlyEvents() (restore func()) {
	before := onlyEvents.Swap(true)
	return func() { onlyEvents.Store(before) }
}

// Periodic returns the pause before a periodic action for which an event is missing or unreliable: pause itself, unless a test
// called OnlyEvents.
func Periodic(pause time.Duration) time.Duration {
	if onlyEvents.Load() {
		return never
	}
	return pause
}

// fewRetries stops retrying early under OnlyEvents.
type fewRetries struct {
	workqueue.TypedRateLimiter[reconcile.Request]
}

// When implements workqueue.TypedRateLimiter.
func (r fewRetries) When(req reconcile.Request) time.Duration {
	pause := r.TypedRateLimiter.When(req)
	if pause > lastFewRetry && onlyEvents.Load() {
		return never
	}
	return pause
}

// Retries returns the rate limiter of controllers. The default of controller-runtime differs in two ways. It allows all objects
// together ten retries per second: of a thousand objects that are created at once and each meet a conflict, the last would wait
// for minutes. And its back-off grows to a quarter of an hour: after an outage of the API server of that length, or without an
// event for a missing dependency, objects would wait as long again.
func Retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return fewRetries{workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)}
}

// Workers returns the options of a controller with n workers that retries as Retries does.
func Workers(n int) controller.Options {
	return controller.Options{MaxConcurrentReconciles: n, RateLimiter: Retries()}
}
