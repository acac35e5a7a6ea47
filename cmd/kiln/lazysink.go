// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"github.com/go-logr/logr"
)

// lazySink delays the encoding of a logger's values until something is logged. Zap encodes them immediately, which allocates 5 kB for
// each pass of a reconciler, and few passes log anything.
type lazySink struct {
	logr.LogSink
	values []any
}

// WithValues implements logr.LogSink.
func (s lazySink) WithValues(values ...any) logr.LogSink {
	return lazySink{s.LogSink, append(slices.Clip(s.values), values...)}
}

// WithName implements logr.LogSink.
func (s lazySink) WithName(name string) logr.LogSink {
	return lazySink{s.LogSink.WithName(name), s.values}
}

// WithCallDepth implements logr.CallDepthLogSink.
func (s lazySink) WithCallDepth(depth int) logr.LogSink {
	if sink, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		return lazySink{sink.WithCallDepth(depth), s.values}
	}
	return s
}

// Info implements logr.LogSink.
func (s lazySink) Info(level int, message string, values ...any) {
	s.LogSink.Info(level, message, append(slices.Clip(s.values), values...)...)
}

// Error implements logr.LogSink.
func (s lazySink) Error(err error, message string, values ...any) {
	s.LogSink.Error(err, message, append(slices.Clip(s.values), values...)...)
}
