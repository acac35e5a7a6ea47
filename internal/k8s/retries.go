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

// Pauses between the attempts to reconcile one object, each twice as long as the one before.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
)

// What OnlyEvents makes of them: retries with a pause of up to lastFewRetry, which all take place within a second, and then never.
const (
	lastFewRetry = 320 * time.Millisecond
	never        = time.Hour
)

// onlyEvents is set by OnlyEvents.
var onlyEvents atomic.Bool

// OnlyEvents is for tests. It keeps a process from healing by repetition alone, so that a test fails where an event source is missing: until
// restore is called, controllers retry for a second and then wait for an event, and a Periodic pause is an hour.
func OnlyEvents() (restore func()) {
	before := onlyEvents.Swap(true)
	return func() { onlyEvents.Store(before) }
}

// Periodic is the pause before something is repeated that an event should have caused, or that has no events: the pause itself, unless a
// test called OnlyEvents.
func Periodic(pause time.Duration) time.Duration {
	if onlyEvents.Load() {
		return never
	}
	return pause
}

// fewRetries are retries that end early under OnlyEvents.
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

// Retries is when a controller tries again what has failed. The usual one allows all objects together ten attempts a second: of a thousand that
// are created at once, each of which meets a conflict, the last would wait for minutes. And its pauses grow to a quarter of an hour: after an API
// server that was away for as long, or where nothing tells that what was missing is there, objects would wait once more until then.
func Retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return fewRetries{workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)}
}

// Workers are the options of a controller with this many at work, which tries again as Retries says.
func Workers(n int) controller.Options {
	return controller.Options{MaxConcurrentReconciles: n, RateLimiter: Retries()}
}
