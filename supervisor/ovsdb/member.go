// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/ovsdb/startup"
)

// member is the running member: an adminapi.Database over its control socket.
type member struct {
	options Options
	// waiting is the reported status while the server has not been started; nil while it runs.
	waiting atomic.Pointer[adminapi.Status]
	// cluster is the newest OVNCluster. see changes it.
	cluster *v1alpha1.OVNCluster
	// installation is the UID of the OVNCluster; nil before it is known.
	installation atomic.Pointer[types.UID]
	// began is the record (DatabaseMember.since) of the file that the server runs on.
	began atomic.Pointer[time.Time]
	// refused is ovsdb-server's error when it cannot read the file; nil after begin has replaced the file.
	refused atomic.Pointer[string]
	// guarded receives a value when the access to the member's ports is limited.
	guarded chan struct{}
	// backups are reported by the administrative endpoint.
	backups backups
}

var _ adminapi.Database = (*member)(nil)

// Run runs a member until ctx ends. Then it stops the server, which transfers leadership first. It returns an error if the file
// must not be used or if the server ended by itself, so that the kubelet restarts the container.
func Run(ctx context.Context, o Options) error {
	if !o.Listen.IsValid() {
		o.Listen = anyAddress()
	}
	m := &member{options: o}
	m.wait("starting")
	group, ctx := errgroup.WithContext(ctx)
	m.guarded = make(chan struct{}, 1)
	group.Go(func() error { m.watchGuard(ctx, m.guarded); return nil })
	group.Go(func() error { return supervisor.ServeHealth(ctx, o.HealthAddress, m.ready, m.versions, nil) })
	group.Go(func() error {
		address := net.JoinHostPort(o.Listen.String(), strconv.Itoa(o.Database.AdminPort))
		metrics := supervisor.MetricsHandler(supervisor.NewCollector(m.collect))
		return adminapi.Serve(ctx, address, o.TLSDir, adminapi.Handler(m, metrics))
	})
	group.Go(func() error {
		if o.PreviousDataDir != "" {
			m.wait("moving the database to another directory")
			if err := moveData(ctx, o.Database, o.PreviousDataDir, o.DataDir, o.Log); err != nil {
				return err
			}
		}
		for {
			// A member that has left, or whose cluster was replaced, starts over.
			err := m.serve(ctx)
			m.leads(ctx, false) // a server that has ended does not lead, and may have ended before it reported that
			if errors.Is(err, errFailed) {
				m.untilWritable(ctx)
			} else if !errors.Is(err, errSuperseded) && !errors.Is(err, errLeft) && !errors.Is(err, errRefused) {
				return err
			}
		}
	})
	return group.Wait()
}

// see takes the newest OVNCluster.
func (m *member) see(cluster *v1alpha1.OVNCluster) {
	m.cluster = cluster
	m.installation.Store(&cluster.UID)
	if err := m.recordGuard(); err != nil {
		m.options.Log.Error(err, "the next start after a reboot may not wait for the limits of the ports")
	}
}

// errSuperseded is returned when a recovery has replaced the database, so that the server must not continue with its file.
var errSuperseded = errors.New("the database was re-created")

func (m *member) serve(ctx context.Context) error {
	f := newFiles(m.options)
	if err := m.prepare(ctx, f); err != nil || ctx.Err() != nil {
		return err
	}
	began, err := f.readSince()
	if err != nil {
		return err
	}
	daemon, err := m.options.server(f.path)
	if err != nil {
		return err
	}
	failed := make(chan struct{}, 1)
	daemon.Said = func(line string) {
		if strings.Contains(line, f.path+": write failed") && len(failed) == 0 {
			failed <- struct{}{}
		}
		if strings.Contains(line, "failed to open database '"+f.path+"'") {
			m.refused.Store(&line)
		}
	}
	process, err := daemon.Start()
	if err != nil {
		return err
	}
	m.began.Store(&began)
	m.waiting.Store(nil)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := m.follow(ctx, f, began); err != nil {
			m.wait(err.Error())
			return err
		}
		return nil
	})
	group.Go(func() error {
		select {
		case <-process.Done():
			if m.refused.Load() != nil {
				return errRefused
			}
			return process.Err()
		case <-ctx.Done():
			return process.Stop()
		}
	})
	group.Go(func() error {
		select {
		case <-failed:
			return errFailed
		case <-ctx.Done():
			return nil
		}
	})
	group.Go(func() error {
		err := m.watchLead(ctx)
		if err != nil {
			m.wait(err.Error())
		}
		return err
	})
	return group.Wait()
}

// follow makes backups until ctx ends. It returns errSuperseded when the cluster is replaced, also while a backup is in progress.
func (m *member) follow(ctx context.Context, f files, began time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	newest := make(chan *v1alpha1.OVNCluster, 1)
	var running sync.WaitGroup
	running.Go(func() {
		whenDue(ctx, newest, func(cluster *v1alpha1.OVNCluster) time.Duration { return m.backUpIfDue(ctx, f, cluster) })
	})
	defer running.Wait()
	defer cancel()
	for {
		if startup.Superseded(began, m.options.Database.Of(m.cluster.Status)) {
			return errSuperseded
		}
		select {
		case <-newest: // the backups have not received the former one
		default:
		}
		newest <- m.cluster
		select {
		case <-ctx.Done():
			return nil
		case cluster := <-m.options.Clusters:
			m.see(cluster)
		}
	}
}

