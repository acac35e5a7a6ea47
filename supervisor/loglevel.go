// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"sync"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// LogLevel is the level of the logs of daemons, which can change while they run. The zero value and nil are info.
type LogLevel struct {
	mu      sync.Mutex
	level   v1alpha1.DaemonLogLevel
	changed chan struct{}
}

// Set changes the level; empty for info.
func (l *LogLevel) Set(level v1alpha1.DaemonLogLevel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.level == level {
		return
	}
	l.level = level
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// get returns the level, and a channel that is closed when it changes.
func (l *LogLevel) get() (level v1alpha1.DaemonLogLevel, changed <-chan struct{}) {
	if l == nil {
		return v1alpha1.DaemonLogInfo, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return cmp.Or(l.level, v1alpha1.DaemonLogInfo), l.changed
}

// logArgs make a daemon log to standard error only, from a level on.
func logArgs(level v1alpha1.DaemonLogLevel) []string {
	return []string{"-v" + toConsole(level), "-vsyslog:off", "-vfile:off"}
}

// toConsole returns the level of standard error in the form of vlog/set (ovs-appctl(8)).
func toConsole(level v1alpha1.DaemonLogLevel) string { return "console:" + string(level) }

// followLogLevel applies changes of the level until the process ends. It was started with the level applied.
func (p *Process) followLogLevel(applied v1alpha1.DaemonLogLevel) {
	for p.Err() == nil {
		level, changed := p.daemon.LogLevel.get()
		current, cancel := context.WithCancel(context.Background())
		go func() {
			defer cancel()
			select {
			case <-changed:
			case <-p.done:
			}
		}()
		if level != applied {
			applied = "" // a call that is interrupted may have been executed
			Retry(current, p.reportLogLevel(current), func() error {
				_, err := p.Call(current, "vlog/set", toConsole(level))
				if err == nil {
					applied = level
					p.daemon.Log.Info("the log has another level", "daemon", p.daemon.Name, "level", level)
				}
				return err
			})
		}
		<-current.Done()
	}
}

// reportLogLevel returns a function that logs why the level is set again, until ctx ends.
func (p *Process) reportLogLevel(ctx context.Context) func(error) {
	return func(err error) {
		if ctx.Err() == nil {
			p.daemon.Log.Error(err, "setting the level of the log again", "daemon", p.daemon.Name)
		}
	}
}
