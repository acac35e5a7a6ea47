// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package northd is `kiln northd`: it runs ovn-northd against the databases of the OVNCluster.
package northd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor"
)

// Ports of the databases for ovn-northd.
const (
	northboundPort = 6641
	southboundPort = 6649
)

// statusInterval is the interval at which the supervisor queries whether the daemon is active. The daemon sends no notification:
// it is active while it holds a lock in the southbound database (RFC 7047, section 4.1.8), and only the holder sees the lock.
const statusInterval = 2 * time.Second

// Options of `kiln northd`.
type Options struct {
	// RunDir holds the control socket: /run/ovn.
	RunDir string
	// TLSDir holds tls.crt, tls.key, ca.crt and admin-ca.crt.
	TLSDir string
	// HealthAddress of the probes. MetricsAddress is the address at which metrics are served to kube-ovn-monitor; none when empty.
	HealthAddress, MetricsAddress string
	// Node is the node's name.
	Node string
	// Program is ovn-northd, with leading arguments if it needs any to run.
	Program []string
	// Clusters delivers the newest OVNCluster (ovncluster.Watch).
	Clusters <-chan *v1alpha1.OVNCluster
	// Leads receives at each change whether this ovn-northd is the active one.
	Leads chan<- bool
	// Writes receives, at each change, the cluster ID of the southbound database that this ovn-northd writes while it is active.
	Writes chan<- string
	// Runs receives, at each change, a hash of the members' addresses that this ovn-northd runs with and is connected to.
	Runs chan<- string
	// Turn returns when the active ovn-northd may restart with these members: after a standby has restarted with them, or if there
	// is no standby.
	Turn func(ctx context.Context, members string)
	// LogLevel is the level of ovn-northd; nil for info.
	LogLevel *supervisor.LogLevel
	Log      logr.Logger
}

// DefaultProgram is the path in Debian's packages.
var DefaultProgram = []string{"/usr/bin/ovn-northd"}

type supervised struct {
	options Options
	running atomic.Pointer[supervisor.Process]
	// with holds the databases of the running daemon; active is the process that last reported that it is active.
	with   atomic.Pointer[databases]
	active atomic.Pointer[supervisor.Process]
	// leaders are the newest known ones. restart requests a restart, because the daemon does not find them.
	leaders atomic.Pointer[string]
	restart chan string
}

// Run runs ovn-northd until ctx ends and restarts it with new addresses when the members of a database change. It returns an
// error when the daemon ends by itself.
func Run(ctx context.Context, o Options) error {
	if err := os.MkdirAll(o.RunDir, 0o755); err != nil { //nolint:gosec // other users of the node list it; secrets are in files of mode 0600
		return fmt.Errorf("make the directory of sockets: %w", err)
	}
	s := &supervised{options: o, restart: make(chan string)}
	s.leaders.Store(new(string))
	s.with.Store(&databases{})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return supervisor.ServeHealth(ctx, o.HealthAddress, s.ready, s.versions, nil) })
	group.Go(func() error { return s.follow(ctx) })
	group.Go(func() error { s.watchStatus(ctx); return nil })
	group.Go(func() error { s.watchFloods(ctx); return nil })
	group.Go(func() error { s.serveMetrics(ctx); return nil })
	return group.Wait()
}

// follow runs a daemon with the databases of the newest OVNCluster.
func (s *supervised) follow(ctx context.Context) error {
	var current databases
	for {
		next, err := s.next(ctx, current)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if err := s.stop(); err != nil {
			return err
		}
		if current = next; !next.complete() {
			continue
		}
		process, err := s.daemon(next).Start()
		if err != nil {
			return err
		}
		s.with.Store(&next)
		s.running.Store(process)
	}
}

// next waits until the daemon has to restart and returns the databases to restart with. It also returns when the daemon ends,
// and when ctx ends, after it has stopped the daemon.
func (s *supervised) next(ctx context.Context, current databases) (databases, error) {
	var ended <-chan struct{}
	process := s.running.Load()
	if process != nil {
		ended = process.Done()
	}
	var pending databases
	var turn <-chan struct{}
	forget := func() {}
	defer func() { forget() }()
	for {
		select {
		case <-ctx.Done():
			return current, s.stop()
		case <-ended:
			return current, process.Err()
		case <-turn:
			s.options.Log.Info("the databases have other members now", "northbound", pending.northbound, "southbound", pending.southbound)
			return pending, nil
		case leaders := <-s.restart:
			s.options.Log.Info("restarting ovn-northd: it does not find the new leader of a database", "leaders", leaders)
			if pending.complete() { // no later event may report these members
				current = pending
			}
			current.leaders = leaders
			return current, nil
		case cluster := <-s.options.Clusters:
			next := databasesOf(cluster)
			if next.leaders != "" {
				s.leaders.Store(&next.leaders)
			}
			if next.recovering && !current.recovering {
				s.options.Log.Info("stopping until the northbound database is complete again")
				return databases{recovering: true}, nil
			}
			if !next.complete() || next.equal(pending) {
				continue
			}
			forget()
			pending, turn = databases{}, nil
			if process != nil && s.active.Load() == process && next.onlyMoved(current) && !next.equal(current) {
				own, cancel := context.WithCancel(ctx)
				pending, forget = next, cancel
				turn = s.awaitTurn(own, next.members())
				continue
			}
			if !next.equal(current) {
				s.options.Log.Info("the databases are elsewhere now", "northbound", next.northbound, "southbound", next.southbound)
				return next, nil
			}
		}
	}
}

