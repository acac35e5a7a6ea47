// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/kiln-net/kiln/internal/supervisor"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
	"github.com/kiln-net/kiln/internal/supervisor/unixctl"
)

// member is the running member: an adminapi.Database over its control socket.
type member struct {
	options Options
	// waiting is what the member says while the server has not been started.
	waiting atomic.Pointer[adminapi.Status]
}

var _ adminapi.Database = (*member)(nil)

// Run runs a member until ctx ends, when it stops the server, which hands leadership over first. It returns an error when the
// file must not be used or the server ended by itself: the kubelet starts the container again.
func Run(ctx context.Context, o Options) error {
	if !o.Listen.IsValid() {
		o.Listen = anyAddress()
	}
	m := &member{options: o}
	m.wait("starting")
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return supervisor.ServeHealth(ctx, o.HealthAddress, m.ready) })
	group.Go(func() error {
		address := net.JoinHostPort(o.Listen.String(), strconv.Itoa(o.Database.AdminPort))
		return adminapi.Serve(ctx, address, o.TLSDir, m)
	})
	group.Go(func() error { return m.serve(ctx) })
	return group.Wait()
}

func (m *member) serve(ctx context.Context) error {
	f := newFiles(m.options)
	if err := m.prepare(ctx, f); err != nil || ctx.Err() != nil {
		return err
	}
	daemon, err := m.options.server(f.path)
	if err != nil {
		return err
	}
	process, err := daemon.Start()
	if err != nil {
		return err
	}
	m.waiting.Store(nil)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		select {
		case <-process.Done():
			return process.Err()
		case <-ctx.Done():
			return process.Stop()
		}
	})
	group.Go(func() error { m.watchLead(ctx); return nil })
	return group.Wait()
}

// prepare returns once there is a file to start, or ctx has ended.
func (m *member) prepare(ctx context.Context, f files) error {
	m.wait("no OVNCluster `default` was seen yet")
	for {
		select {
		case <-ctx.Done():
			return nil
		case cluster := <-m.options.Clusters:
			file, err := f.identify(ctx)
			if err != nil {
				return err
			}
			plan, err := decide(file, m.options.Database.Of(cluster.Status), m.options.Node, m.options.Address)
			if err != nil {
				return err
			}
			if plan.step != stepWait {
				return m.begin(ctx, f, plan)
			}
			m.waiting.Store(&adminapi.Status{Waiting: plan.reason, NeedsRejoin: plan.rejoin})
			m.options.Log.Info("waiting", "reason", plan.reason)
		}
	}
}

func (m *member) begin(ctx context.Context, f files, p plan) error {
	switch p.step {
	case stepCreate:
		m.options.Log.Info("creating the cluster", "file", f.path, "address", f.local)
		return f.create(ctx)
	case stepRejoin:
		aside, err := f.setAside()
		if err != nil {
			return err
		}
		m.options.Log.Info("set the database file aside", "reason", p.reason, "to", aside)
		fallthrough
	case stepJoin:
		m.options.Log.Info("joining the cluster", "file", f.path, "address", f.local, "clusterID", p.clusterID, "through", p.remotes)
		return f.join(ctx, p)
	case stepWait, stepStart:
	}
	m.options.Log.Info("starting the member", "file", f.path)
	return nil
}

func (m *member) wait(reason string) { m.waiting.Store(&adminapi.Status{Waiting: reason}) }

// watchLead tells Leads of each change. The socket may not be there yet, and goes when the server does.
func (m *member) watchLead(ctx context.Context) {
	tell := func(leads bool) {
		select {
		case m.options.Leads <- leads:
		case <-ctx.Done():
		}
	}
	report := func(err error) {
		if ctx.Err() == nil {
			m.options.Log.V(1).Info("retrying", "reason", err.Error())
		}
	}
	supervisor.Retry(ctx, report, func() error {
		return watchLeader(ctx, m.options.socket(), m.options.Database.Name, tell)
	})
}

// ready says why the member does not serve.
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

// Status implements adminapi.Database.
func (m *member) Status(ctx context.Context) (adminapi.Status, error) {
	if waiting := m.waiting.Load(); waiting != nil {
		return *waiting, nil
	}
	text, err := m.call(ctx, "cluster/status", m.options.Database.Name)
	if err != nil {
		return adminapi.Status{}, err
	}
	raft, err := unixctl.ParseRaft(text)
	if err != nil {
		return adminapi.Status{}, err
	}
	status := adminapi.Status{
		ClusterID:     raft.ClusterID,
		ServerID:      raft.ServerID,
		Address:       raft.Address,
		Role:          raft.Role,
		Term:          raft.Term,
		Leader:        raft.Leader,
		LeaderAddress: raft.LeaderAddress(),
		Connected:     raft.Connected(),
		Members:       make([]adminapi.Member, 0, len(raft.Servers)),
	}
	for _, s := range raft.Servers {
		status.Members = append(status.Members, adminapi.Member{ServerID: s.ID, Address: s.Address})
	}
	return status, nil
}

// Kick implements adminapi.Database. It names the server itself: ovsdb-server 3.5 takes an unknown name for its own when it is the
// only member, and leaves.
func (m *member) Kick(ctx context.Context, server string) error {
	status, err := m.Status(ctx)
	if err != nil {
		return err
	}
	address, err := toKick(status, server)
	if err != nil {
		return err
	}
	_, err = m.call(ctx, "cluster/kick", m.options.Database.Name, address)
	return err
}

// toKick returns the address of the one other member that server means.
func toKick(status adminapi.Status, server string) (string, error) {
	var found []string
	for _, member := range status.Members {
		if server == member.Address || len(server) >= 4 && server[:4] == member.ServerID {
			found = append(found, member.Address)
		}
	}
	switch {
	case len(found) != 1:
		return "", fmt.Errorf("%d members are %q", len(found), server)
	case found[0] == status.Address:
		return "", fmt.Errorf("%q is this member itself: let it leave", server)
	}
	return found[0], nil
}

// Leave implements adminapi.Database.
func (m *member) Leave(ctx context.Context) error {
	_, err := m.call(ctx, "cluster/leave", m.options.Database.Name)
	return err
}

// Compact implements adminapi.Database.
func (m *member) Compact(ctx context.Context) error {
	_, err := m.call(ctx, "ovsdb-server/compact", m.options.Database.Name)
	return err
}

func (m *member) call(ctx context.Context, command string, args ...string) (string, error) {
	return unixctl.Call(ctx, m.options.control(), command, args...)
}
