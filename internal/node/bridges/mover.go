// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bridges moves the interfaces of a node to bridges of Open vSwitch: the interfaces of provider networks, as the agent requests them (package providerbridge), and
// in the userspace datapath the tunnel interface. `kiln ovs` uses it. state.go has the states of an interface, and what each event does.
package bridges

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/model"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/supervisor"
)

// Options of the node.
type Options struct {
	Datapath v1alpha1.Datapath
	// TunnelInterface carries the tunnels; if empty, the interface that has NodeAddress does.
	TunnelInterface string
	// Node is the name of the node, and NodeAddress its InternalIP, an address of one of its interfaces.
	Node, NodeAddress string
	// RunDir is Open vSwitch's runtime directory.
	RunDir string
	// APIServer is the address of the API server; invalid if it is a name. A move that cuts it off is undone.
	APIServer netip.AddrPort
	// Sysctls is a writable /proc/sys/net; empty for that directory itself.
	Sysctls string
	Log     logr.Logger

	// step and managers are for tests.
	step     kernel.Step
	managers kernel.Managers
}

// kernel reports whether the kernel forwards packets.
func (o Options) kernel() bool { return o.Datapath != v1alpha1.DatapathUserspace }

// retryDelay is the pause before the next attempt after a failed reconciliation; an event ends it earlier.
const retryDelay = 2 * time.Second

// Mover keeps the bridges of provider networks as the agent requests them.
type Mover struct {
	options   Options
	directory journal.Directory
	managers  kernel.Managers
	changes   chan struct{}
	// raised has the shield of each bridge.
	raised map[string]raised
	// refused has the attempts that were refused, so that the targets are not probed, and rules not listed, at each event.
	refused map[string]refusal
	// proven has what DHCP servers and routers have renewed before moves, and asked when they were asked for each renewal.
	proven map[string]proof
	asked  map[string]time.Time
	// again is the time until the next reconciliation; 0 for none. moves counts moves for metrics.
	again time.Duration
	moves moveCounts
}

// New returns a Mover that has done nothing yet.
func New(o Options) *Mover {
	directory := journal.DirectoryIn(o.RunDir)
	directory.Step, directory.Sysctls, directory.Log = o.step, o.Sysctls, o.Log
	managers := o.managers
	if managers == (kernel.Managers{}) {
		managers = kernel.DefaultManagers
	}
	return &Mover{
		options: o, directory: directory, managers: managers, changes: make(chan struct{}, 1), raised: map[string]raised{}, refused: map[string]refusal{},
		proven: map[string]proof{}, asked: map[string]time.Time{},
	}
}

// Changed makes the next reconciliation start. It does not block.
func (m *Mover) Changed() {
	select {
	case m.changes <- struct{}{}:
	default: // a change is pending already
	}
}

// follow calls Changed when a request changes.
func (m *Mover) follow(db *client.Client) {
	db.Cache().AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc: func(table string, _ model.Model) {
			if table == vswitch.OpenvSwitchTable {
				m.Changed()
			}
		},
		UpdateFunc: func(_ string, before, after model.Model) {
			old, ok := before.(*vswitch.OpenvSwitch)
			row, same := after.(*vswitch.OpenvSwitch)
			if ok && same && !maps.Equal(old.ExternalIDs, row.ExternalIDs) {
				m.Changed()
			}
		},
	})
}

// Run reconciles until ctx ends: at the start, and at each change of a request, an interface, an address or a route.
func (m *Mover) Run(ctx context.Context, db *client.Client) {
	m.follow(db)
	for {
		var retry <-chan time.Time
		again, err := m.reconcile(ctx, db)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			m.options.Log.Error(err, "bridges of provider networks are not complete")
			again = retryDelay
		}
		if again > 0 {
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-m.changes:
		case <-retry:
		}
	}
}

// Guard undoes moves at their deadline, until ctx ends.
func (m *Mover) Guard(ctx context.Context) {
	g := &journal.Guard{Directory: m.directory, Log: m.options.Log, Returned: func() { m.moves.restored.Add(1); m.Changed() }}
	supervisor.Retry(ctx, func(err error) { m.options.Log.Error(err, "guarding interfaces again") }, func() error { return g.Run(ctx) })
}

// wake makes the next reconciliation start after a time at the latest.
func (m *Mover) wake(after time.Duration) {
	if m.again == 0 || after < m.again {
		m.again = after
	}
}

// network is a provider network in a pass.
type network struct {
	provider, bridge string
	db               *client.Client
	// request is nil for a network that the agent no longer requests.
	request *providerbridge.Request
	// user is another provider network that has the interface already, if any.
	user string
}

