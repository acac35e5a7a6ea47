// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-logr/logr/testr"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestALevelAppliesToTheRunningDaemonAndToTheNext changes the level of an ovsdb-server, which then ends and is started again.
func TestALevelAppliesToTheRunningDaemonAndToTheNext(t *testing.T) {
	dir, level := supervisortest.RunDir(t), &LogLevel{}
	control := filepath.Join(dir, "control.ctl")
	k := &Keeper{Daemon: Daemon{
		Name: "ovsdb-server",
		Argv: slices.Concat(supervisortest.Program(t, "usr/sbin/ovsdb-server"), []string{
			"--no-db", "--remote=punix:" + filepath.Join(dir, "db.sock"), "--unixctl=" + control,
		}),
		Control:  func(int) string { return control },
		LogLevel: level, Log: testr.New(t),
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	until := func(want v1alpha1.DaemonLogLevel) {
		t.Helper()
		supervisortest.Eventually(t, "the level is "+string(want), func() error {
			list, err := k.Call(t.Context(), "vlog/list")
			if err != nil {
				return err
			}
			got, err := supervisortest.ConsoleLevel(list)
			if err == nil && got != string(want) {
				err = fmt.Errorf("the level is %s", got)
			}
			return err
		})
	}
	until("info")
	level.Set("warn")
	until("warn")
	level.Set("dbg") // the second of two changes is applied
	level.Set("err")
	until("err")
	if _, err := k.Call(t.Context(), "exit"); err != nil {
		t.Fatal(err)
	}
	until("err")
	level.Set("")
	until("info")
}
