// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/model"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/providerbridge"
	"github.com/kiln-net/kiln/internal/supervisor"
	"github.com/kiln-net/kiln/internal/uplink"
)

// Times of a move. Tests shorten them.
var (
	// trialTime is from the beginning of a move to its deadline.
	trialTime = 30 * time.Second
	// answerTime is for targets to answer before a move.
	answerTime = 2 * time.Second
	// attachTime is for ovs-vswitchd to create or attach an interface.
	attachTime = 10 * time.Second
	// verifyMargin is from the end of the verification to the deadline, so that the cause is this process's, which knows it.
	verifyMargin = time.Second
	// unreachableRetry is the pause before a move whose gateways and nodes did not answer, or whose interface is named by rules, is tried again.
	unreachableRetry = 30 * time.Second
	// firstPause is from a move that was undone to the next attempt; each further one is pauseFactor times as long, up to lastPause.
	firstPause, lastPause = time.Minute, 6 * time.Hour
)

const pauseFactor = 4

// providers keeps the bridges of provider networks as the agent requests them (package providerbridge).
type providers struct {
	options   Options
	directory uplink.Directory
	managers  uplink.Managers
	changes   chan struct{}
	// raised has the shield of each bridge.
	raised map[string]raised
	// refused has the attempts that were refused, so that the targets are not probed, and rules not listed, at each event.
	refused map[string]refusal
	// proven has the leases that DHCP servers have renewed before moves, and asked when they were asked for each lease.
	proven map[string]proof
	asked  map[string]time.Time
	// again is the time until the next reconciliation; 0 for none. moves counts moves for metrics.
	again time.Duration
	moves moveCounts
}

// refusal is the result of an attempt that changed nothing.
type refusal struct {
	attempt string
	turn    bool
	at      time.Time
	result  providerbridge.Result
}

func newProviders(o Options) *providers {
	directory := uplink.DirectoryIn(o.RunDir)
	directory.Step, directory.Sysctls, directory.Log = o.step, o.Sysctls, o.Log
	managers := o.managers
	if managers == (uplink.Managers{}) {
		managers = uplink.DefaultManagers
	}
	return &providers{
		options: o, directory: directory, managers: managers, changes: make(chan struct{}, 1), raised: map[string]raised{}, refused: map[string]refusal{},
		proven: map[string]proof{}, asked: map[string]time.Time{},
	}
}

// changed makes the next reconciliation start. It does not block.
func (p *providers) changed() {
	select {
	case p.changes <- struct{}{}:
	default: // a change is pending already
	}
}

// follow calls changed when a request changes.
func (p *providers) follow(db *client.Client) {
	db.Cache().AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc: func(table string, _ model.Model) {
			if table == vswitch.OpenvSwitchTable {
				p.changed()
			}
		},
		UpdateFunc: func(_ string, before, after model.Model) {
			old, ok := before.(*vswitch.OpenvSwitch)
			row, same := after.(*vswitch.OpenvSwitch)
			if ok && same && !maps.Equal(old.ExternalIDs, row.ExternalIDs) {
				p.changed()
			}
		},
	})
}

// run reconciles until ctx ends: at the start, and at each change of a request, an interface, an address or a route.
func (p *providers) run(ctx context.Context, db *client.Client) {
	p.follow(db)
	for {
		var retry <-chan time.Time
		again, err := p.reconcile(ctx, db)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			p.options.Log.Error(err, "bridges of provider networks are not complete")
			again = retryDelay
		}
		if again > 0 {
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.changes:
		case <-retry:
		}
	}
}

// guard undoes moves at their deadline.
func (p *providers) guard(ctx context.Context) {
	g := &uplink.Guard{Directory: p.directory, Log: p.options.Log, Returned: func() { p.moves.restored.Add(1); p.changed() }}
	supervisor.Retry(ctx, func(err error) { p.options.Log.Error(err, "guarding interfaces again") }, func() error { return g.Run(ctx) })
}

// wake makes the next reconciliation start after a time at the latest.
func (p *providers) wake(after time.Duration) {
	if p.again == 0 || after < p.again {
		p.again = after
	}
}