// reconcile makes the bridges as requested and reports them. It returns after which time to try again; 0 for no retry.
func (m *Mover) reconcile(ctx context.Context, db *client.Client) (again time.Duration, err error) {
	m.again = 0
	row, err := database.Root(ctx, db)
	if err != nil {
		return 0, err
	}
	requests, malformed := providerbridge.Requests(row.ExternalIDs)
	present, err := m.present(ctx, db)
	if err != nil {
		return 0, err
	}
	wanted := func(bridge string) bool {
		provider := providerbridge.Provider(bridge)
		_, is := requests[provider]
		return is || malformed[provider] != nil
	}
	var errs []error
	for _, bridge := range present {
		if !wanted(bridge) {
			result := m.advance(ctx, network{provider: providerbridge.Provider(bridge), bridge: bridge, db: db})
			errs = append(errs, errorOf(result))
		}
	}
	errs = append(errs, deleteCreated(func(bridge, _ string) bool { // of networks that never got a bridge
		return slices.Contains(present, bridge) || wanted(bridge)
	}))
	users, err := m.users(ctx, db, requests)
	if err != nil {
		return 0, err
	}
	for _, provider := range slices.Sorted(maps.Keys(requests)) {
		q := requests[provider]
		n := network{provider: provider, bridge: providerbridge.Bridge(provider), db: db, request: &q}
		if user := users[q.Interface]; user != provider {
			n.user = user
		}
		result := m.advance(ctx, n)
		if users[q.Interface] == "" && result.State != providerbridge.StateFailed {
			users[q.Interface] = provider
		}
		result.Interface, result.Attempt = q.Interface, q.Attempt
		errs = append(errs, errorOf(result), report(ctx, db, provider, result))
	}
	for provider, err := range malformed {
		errs = append(errs, report(ctx, db, provider, failed(providerbridge.ReasonInvalid, "%v", err)))
	}
	return m.again, errors.Join(append(errs, forget(ctx, db, requests, malformed))...)
}

// present returns the bridges that a provider network has, or had, in a fixed order.
func (m *Mover) present(ctx context.Context, db *client.Client) ([]string, error) {
	own, err := database.Own(ctx, db)
	if err != nil {
		return nil, err
	}
	journals, err := m.directory.List()
	list := slices.AppendSeq(journals, maps.Keys(own))
	slices.Sort(list)
	return slices.Compact(list), err
}

// users returns the provider network that has each interface, so that another one that requests it does not get it.
func (m *Mover) users(ctx context.Context, db *client.Client, requests map[string]providerbridge.Request) (map[string]string, error) {
	users := m.owners(requests)
	sharer, err := sharing(ctx, db)
	if q, found := requests[sharer]; found && m.sharesTunnels(q) {
		users[q.Interface] = sharer
	}
	return users, err
}

// owners returns the users of interfaces according to the journals.
func (m *Mover) owners(requests map[string]providerbridge.Request) map[string]string {
	owners := map[string]string{}
	for provider, q := range requests {
		j, err := m.directory.Read(providerbridge.Bridge(provider))
		if err != nil || j != nil && !j.Done && j.Uplink == q.Interface { // with an error it can have it, and reports the error itself
			owners[q.Interface] = provider
		}
	}
	return owners
}

func failed(reason providerbridge.Reason, format string, args ...any) providerbridge.Result {
	return providerbridge.Result{State: providerbridge.StateFailed, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func failure(err error) providerbridge.Result { return failed(providerbridge.ReasonError, "%v", err) }

// errorOf returns the error of a failure; nil for other results.
func errorOf(result providerbridge.Result) error {
	if result.Reason != providerbridge.ReasonError {
		return nil
	}
	return errors.New(result.Message)
}

// BeforeSwitchStarts forgets stored turns, and restores interfaces whose move was not completed, before ovs-vswitchd takes their packets.
func (m *Mover) BeforeSwitchStarts(ctx context.Context, db *client.Client) error {
	return errors.Join(forgetTurns(ctx, db), m.restoreUnfinished(ctx, db))
}

// report writes the result of a provider network if it changed.
func report(ctx context.Context, db *client.Client, provider string, result providerbridge.Result) error {
	row, err := database.Root(ctx, db)
	if err != nil {
		return err
	}
	old, found := providerbridge.Results(row.ExternalIDs)[provider]
	result.Time = time.Now().UTC().Truncate(time.Second)
	if found && old.State == result.State && old.Reason == result.Reason {
		result.Time = old.Time
	}
	return database.SetIDs(ctx, db, nil, map[string]string{providerbridge.ResultKey(provider): result.Format()})
}

// forget deletes the results of provider networks without a request.
func forget[T any](ctx context.Context, db *client.Client, requests map[string]T, malformed map[string]error) error {
	row, err := database.Root(ctx, db)
	if err != nil {
		return err
	}
	own, err := database.Own(ctx, db)
	if err != nil {
		return err
	}
	var remove []string
	for key := range row.ExternalIDs {
		provider, found := strings.CutPrefix(key, providerbridge.ResultKey(""))
		_, requested := requests[provider]
		if found && !requested && malformed[provider] == nil && own[providerbridge.Bridge(provider)] == "" {
			remove = append(remove, key)
		}
	}
	return database.SetIDs(ctx, db, remove, nil)
}