// awaitTurn returns a channel that is closed when this daemon may restart. A standby restarts first, so that it can take over at
// once with all its data already read.
func (s *supervised) awaitTurn(ctx context.Context, members string) <-chan struct{} {
	turn := make(chan struct{})
	go func() {
		s.options.Turn(ctx, members)
		if ctx.Err() == nil {
			close(turn)
		}
	}()
	return turn
}

func (s *supervised) stop() error {
	if process := s.running.Swap(nil); process != nil {
		return process.Stop()
	}
	return nil
}

func (s *supervised) daemon(d databases) supervisor.Daemon {
	o := s.options
	control := filepath.Join(o.RunDir, "ovn-northd.ctl")
	return supervisor.Daemon{
		Name: "ovn-northd",
		Argv: slices.Concat(o.Program, []string{
			"--ovnnb-db=" + strings.Join(d.northbound, ","),
			"--ovnsb-db=" + strings.Join(d.southbound, ","),
			"--unixctl=" + control,
		}, supervisor.TLSArgs(
			filepath.Join(o.TLSDir, "tls.key"), filepath.Join(o.TLSDir, "tls.crt"), filepath.Join(o.TLSDir, "ca.crt"),
		)),
		Control:  func(int) string { return control },
		LogLevel: o.LogLevel,
		Log:      o.Log,
	}
}

// watchStatus sends to Leads, Runs and Writes when their values change, and requests a restart when the daemon is not connected
// to the newest leaders.
func (s *supervised) watchStatus(ctx context.Context) {
	ticker := time.NewTicker(statusInterval)
	defer ticker.Stop()
	reported, active, written, runs := false, 0, "", ""
	var asked *supervisor.Process // the process whose answers active counts
	found, lost := "", 0          // the leaders that it was connected to, and the number of checks without a connection to newer ones
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		with, process := s.with.Load(), s.running.Load() // in this order: the databases of process are then with or newer
		begun := time.Now()
		status, err := s.call(ctx, "status")
		if process != nil {
			answerTime.WithLabelValues(s.options.Node).Observe(time.Since(begun).Seconds())
		}
		if err != nil && s.running.Load() != nil {
			continue // in a long computation, which does not change its role
		}
		if process != asked {
			asked, active = process, 0
		}
		leads := status == "Status: active"
		if active++; !leads {
			active = 0
		}
		if leads {
			s.active.Store(process)
		} else {
			s.active.Store(nil)
		}
		if leads != reported {
			reported = leads
			send(ctx, s.options.Leads, leads)
		}
		if members := with.members(); members != runs && s.ready(ctx) == nil {
			runs = members
			send(ctx, s.options.Runs, members)
		}
		leaders := *s.leaders.Load()
		connected, err := true, error(nil)
		if process != nil && leaders != found && leaders != with.leaders {
			connected, err = s.connected(ctx)
		}
		switch {
		case err != nil: // busy: this says nothing about its connections
		case connected:
			found, lost = leaders, 0
		case lost > 0:
			lost = 0
			s.reconnect(ctx, leaders)
		default:
			lost++
		}
		// By the second answer "active", ovn-northd has committed the changes that it computed when it became active.
		if id := with.southboundID; active > 1 && id != written {
			written = id
			send(ctx, s.options.Writes, id)
		}
	}
}

// reconnect requests a restart of the daemon. A daemon without a connection tries the members in turn. It waits up to 8 s
// between attempts (RECONNECT_DEFAULT_MAX_BACKOFF in Open vSwitch's lib/reconnect.h), and as long for a member whose node is
// down, so that it would find a new leader half a minute late. Without a connection, a restart loses nothing.
func (s *supervised) reconnect(ctx context.Context, leaders string) {
	select {
	case s.restart <- leaders:
	case <-time.After(statusInterval): // a restart with other members is about to happen
	case <-ctx.Done():
	}
}

func send[T any](ctx context.Context, to chan<- T, value T) {
	select {
	case to <- value:
	case <-ctx.Done():
	}
}

// ready returns nil when the daemon is active or standby, and connected to both databases.
func (s *supervised) ready(ctx context.Context) error {
	for _, check := range []struct {
		command string
		good    []string
	}{
		{"status", []string{"Status: active", "Status: standby"}},
		{"nb-connection-status", []string{"connected"}},
		{"sb-connection-status", []string{"connected"}},
	} {
		answer, err := s.call(ctx, check.command)
		if err != nil {
			return err
		}
		if !slices.Contains(check.good, answer) {
			return fmt.Errorf("%s of ovn-northd is %q", check.command, answer)
		}
	}
	return nil
}

// connected reports whether the daemon is connected to both databases.
func (s *supervised) connected(ctx context.Context) (bool, error) {
	for _, command := range []string{"nb-connection-status", "sb-connection-status"} {
		if answer, err := s.call(ctx, command); err != nil || answer != "connected" {
			return false, err
		}
	}
	return true, nil
}

// versions returns the versions of Kiln and of the running daemon.
func (s *supervised) versions(ctx context.Context) (version.Programs, error) {
	answer, err := s.call(ctx, "version")
	return version.Programs{Kiln: version.Kiln, OVN: version.OfDaemon(answer)}, err
}

func (s *supervised) call(ctx context.Context, command string) (string, error) {
	process := s.running.Load()
	if process == nil {
		return "", errors.New("ovn-northd waits until the status of OVNCluster `default` has the addresses of both databases and no recovery is under way")
	}
	return process.Call(ctx, command)
}
