// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	crzap "sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// envLogLevel is the environment variable with the least verbosity of the log, from 0 (info) up. It applies before the process has read the
// OVNCluster, too.
const envLogLevel = "KILN_LOG_LEVEL"

// maxVerbosity is the largest verbosity that zap has a level for.
const maxVerbosity = 127

// processLog is the log of this process.
type processLog struct {
	least int32
	level zap.AtomicLevel
	text  atomic.Bool
}

// setLogger sets the logger of this process, for controller-runtime and client-go (klog): lines on standard error.
func setLogger() (*processLog, error) {
	l := &processLog{}
	if s := os.Getenv(envLogLevel); s != "" {
		verbosity, err := strconv.Atoi(s)
		if err != nil || verbosity < 0 || verbosity > maxVerbosity {
			return nil, fmt.Errorf("%s is %q, not a number from 0 to %d", envLogLevel, s, maxVerbosity)
		}
		l.least = int32(verbosity) //nolint:gosec // at most maxVerbosity
	}
	logger := l.logger(os.Stderr)
	ctrl.SetLogger(logger)
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
	return l, nil
}

// logger returns a logger that follows set, with JSON lines at first.
func (l *processLog) logger(to io.Writer) logr.Logger {
	// crzap would sample all messages if its level were higher at the start.
	l.level = zap.NewAtomicLevelAt(-maxVerbosity)
	readable := func(c *zapcore.EncoderConfig) { c.EncodeTime = zapcore.RFC3339NanoTimeEncoder }
	options := []crzap.Opts{crzap.WriteTo(to), crzap.Level(l.level), crzap.StacktraceLevel(zapcore.DPanicLevel)}
	text := crzap.NewRaw(append(options, crzap.ConsoleEncoder(readable))...).Core()
	logger := crzap.New(append(options, crzap.JSONEncoder(readable), crzap.RawZapOpts(zap.WrapCore(func(json zapcore.Core) zapcore.Core {
		return newCore(json, text, &l.text)
	}), zap.Hooks(countLine)))...)
	l.set(0, v1alpha1.LogJSON)
	return logger.WithSink(lazySink{LogSink: logger.GetSink()})
}

// lines has Kube-OVN's name, and klog's levels.
var lines = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "klog_lines_total", Help: "Lines of the log by level: INFO, WARNING or ERROR.",
}, []string{"level"})

func init() { metrics.Registry.MustRegister(lines) }

// countLine counts an entry that is written.
func countLine(entry zapcore.Entry) error {
	level := "INFO"
	switch {
	case entry.Level > zapcore.WarnLevel:
		level = "ERROR"
	case entry.Level == zapcore.WarnLevel:
		level = "WARNING"
	}
	lines.WithLabelValues(level).Inc()
	return nil
}

// set changes the verbosity and the format. Existing loggers follow.
func (l *processLog) set(verbosity int32, format v1alpha1.LogFormat) {
	verbosity = min(max(verbosity, l.least), maxVerbosity)
	l.level.SetLevel(zapcore.Level(-verbosity)) //nolint:gosec // at most maxVerbosity
	l.text.Store(format == v1alpha1.LogText)
}

// core writes entries by one of two cores. Of many equal messages at level info and above it writes a sample (100 of each per second, then
// every hundredth); messages of higher verbosity are complete, because each is about another decision.
type core struct {
	zapcore.Core // with all entries of the default format, for Enabled and Sync
	json, text   formatted
	isText       *atomic.Bool
}

// formatted is a core, and the same with a sampler.
type formatted struct{ all, sampled zapcore.Core }

func newCore(json, text zapcore.Core, isText *atomic.Bool) core {
	with := func(c zapcore.Core) formatted {
		return formatted{c, zapcore.NewSamplerWithOptions(c, time.Second, 100, 100)}
	}
	return core{Core: json, json: with(json), text: with(text), isText: isText}
}

// With implements zapcore.Core.
func (c core) With(fields []zapcore.Field) zapcore.Core {
	with := func(f formatted) formatted { return formatted{f.all.With(fields), f.sampled.With(fields)} }
	return core{Core: c.Core, json: with(c.json), text: with(c.text), isText: c.isText}
}

// Check implements zapcore.Core: the chosen core writes the entry.
func (c core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	chosen := c.json
	if c.isText.Load() {
		chosen = c.text
	}
	if entry.Level < zapcore.InfoLevel {
		return chosen.all.Check(entry, checked)
	}
	return chosen.sampled.Check(entry, checked)
}
