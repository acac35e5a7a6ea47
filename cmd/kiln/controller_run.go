// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/controllers/service"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/controllers/vip"
	"github.com/kiln-net/kiln/controllers/vpc"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/version"
)

// Limits of requests to the API server, per second: a burst of pods is bound by the server, not by its client.
const (
	apiQPS   = 1000
	apiBurst = 2000
)

// Pods and Services that are reconciled at a time. A worker mostly waits for a reply, and the engine commits concurrent requests in one
// transaction: so there are more workers for pods than patches of pods in flight, which controllers/pod bounds.
const (
	podWorkers     = 384
	serviceWorkers = 16
)

// readyWithin is how long a readiness probe waits for a session with the northbound database that is just coming up.
const readyWithin = time.Second

// controllerProcess is `kiln controller`: a manager whose controllers are added once the northbound database can be reached.
type controllerProcess struct {
	options   controllerOptions
	config    *rest.Config
	manager   ctrl.Manager
	log       logr.Logger
	gate      *reconciler.StartGate
	allocator *ipam.Allocator
	pods      *pod.Reconciler
	vips      *vip.Reconciler
	eips      *ovneip.Reconciler
	policies  *policy.Reconciler
	services  *service.Reconciler
	session   atomic.Pointer[ovsdbclient.Session]
}

func runController(ctx context.Context, o controllerOptions) error {
	go limitMemory(ctx)
	kubeconfig, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("load the API server's address and credentials: %w", err)
	}
	kubeconfig.QPS, kubeconfig.Burst = apiQPS, apiBurst
	// A watch that began with the list is compressed for its whole life (Kubernetes 1.37): every event would be flushed through gzip.
	kubeconfig.DisableCompression = true
	p := &controllerProcess{
		options: o, config: kubeconfig, log: ctrl.Log.WithName("controller"), gate: reconciler.NewStartGate(), allocator: ipam.New(),
	}
	if p.manager, err = p.newManager(); err != nil {
		return err
	}
	if err := p.manager.Add(onEveryReplica(p.run)); err != nil {
		return fmt.Errorf("add the start of the controllers: %w", err)
	}
	err = p.manager.Start(ctx)
	if session := p.session.Load(); session != nil {
		session.Close()
	}
	if err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

