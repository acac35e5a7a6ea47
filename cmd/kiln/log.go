// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"

	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// envLogLevel is the verbosity of the log, from 0 (info) on. The operator sets it from the OVNCluster.
const envLogLevel = "KILN_LOG_LEVEL"

// setLogger makes the log of this process: JSON lines on standard error, for controller-runtime and client-go (klog) alike.
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
	ctrl.SetLogger(logger)
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
	return nil
}
