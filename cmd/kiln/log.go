// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/go-logr/logr"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// envLogLevel is the environment variable with the log's verbosity, from 0 (info) up. The operator sets it from the OVNCluster.
const envLogLevel = "KILN_LOG_LEVEL"

// setLogger sets the logger of this process: JSON lines on standard error, for controller-runtime and client-go (klog).
func setLogger() error {
	verbosity := 0
	if s := os.Getenv(envLogLevel); s != "" {
		var err error
		if verbosity, err = strconv.Atoi(s); err != nil || verbosity < 0 || verbosity > 127 {
			return fmt.Errorf("%s is %q, not a number from 0 to 127", envLogLevel, s)
		}
	}
	readable := func(c *zapcore.EncoderConfig) { c.EncodeTime = zapcore.RFC3339NanoTimeEncoder }
	logger := zap.New(
		zap.JSONEncoder(readable), zap.Level(zapcore.Level(-verbosity)), zap.StacktraceLevel(zapcore.DPanicLevel))
	logger = logger.WithSink(lazySink{LogSink: logger.GetSink()})
	ctrl.SetLogger(logger)
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
	return nil
}

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