func (p *controllerProcess) newManager() (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme), policy.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	election := p.options.election
	lock, err := p.options.own.Lock(p.config, k8s.EventRecorder, election.renewDeadline)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(p.config, ctrl.Options{
		Scheme:                              scheme,
		Cache:                               trimmedCache(),
		LeaderElection:                      election.enabled,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       &election.leaseDuration,
		RenewDeadline:                       &election.renewDeadline,
		RetryPeriod:                         &election.retryPeriod,
		PprofBindAddress:                    p.options.pprofAddress,
		Controller:                          controllerconfig.Controller{EnableWarmup: new(true)},
		Metrics: metricsserver.Options{
			BindAddress: p.options.address,
			ExtraHandlers: map[string]http.Handler{
				"/healthz":   healthz.CheckHandler{Checker: healthz.Ping},
				"/readyz":    healthz.CheckHandler{Checker: p.ready},
				version.Path: version.Handler(version.Own),
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, nil
}

// ready reports whether the session with the northbound database is connected.
func (p *controllerProcess) ready(req *http.Request) error {
	session := p.session.Load()
	if session == nil {
		return errors.New("the northbound database was not reached yet")
	}
	ctx, cancel := context.WithTimeout(req.Context(), readyWithin)
	defer cancel()
	return session.WaitConnected(ctx)
}

// needed returns the kinds that the leader reads before it allocates addresses, and the small kinds of other controllers.
func needed() []client.Object {
	return []client.Object{
		&corev1.Pod{}, &corev1.Node{}, &corev1.Namespace{}, &corev1.Service{}, &discoveryv1.EndpointSlice{},
		&kubeovnv1.Subnet{}, &kubeovnv1.Vpc{}, &appsv1.StatefulSet{}, &kubeovnv1.IPPool{}, &kubeovnv1.Vip{}, &kubeovnv1.OvnEip{},
		&networkingv1.NetworkPolicy{}, &kubeovnv1.SecurityGroup{}, policy.Definition(),
	}
}

// warm starts the informers of the needed kinds and does not wait for them. They list while the process connects to the northbound
// database, and on replicas that do not lead.
func (p *controllerProcess) warm(ctx context.Context) error {
	for _, kind := range needed() {
		if _, err := p.manager.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	return nil
}

// run connects to the northbound database, adds the controllers and the engine, and then follows the members of the database.
func (p *controllerProcess) run(ctx context.Context) error {
	if err := p.warm(ctx); err != nil {
		return err
	}
	members, err := watchMembers(ctx, p.config)
	if err != nil {
		return err
	}
	session, err := p.connect(ctx, members)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	p.session.Store(session)
	clusterID := members.clusterID
	engine, err := northbound.New(session, p.log.WithName("northbound"))
	if err != nil {
		return fmt.Errorf("make the northbound engine: %w", err)
	}
	if err := p.addControllers(ctx, engine); err != nil {
		return err
	}
	err = errors.Join(
		p.manager.Add(onEveryReplica(engine.Start)),
		p.manager.Add(onEveryReplica(func(ctx context.Context) error { return p.reportHealth(ctx, engine) })),
		p.manager.Add(manager.RunnableFunc(func(ctx context.Context) error { return p.lead(ctx, session, engine, clusterID) })),
	)
	if err != nil {
		return fmt.Errorf("add the northbound engine: %w", err)
	}
	return members.follow(ctx, session.SetEndpoints)
}

// lead prepares a new leader: it creates the default objects, takes a term that fences off the previous leader, and restores the
// allocator. Then it opens the gate, and reconciliation starts. It returns when the term ends.
func (p *controllerProcess) lead(ctx context.Context, session *ovsdbclient.Session, engine *northbound.Engine, clusterID string) error {
	c := p.manager.GetClient()
	if err := vpc.CreateDefault(ctx, c); err != nil {
		return err
	}
	if err := subnet.CreateDefaults(ctx, c, subnet.Defaults{PodCIDRs: p.options.podCIDRs, JoinCIDRs: p.options.joinCIDRs}); err != nil {
		return err
	}
	if err := session.WaitConnected(ctx); err != nil {
		return fmt.Errorf("wait for the northbound database: %w", err)
	}
	if err := engine.Lead(ctx); err != nil {
		return fmt.Errorf("take the lead: %w", err)
	}
	over := engine.Over()
	if err := p.policies.Restore(ctx); err != nil {
		return fmt.Errorf("restore the selections of policies: %w", err)
	}
	if err := p.services.Restore(ctx); err != nil {
		return fmt.Errorf("restore the costs of Services: %w", err)
	}
	if err := p.pods.Restore(ctx, p.manager.GetAPIReader()); err != nil {
		return fmt.Errorf("restore the leases of pods: %w", err)
	}
	if err := p.vips.Restore(ctx); err != nil {
		return fmt.Errorf("restore the addresses of Vips: %w", err)
	}
	if err := p.eips.Restore(ctx); err != nil {
		return fmt.Errorf("restore the addresses of OvnEips: %w", err)
	}
	p.gate.Open()
	p.log.Info("leading")
	writers, writersCtx := errgroup.WithContext(ctx)
	writers.Go(func() error { return p.reportWritten(writersCtx, clusterID) })
	writers.Go(func() error {
		select {
		case <-over:
			return errDeposed
		case <-writersCtx.Done():
			return nil
		}
	})
	return writers.Wait()
}

// errDeposed ends the process, which releases the Lease: only a restarted process takes a new term and reads the current content of the
// database.
var errDeposed = errors.New("the northbound database holds another term, although this process holds the Lease: the database was restored, or its NB_Global changed by hand")

// onEveryReplica is a runnable that does not wait for the lead.
type onEveryReplica func(context.Context) error

// Start runs it (manager.Runnable).
func (f onEveryReplica) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection is false (manager.LeaderElectionRunnable).
func (onEveryReplica) NeedLeaderElection() bool { return false }
