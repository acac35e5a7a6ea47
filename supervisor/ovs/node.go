// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/nodehealth"
	"github.com/kiln-net/kiln/internal/ovncluster"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor"
)

// southboundPort is the database's port for nodes.
const southboundPort = 6642

// retryDelay is the pause before the next attempt after a failed reconciliation; an event ends it earlier.
const retryDelay = 2 * time.Second

// leaveTime bounds the return of addresses at the end.
const leaveTime = 5 * time.Second

// node is the supervisor's state on one node.
type node struct {
	options                       Options
	database, vswitch, controller *supervisor.Keeper
	tunnels                       *bridges.Tunnels
	mover                         *bridges.Mover
	// remotes are the newest connection methods of the southbound database.
	remotes []string
	guard   *guard
	// clusterID is the newest cluster ID of the southbound database. The flag is set while ovn-controller still needs a reset for a
	// replaced database.
	clusterID string
	anew      bool
	// configured, certified and switched together open ovn-controller's gate.
	configured, certified, switched func()
	db                              atomic.Pointer[client.Client]
	// endBringUp ends the bringing up of the last process of ovs-vswitchd, and waits until it has ended.
	endBringUp func()
	// waiting is set while ovs-vswitchd waits for flows and has none to save.
	waiting atomic.Bool
	// failed counts failed requests of figures for metrics. everyPort is set if every interface has series of its own.
	failed    atomic.Int64
	everyPort atomic.Bool
	sums      sums // of the collector alone
}

// Run runs the node's daemons until ctx ends. It stops them so that flows and the chassis stay for the next container. It
// returns an error if a person has to change something, or if a daemon keeps failing. It is long because it is the list of start steps and loops, whose order matters.
func Run(ctx context.Context, o Options) error {
	guard := newGuard(o)
	if err := guard.restore(ctx); err != nil { // before all steps that can fail: the databases of this node wait for it
		o.Log.Error(err, "the access to the databases' ports is limited only after the OVNCluster was read")
	}
	if err := checkDatapath(o); err != nil {
		return err
	}
	tunnels, err := bridges.NewTunnels(o.bridges())
	if err != nil {
		return err
	}
	if err := prepareDatabase(ctx, o); err != nil {
		return err
	}
	if err := forgetInstalled(ctx, o); err != nil {
		return err
	}
	if err := removeSockets(o); err != nil {
		return err
	}
	connected, gate := make(chan struct{}), make(chan struct{})
	n := &node{options: o, guard: guard, tunnels: tunnels, mover: bridges.New(o.bridges())}
	n.configured, n.certified, n.switched = gates(gate)
	n.database, n.vswitch, n.controller = daemons(o, connected, gate)
	changes := make(chan struct{}, 1)
	group, ctx := errgroup.WithContext(ctx)
	n.vswitch.BeforeStart = func(own context.Context) error { // the database is connected until ctx ends
		own, cancel := context.WithCancel(own)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		return n.beforeSwitchStarts(own, ctx)
	}
	n.vswitch.BeforeStop = n.beforeSwitchStops
	metrics := supervisor.MetricsHandler(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), supervisor.NewCollector(n.collect))
	if o.Access != nil {
		metrics = o.Access(metrics)
	}
	group.Go(func() error {
		report := supervisor.Endpoint{Path: nodehealth.Path, Handler: n.reports()}
		return supervisor.ServeHealth(ctx, o.HealthAddress, n.ready, n.versions, metrics, report)
	})
	group.Go(func() error { n.mover.Guard(ctx); return nil })
	group.Go(func() error { return supervisor.RunInOrder(ctx, n.database, n.vswitch, n.controller) })
	forNode, forGuard := make(chan *v1alpha1.OVNCluster, 1), make(chan *v1alpha1.OVNCluster, 1)
	group.Go(func() error { forward(ctx, o.Clusters, forNode, forGuard); return nil })
	group.Go(func() error {
		n.configure(ctx, sync.OnceFunc(func() { close(connected) }), forNode, changes)
		return nil
	})
	group.Go(func() error { guard.run(ctx, o.Node, forGuard); return nil })
	group.Go(func() error {
		changed := func() {
			select {
			case changes <- struct{}{}:
			default: // a change is pending already
			}
			n.mover.Changed()
		}
		supervisor.Retry(ctx, func(err error) { o.Log.Error(err, "subscribing again") }, func() error { return bridges.WatchKernel(ctx, changed) })
		return nil
	})
	group.Go(func() error {
		certificate{
			dir: o.certificates(), node: o.Node, trust: filepath.Join(o.TrustDir, ChassisTrustFile),
			requests: o.Requests, log: o.Log, denials: defaultDenials,
		}.run(ctx, n.certified)
		return nil
	})
	err = group.Wait()
	if n.endBringUp != nil {
		n.endBringUp()
	}
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	return errors.Join(err, n.mover.Leave(leaving), n.tunnels.Leave(leaving))
}

// gates returns functions that close the gate once all of them were called. Each may be called several times.
func gates(gate chan struct{}) (first, second, third func()) {
	var all sync.WaitGroup
	all.Add(3)
	go func() { all.Wait(); close(gate) }()
	return sync.OnceFunc(all.Done), sync.OnceFunc(all.Done), sync.OnceFunc(all.Done)
}

// forward passes the newest OVNCluster to receivers, until ctx ends. Each channel holds one: a receiver that is busy misses earlier ones.
func forward(ctx context.Context, clusters <-chan *v1alpha1.OVNCluster, receivers ...chan *v1alpha1.OVNCluster) {
	for {
		select {
		case <-ctx.Done():
			return
		case cluster := <-clusters:
			for _, receiver := range receivers {
				select {
				case <-receiver:
				default:
				}
				receiver <- cluster
			}
		}
	}
}