// prepare returns once there is a file to start with, or ctx ends.
func (m *member) prepare(ctx context.Context, f files) error {
	m.backups.found(f)
	if m.cluster == nil {
		m.wait("no OVNCluster `default` was seen yet")
	}
	for {
		if m.cluster != nil && m.mustWait(f) {
			m.waitForGuard()
		} else if m.cluster != nil {
			if begun, err := m.tryToBegin(ctx, f); begun || err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case cluster := <-m.options.Clusters:
			m.see(cluster)
		case <-m.guarded:
		}
	}
}

func (m *member) tryToBegin(ctx context.Context, f files) (begun bool, err error) {
	file, err := f.identify(ctx)
	if err != nil {
		return false, err
	}
	if why := m.refused.Load(); why != nil && file != nil && file.Unusable == nil {
		file.Unusable = fmt.Errorf("%w: %s", errRefused, *why)
	}
	plan, err := startup.Decide(file, m.options.Database.Of(m.cluster.Status), m.options.Node, m.options.Address)
	if err != nil {
		return false, err
	}
	if plan.Step != startup.Wait {
		return true, m.begin(ctx, f, plan)
	}
	waiting := &adminapi.Status{Waiting: plan.Reason, NeedsRejoin: plan.Rejoin}
	if file.Moved() {
		waiting.MovedClusterID = file.ClusterID
	}
	m.waiting.Store(waiting)
	m.options.Log.Info("waiting", "reason", plan.Reason)
	return false, nil
}

func (m *member) begin(ctx context.Context, f files, p startup.Plan) error {
	m.refused.Store(nil)
	switch p.Step {
	case startup.Create:
		m.options.Log.Info("creating the cluster", "file", f.path, "address", f.local)
		return f.create(ctx)
	case startup.Recover:
		m.options.Log.Info("re-creating the database", "file", f.path, "from", p.Source, "backup", p.Backup)
		if err := m.fetch(ctx, f, p); err != nil {
			return err
		}
		aside, err := f.recover(ctx, p)
		if err == nil && aside != "" {
			m.options.Log.Info("kept the database file", "as", aside)
		}
		return err
	case startup.Rejoin:
		aside, err := f.setAside()
		if err != nil {
			return err
		}
		m.options.Log.Info("set the database file aside", "reason", p.Reason, "to", aside)
		fallthrough
	case startup.Join:
		m.options.Log.Info("joining the cluster", "file", f.path, "address", f.local, "clusterID", p.ClusterID, "through", p.Remotes)
		return f.join(ctx, p)
	case startup.Wait, startup.Start:
	}
	m.options.Log.Info("starting the member", "file", f.path)
	return nil
}

func (m *member) wait(reason string) { m.waiting.Store(&adminapi.Status{Waiting: reason}) }

// leads sends whether this member is the leader.
func (m *member) leads(ctx context.Context, leads bool) {
	select {
	case m.options.Leads <- leads:
	case <-ctx.Done():
	}
}

// watchLead sends each change to Leads, and keeps BFD sessions while the member leads, until ctx ends or the member has left. The socket exists only while the
// server runs, so it retries.
func (m *member) watchLead(ctx context.Context) (left error) {
	end := func() {}
	var running sync.WaitGroup
	defer running.Wait()
	defer func() { end() }()
	changed := func(leads bool) {
		m.leads(ctx, leads)
		end()
		var own context.Context
		if own, end = context.WithCancel(ctx); leads && m.options.Database.Name == Southbound.Name {
			running.Go(func() { m.keepSessions(own) })
		}
	}
	report := func(err error) {
		if ctx.Err() == nil {
			m.options.Log.V(1).Info("retrying", "reason", err.Error())
		}
	}
	supervisor.Retry(ctx, report, func() error {
		err := watchLeader(ctx, m.options.socket(), m.options.Database.Name, changed)
		if errors.Is(err, errLeft) {
			left, err = err, nil
		}
		return err
	})
	return left
}

// errFailed is returned when the server could not write its file. After that, a leader stops taking part in the cluster but
// still reports its role, and a follower never responds to the leader again. Neither recovers when the disk has room again; a
// restarted server does.
var errFailed = errors.New("ovsdb-server could not write its database file")

// errRefused is returned when ovsdb-server cannot read a file that is valid for ovsdb-tool. A follower on a full disk may have
// recorded as committed an entry that it could not write.
var errRefused = errors.New("ovsdb-server cannot read its database file")

// untilWritable waits until the member's disk is writable again. Meanwhile it reports the failure.
func (m *member) untilWritable(ctx context.Context) {
	f := newFiles(m.options)
	report := func(err error) {
		text := fmt.Sprintf("%v: %v; make room on the node's disk", errFailed, err)
		m.waiting.Store(&adminapi.Status{Waiting: text, DiskFailure: text})
		m.options.Log.Error(err, "waiting until the disk can be written")
	}
	supervisor.Retry(ctx, report, f.probe)
}

// ready returns an error that says why the member does not serve.
func (m *member) ready(ctx context.Context) error {
	if waiting := m.waiting.Load(); waiting != nil {
		return errors.New(waiting.Waiting)
	}
	status, err := m.Status(ctx)
	if err != nil {
		return err
	}
	if !status.Connected {
		return fmt.Errorf("%s is not connected to its cluster: role %s, term %d, leader %q", m.options.Database.Name, status.Role,
			status.Term, status.Leader)
	}
	return nil
}