// reconcile makes the bridges as requested and reports them. It returns after which time to try again; 0 for no retry.
func (p *providers) reconcile(ctx context.Context, db *client.Client) (again time.Duration, err error) {
	p.again = 0
	row, err := root(ctx, db)
	if err != nil {
		return 0, err
	}
	requests, malformed := providerbridge.Requests(row.ExternalIDs)
	have, err := ownBridges(ctx, db)
	if err != nil {
		return 0, err
	}
	journals, err := p.directory.List()
	if err != nil {
		return 0, err
	}
	var errs []error
	present := merged(have, named(journals))
	wanted := func(bridge string) bool {
		provider := providerbridge.Provider(bridge)
		_, is := requests[provider]
		return is || malformed[provider] != nil
	}
	for _, bridge := range slices.Sorted(maps.Keys(present)) {
		if !wanted(bridge) {
			errs = append(errs, p.release(ctx, db, providerbridge.Provider(bridge), "the provider network was removed from the node"))
		}
	}
	errs = append(errs, deleteCreated(func(bridge, _ string) bool { // of networks that never got a bridge
		_, is := present[bridge]
		return is || wanted(bridge)
	}))
	users := p.users(requests)
	sharer, err := sharing(ctx, db)
	if err != nil {
		return 0, err
	}
	if q, found := requests[sharer]; found && p.sharesTunnels(q) {
		users[q.Interface] = sharer
	}
	for _, provider := range slices.Sorted(maps.Keys(requests)) {
		q := requests[provider]
		user := users[q.Interface]
		if user == provider {
			user = ""
		}
		result := p.ensure(ctx, db, provider, q, user)
		if users[q.Interface] == "" && result.State != providerbridge.StateFailed {
			users[q.Interface] = provider
		}
		result.Interface, result.Attempt = q.Interface, q.Attempt
		if result.Reason == providerbridge.ReasonError {
			errs = append(errs, errors.New(result.Message))
		}
		errs = append(errs, report(ctx, db, provider, result))
	}
	for provider, err := range malformed {
		errs = append(errs, report(ctx, db, provider, failed(providerbridge.ReasonInvalid, "%v", err)))
	}
	return p.again, errors.Join(append(errs, forget(ctx, db, requests, malformed))...)
}

// users returns the provider network that has each interface, so that another one that requests it does not get it.
func (p *providers) users(requests map[string]providerbridge.Request) map[string]string {
	users := map[string]string{}
	for provider, q := range requests {
		j, err := p.directory.Read(providerbridge.Bridge(provider))
		if err != nil || j != nil && !j.Done && j.Uplink == q.Interface { // with an error it can have it, and reports the error itself
			users[q.Interface] = provider
		}
	}
	return users
}

func named(bridges []string) map[string]string {
	set := map[string]string{}
	for _, b := range bridges {
		set[b] = ""
	}
	return set
}

func failed(reason providerbridge.Reason, format string, args ...any) providerbridge.Result {
	return providerbridge.Result{State: providerbridge.StateFailed, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func failure(err error) providerbridge.Result { return failed(providerbridge.ReasonError, "%v", err) }

// kernel reports whether the kernel forwards packets.
func (p *providers) kernel() bool { return p.options.Datapath != v1alpha1.DatapathUserspace }

// apiServer returns the target that stands for the API server; invalid if its address is not known.
func (p *providers) apiServer() netip.AddrPort { return p.options.APIServer }

// holders returns the interfaces that can have the addresses of an interface, the most probable one first. While it moves to the bridge of a provider
// network, or returns, either of them has some.
func (p *providers) holders(name string) []string {
	bridges, err := p.directory.List()
	if err != nil {
		return []string{name}
	}
	for _, bridge := range bridges {
		j, err := p.directory.Read(bridge)
		switch {
		case err != nil || j == nil || j.Uplink != name || j.Done || len(j.Before.Addresses) == 0:
		case j.Phase == uplink.PhaseReturned:
			return []string{name, bridge}
		default:
			return []string{bridge, name}
		}
	}
	return []string{name}
}
