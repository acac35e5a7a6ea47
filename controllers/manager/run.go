// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manager composes the controllers of `kiln controller`: their shared parts, the order of the start, and the reports of the process.
package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/egressaddress"
	"github.com/kiln-net/kiln/controllers/loadbalancer"
	"github.com/kiln-net/kiln/controllers/ovneip"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/controllers/routergateway"
	"github.com/kiln-net/kiln/controllers/service"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/controllers/vip"
	"github.com/kiln-net/kiln/controllers/vpc"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/limits"
	"github.com/kiln-net/kiln/internal/northbound"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/serving/scrape"
	"github.com/kiln-net/kiln/internal/trim"
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

// Options are the settings of the process.
type Options struct {
	// PodCIDRs and JoinCIDRs are the prefixes of the subnets ovn-default and join, ServiceCIDRs the value of the API server's flag; at most one per
	// family each.
	PodCIDRs, JoinCIDRs, ServiceCIDRs []netip.Prefix
	// PodGateways, PodVlan and ExcludeIPs are settings of the subnet ovn-default when it is created.
	PodGateways []netip.Addr
	PodVlan     string
	ExcludeIPs  []string
	// TLSDirectory contains the certificate for the northbound database.
	TLSDirectory string
	// Address is the listen address of metrics, /healthz and /readyz. Access limits the clients that may read metrics; nil for no limit.
	Address string
	Access  func(metrics http.Handler) http.Handler
	// PprofAddress is the listen address of profiles; empty to serve none.
	PprofAddress string
	// Own identifies the process's pod, which holds the leader's Lease.
	Own      k8s.Identity
	Election Election
	// KeepVMIP retains the addresses of KubeVirt's virtual machines.
	KeepVMIP bool
	// Membership, ClusterAccess and PortSecurity are defaults of objects that do not set their own (v1alpha1.Tenancy).
	Membership    v1alpha1.Membership
	ClusterAccess kubeovnv1.ClusterAccess
	PortSecurity  kubeovnv1.PortSecurity
	// PodAccess and NetworkPolicies are OVNCluster.spec.services.podAccess and .policies.networkPolicies.
	PodAccess       v1alpha1.PodAccess
	NetworkPolicies v1alpha1.NetworkPolicies
	// Protection is OVNCluster.spec.network.controlPlaneProtection.
	Protection v1alpha1.ControlPlaneProtection
	// Observe is called with every state of the OVNCluster. It must not block, and may be nil.
	Observe func(*v1alpha1.OVNCluster)
}

// Election has the settings of the leader election (client-go, leaderelection.LeaderElectionConfig).
type Election struct {
	Enabled                                   bool
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// process is a manager whose controllers are added once the northbound database can be reached.
type process struct {
	options  Options
	config   *rest.Config
	manager  ctrl.Manager
	clients  kubernetes.Interface
	log      logr.Logger
	shared   *reconciler.Shared
	pods     *pod.Reconciler
	subnets  *subnet.Reconciler
	vips     *vip.Reconciler
	eips     *ovneip.Reconciler
	policies *policy.Reconciler
	services *service.Reconciler
	// pools are the addresses for Services that balancers assigns.
	pools     loadbalancer.Pools
	balancers *loadbalancer.Reconciler
	limits    limits.Cluster
	external  routergateway.Settings
	speakers  egressaddress.Speakers
	session   atomic.Pointer[ovsdbclient.Session]
}

// Run runs the controllers until ctx ends. It returns an error if the process cannot start, or must end because another one leads or the northbound
// database was re-created.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = apiQPS, apiBurst
	// A watch that began with the list is compressed for its whole life (Kubernetes 1.37): every event would be flushed through gzip.
	config.DisableCompression = true
	p := &process{options: o, config: config, log: ctrl.Log.WithName("controller")}
	var err error
	if p.clients, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make a client of pods and Leases: %w", err)
	}
	if p.manager, err = p.newManager(); err != nil {
		return err
	}
	if err := p.manager.Add(onEveryReplica(p.run)); err != nil {
		return fmt.Errorf("add the start of the controllers: %w", err)
	}
	counter := objectCounter{reader: p.manager.GetClient(), elected: p.manager.Elected()}
	if err := metrics.Registry.Register(counter); err == nil { // otherwise another manager of this process, in a test, counts
		defer metrics.Registry.Unregister(counter)
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

func (p *process) newManager() (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme), policy.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	election := p.options.Election
	lock, err := p.options.Own.Lock(p.config, k8s.EventRecorder, election.RenewDeadline)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(p.config, ctrl.Options{
		Scheme:                              scheme,
		Cache:                               trim.Cache(),
		LeaderElection:                      election.Enabled,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       &election.LeaseDuration,
		RenewDeadline:                       &election.RenewDeadline,
		RetryPeriod:                         &election.RetryPeriod,
		PprofBindAddress:                    p.options.PprofAddress,
		Controller:                          controllerconfig.Controller{EnableWarmup: new(true)},
		Metrics:                             scrape.NoServer(),
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	served := scrape.Served{Address: p.options.Address, Probes: scrape.ProbesLocal, Ready: p.ready, Access: p.options.Access}
	if err := scrape.Serve(mgr, served); err != nil {
		return nil, err
	}
	return mgr, nil
}

// ready reports whether the session with the northbound database is connected.
func (p *process) ready(req *http.Request) error {
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
func (p *process) warm(ctx context.Context) error {
	for _, kind := range needed() {
		if _, err := p.manager.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	return nil
}

// run connects to the northbound database, adds the controllers and the engine, and then follows the members of the database.
func (p *process) run(ctx context.Context) error {
	if err := p.warm(ctx); err != nil {
		return err
	}
	members, err := watchMembers(ctx, p.config, func(cluster *v1alpha1.OVNCluster) {
		p.pools.Set(&cluster.Spec)
		p.limits.Set(&cluster.Spec)
		p.external.Set(cluster)
		p.speakers.Set(&cluster.Spec)
		if p.options.Observe != nil {
			p.options.Observe(cluster)
		}
	})
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
func (p *process) lead(ctx context.Context, session *ovsdbclient.Session, engine *northbound.Engine, clusterID string) error {
	c := p.manager.GetClient()
	if err := vpc.CreateDefault(ctx, c); err != nil {
		return err
	}
	if err := subnet.CreateDefaults(ctx, c, p.defaults()); err != nil {
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
		return fmt.Errorf("restore the allocations of pods: %w", err)
	}
	if err := p.vips.Restore(ctx); err != nil {
		return fmt.Errorf("restore the addresses of Vips: %w", err)
	}
	if err := p.eips.Restore(ctx); err != nil {
		return fmt.Errorf("restore the addresses of OvnEips: %w", err)
	}
	if err := p.balancers.Restore(ctx); err != nil {
		return fmt.Errorf("restore the addresses of load balancers: %w", err)
	}
	p.shared.Gate.Open()
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

// defaults returns the CIDRs of the subnets that always exist.
func (p *process) defaults() subnet.Defaults {
	o := p.options
	return subnet.Defaults{PodCIDRs: o.PodCIDRs, JoinCIDRs: o.JoinCIDRs, PodGateways: o.PodGateways, PodVlan: o.PodVlan, ExcludeIPs: o.ExcludeIPs}
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