// configure reconciles the database and the kernel: at the start, at each change of the OVNCluster, and at each change of links,
// addresses and routes. It calls startSwitch once the database is ready.
func (n *node) configure(ctx context.Context, startSwitch func(), clusters <-chan *v1alpha1.OVNCluster, changes <-chan struct{}) {
	db := connect(ctx, n.options)
	if db == nil {
		return
	}
	defer db.Close()
	n.db.Store(db)
	supervisor.Retry(ctx, func(err error) { n.options.Log.Error(err, "preparing bridges of provider networks again") }, func() error {
		return n.mover.BeforeSwitchStarts(ctx, db)
	})
	startSwitch()
	var moves sync.WaitGroup
	moves.Go(func() { n.mover.Run(ctx, db) })
	defer moves.Wait()
	var retry, refresh <-chan time.Time
	if n.options.Datapath == v1alpha1.DatapathUserspace { // shields
		ticker := time.NewTicker(bridges.Refresh)
		defer ticker.Stop()
		refresh = ticker.C
	}
	for {
		switch err := n.reconcile(ctx, db); {
		case err == nil || errors.Is(err, bridges.ErrNoBridgeYet):
			retry = nil
		case ctx.Err() != nil:
			return
		default:
			n.options.Log.Error(err, "the node is not configured yet")
			retry = time.After(retryDelay)
		}
		select {
		case <-ctx.Done():
			return
		case cluster := <-clusters:
			n.follow(cluster.Status.Southbound)
			n.everyPort.Store(cluster.Spec.Monitoring.PortSeries == v1alpha1.PortSeriesAll)
		case <-changes:
		case <-refresh:
		case <-retry:
		}
	}
}

// follow stores the members of the southbound database that answer the operator, so that ovn-controller leaves a silent member long before
// its own probe: it keeps its connection if its member stays in the list. During a recovery it keeps the old ones until the new database is
// complete: ovn-controller cannot reach the old database then and leaves all flows unchanged. ovn-controller would take the new
// database for a stale copy of the old one, so it needs a reset.
func (n *node) follow(southbound v1alpha1.DatabaseStatus) {
	remotes := ovncluster.Endpoints(ovncluster.Answering(southbound), southboundPort)
	if southbound.Recovering() || len(remotes) == 0 {
		return
	}
	n.anew = n.anew || n.clusterID != "" && n.clusterID != southbound.ClusterID
	n.remotes, n.clusterID = remotes, southbound.ClusterID
}

// reset makes ovn-controller forget the last index of the southbound database. A restarted ovn-controller has no such state.
func (n *node) reset(ctx context.Context) error {
	if !n.anew {
		return nil
	}
	if _, err := n.controller.Call(ctx, "sb-cluster-state-reset"); err != nil && !errors.Is(err, supervisor.ErrNotRunning) {
		return fmt.Errorf("signal the re-created southbound database to ovn-controller: %w", err)
	}
	n.options.Log.Info("the southbound database was re-created", "clusterID", n.clusterID)
	n.anew = false
	return nil
}

// connect waits for the node's ovsdb-server and connects to it. It returns nil if ctx ends first.
func connect(ctx context.Context, o Options) *client.Client {
	report := func(err error) { o.Log.V(1).Info("retrying", "reason", err.Error()) }
	awaitSocket(ctx, o.socket(), report)
	var db *client.Client
	supervisor.Retry(ctx, report, func() (err error) {
		db, err = client.VSwitch(ctx, client.Options{Endpoints: []string{"unix:" + o.socket()}, Log: o.Log})
		return err
	})
	return db
}

func (n *node) reconcile(ctx context.Context, db *client.Client) error {
	if _, err := database.Root(ctx, db); err != nil {
		return err
	}
	address, err := n.tunnels.Address(ctx, db)
	if err != nil && !address.IsValid() {
		return err
	}
	configureErr := configure(ctx, db, settings{
		node:          n.options.Node,
		runDir:        n.options.RunDir,
		datapath:      n.options.Datapath,
		tunnelTypes:   n.options.TunnelTypes,
		encapsulation: address.String(),
		remotes:       n.remotes,
	})
	if configureErr == nil {
		n.configured()
		configureErr = n.reset(ctx)
	}
	return errors.Join(err, configureErr)
}

// versions returns the versions of Kiln and of the running daemons.
func (n *node) versions(ctx context.Context) (version.Programs, error) {
	programs := version.Programs{Kiln: version.Kiln}
	for daemon, of := range map[*supervisor.Keeper]*string{n.vswitch: &programs.OpenVSwitch, n.controller: &programs.OVN} {
		answer, err := daemon.Call(ctx, "version")
		if err != nil {
			return programs, err
		}
		*of = version.OfDaemon(answer)
	}
	return programs, nil
}

// ready returns an error that names the part of the node that does not serve.
func (n *node) ready(ctx context.Context) error {
	db := n.db.Load()
	if db == nil || !db.Connected() {
		return errors.New("not connected to the Open vSwitch database")
	}
	if _, err := n.vswitch.Call(ctx, "version"); err != nil {
		return err
	}
	status, err := n.controller.Call(ctx, "connection-status")
	if err != nil {
		return err
	}
	if status != "connected" {
		return fmt.Errorf("ovn-controller is %s: the southbound database is not reached", status)
	}
	return nil
}
