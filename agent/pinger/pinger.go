// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pinger checks the network from a pod: other pods and nodes, external addresses, DNS, the API server, and the Open vSwitch of the pod's
// node. kube-ovn-pinger runs it on every node, in rounds or once. It needs neither a capability nor access to a database.
package pinger

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/nodehealth"
)

// Settings are the targets of checks, and the interval.
type Settings struct {
	// Interval is the time between the starts of two rounds.
	Interval time.Duration
	// Peers is the maximum number of other nodes whose address and pod are pinged.
	Peers                        int
	ExternalAddresses            []netip.Addr
	InternalNames, ExternalNames []string
}

// SettingsOf returns the settings of an OVNCluster. It omits addresses that the API would not accept.
func SettingsOf(spec v1alpha1.Pinger) Settings {
	s := Settings{
		Interval: v1alpha1.DefaultPingerInterval, Peers: v1alpha1.DefaultPeers, InternalNames: spec.InternalNames, ExternalNames: spec.ExternalNames,
	}
	if spec.Interval != nil {
		s.Interval = spec.Interval.Duration
	}
	if spec.Peers != nil {
		s.Peers = int(*spec.Peers)
	}
	for _, a := range spec.ExternalAddresses {
		s.ExternalAddresses = appendAddr(s.ExternalAddresses, a)
	}
	return s
}

func (s Settings) equal(o Settings) bool {
	return s.Interval == o.Interval && s.Peers == o.Peers && slices.Equal(s.ExternalAddresses, o.ExternalAddresses) &&
		slices.Equal(s.InternalNames, o.InternalNames) && slices.Equal(s.ExternalNames, o.ExternalNames)
}

const (
	// callTimeout bounds every check but pings, which have their own.
	callTimeout = 5 * time.Second
	// reportTimeout leaves `kiln ovs` the time to find that its daemons do not answer.
	reportTimeout = 10 * time.Second
	// settleTime is the time in which ovn-controller binds a new port, also on a busy node. jobSettleTime is shorter, because a person waits.
	settleTime    = 15 * time.Second
	jobSettleTime = 5 * time.Second
)

// Pinger checks the network from its pod.
type Pinger struct {
	// Node is the pod's node; PodIPs and HostIPs are the addresses of the pod and of its node.
	Node            string
	PodIPs, HostIPs []netip.Addr
	// Pods returns the pods of kube-ovn-pinger.
	Pods func(context.Context) ([]corev1.Pod, error)
	// APIServer sends a request to the API server, over a new connection.
	APIServer func(context.Context) error
	// Resolver resolves names as programs in pods do.
	Resolver *net.Resolver
	// Report returns the report of the node's ovs-ovn.
	Report func(context.Context) (nodehealth.Report, error)
	Log    logr.Logger

	settings atomic.Pointer[Settings]
	changed  chan struct{}
	once     sync.Once

	// settle is the time for which a port is not bound before it is an error.
	settle time.Duration
	// unbound are the ports that were not bound in the last report, with the time of the first such report.
	unbound map[string]time.Time
	// nodes is the number of pods of kube-ovn-pinger in the last round.
	nodes int
	// shared are the last results of the checks of servers that all nodes share, made skipped rounds ago with the settings checked.
	shared  []Result
	skipped int
	checked Settings
	// series are the targets of the last round, by their keys.
	series map[string]target
	// failing are the checks that failed in the last round, with the errors.
	failing map[string]string
}

func (p *Pinger) changes() chan struct{} {
	p.once.Do(func() { p.changed = make(chan struct{}, 1) })
	return p.changed
}

// Set changes the settings. The next round begins at once.
func (p *Pinger) Set(s Settings) {
	if before := p.settings.Swap(&s); before != nil && before.equal(s) {
		return
	}
	select {
	case p.changes() <- struct{}{}:
	default: // a change is pending already
	}
}

// Start checks in rounds until ctx ends. The first round begins with the first settings.
func (p *Pinger) Start(ctx context.Context) error {
	p.settle = settleTime
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-p.changes():
		}
		if s := p.settings.Load(); s != nil {
			timer.Reset(max(s.Interval, time.Second))
			p.logChanges(p.round(ctx, *s))
		}
	}
}

// NeedLeaderElection is false: every pod measures from its own node.
func (p *Pinger) NeedLeaderElection() bool { return false }

// round runs all checks concurrently, writes their metrics and returns the results in a fixed order.
func (p *Pinger) round(ctx context.Context, s Settings) []Result {
	targets, podsErr := p.targets(ctx, s)
	checks := p.checks(targets)
	due := p.dueShared(s)
	if due {
		checks = append(checks, p.sharedChecks(s)...)
	}
	results := make([][]Result, len(checks))
	var all sync.WaitGroup
	for i, check := range checks {
		all.Go(func() { results[i] = check(ctx) })
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil // interrupted checks are no results
	}
	flat := slices.Concat(results...)
	if due {
		p.shared = slices.DeleteFunc(slices.Clone(flat), func(r Result) bool { return !r.Check.shared() })
	} else {
		flat = append(flat, p.shared...)
	}
	if podsErr != nil {
		flat = append(flat, Result{Check: CheckPod, Target: "all", Err: podsErr})
	}
	byCheck := map[Check][]Result{}
	for _, r := range flat {
		byCheck[r.Check] = append(byCheck[r.Check], r)
	}
	for check, series := range pairs {
		if due || !check.shared() {
			series.record(p.Node, byCheck[check])
		}
	}
	p.recordPings(targets)
	p.recordPorts(byCheck[CheckPorts])
	return flat
}

// sharedNodes is the number of nodes up to which each checks the API server and names in every round. In larger clusters each does so in fewer rounds,
// so that the load on these servers does not grow.
const sharedNodes = 100

// dueShared reports whether this round has the checks of servers that all nodes share.
func (p *Pinger) dueShared(s Settings) bool {
	p.skipped++
	if p.shared != nil && p.checked.equal(s) && p.skipped*sharedNodes < p.nodes {
		return false
	}
	p.skipped, p.checked = 0, s
	return true
}

// logChanges logs the checks that began to fail, or to fail for another reason, and those that pass again.
func (p *Pinger) logChanges(results []Result) {
	if results == nil {
		return
	}
	failing := map[string]string{}
	for _, r := range results {
		key := string(r.Check) + " " + r.Target
		if r.Err != nil {
			failing[key] = r.Err.Error()
			if p.failing[key] == "" {
				p.Log.Info("a check fails", "check", r.Check, "target", r.Target, "reason", r.Err.Error())
			}
			continue
		}
		if p.failing[key] != "" {
			p.Log.Info("a check passes again", "check", r.Check, "target", r.Target)
		}
	}
	p.failing = failing
}
