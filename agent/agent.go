// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package agent is the node agent, kube-ovn-cni. It connects the CNI server, the node's network, the Services proxy and the routes of
// probes.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/knftables"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/cniserver"
	"github.com/kiln-net/kiln/agent/flush"
	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/probes"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/agent/services"
	"github.com/kiln-net/kiln/agent/underlay"
	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/serving/scrape"
	"github.com/kiln-net/kiln/internal/svc"
)

// sweepInterval is the interval at which stale ports, for which no DEL will arrive, are removed. Nothing depends on a short interval.
const sweepInterval = 5 * time.Minute

// Options of the agent.
type Options struct {
	// Node is this node's name, Namespace the namespace of the agent's pod.
	Node      string
	Namespace string
	// Services are the CIDRs of Services, at most one per family.
	Services []netip.Prefix
	// ServeServices makes this agent, instead of a kube-proxy, serve Services to the node and to clients outside.
	ServeServices bool
	// TunnelTypes are geneve or vxlan, or both; TunnelInterface is the interface configured for tunnels, if any.
	TunnelTypes     []string
	TunnelInterface string
	// MTU of pods in bytes; 0 to compute it from the tunnel interface.
	MTU int
	// PluginSource is the directory of CNI plugins in the image. They are copied to CNIBinDir, and the conflist is written to CNIConfDir.
	PluginSource string
	CNIBinDir    string
	CNIConfDir   string
	// CNIConfPriority is two digits, the start of the conflist's name; host.DefaultPriority when empty.
	CNIConfPriority string
	// ToolSource is the kubectl plugin in the image. It is copied to ToolingDir, if that is not empty.
	ToolSource string
	ToolingDir string
	// CNISocket is the socket on which the agent listens, OVSSocket the socket of the Open vSwitch database.
	CNISocket string
	OVSSocket string
	// Address is the listen address of metrics, /healthz and /readyz. Access limits the clients that may read metrics; nil for no limit.
	Address string
	Access  func(metrics http.Handler) http.Handler `json:"-"` // tests pass options to another process
	// Sysctls is the directory through which kernel parameters are written; /proc/sys when empty.
	Sysctls string
	// Mirror is the setting of the node's mirror, which the caller sets; nil for no mirror.
	Mirror *cniserver.MirrorSetting `json:"-"`
}

// Run runs the agent until ctx ends. Pods keep their network after it stops. Health is served from the beginning; the other parts start
// when Open vSwitch is available.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	if o.Sysctls != "" {
		sandbox.Sysctls = o.Sysctls
	}
	go guardUplinks(ctx, o.OVSSocket) // needs neither the API server nor Open vSwitch
	nft, err := knftables.New(knftables.InetFamily, host.NATTable)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	ready := &readiness{}
	mgr, err := newManager(config, o, ready.check)
	if err != nil {
		return err
	}
	var database *ovsdbclient.Client
	err = mgr.Add(manager.RunnableFunc(func(ctx context.Context) (err error) {
		database, err = connect(ctx, o.OVSSocket)
		if err != nil || ctx.Err() != nil {
			return err
		}
		return serve(ctx, mgr, o, ovs.New(database), nft, ready)
	}))
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	err = mgr.Start(ctx)
	if database != nil { // only after Start, which gives operations in flight time to finish
		database.Close()
	}
	if err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

// guardUplinks restores interfaces whose move to a bridge was not completed, until ctx ends. The process that moves them, `kiln ovs`, can be dead.
func guardUplinks(ctx context.Context, socket string) {
	logger := ctrl.Log.WithName("uplinks")
	guard := journal.Guard{Directory: journal.DirectoryIn(filepath.Dir(socket)), Log: logger}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := guard.Run(ctx); err != nil {
			logger.Error(err, "cannot guard interfaces that move to bridges")
		}
	}, time.Second)
}

// serve adds the node's network, the CNI server and the Services proxy to a running manager.
func serve(ctx context.Context, mgr ctrl.Manager, o Options, bridge *ovs.Bridge, nft knftables.Interface, ready *readiness) error {
	cidrs, err := svc.NewCIDRs(mgr.GetRESTMapper(), mgr.GetClient(), o.Services)
	if err != nil {
		return err
	}
	mtuChanged := make(chan struct{}, 1)
	served := make(chan struct{})
	probed := &probes.Controller{
		Client: mgr.GetClient(), Bridge: bridge, Services: cidrs, Recorder: mgr.GetEventRecorder(probes.Recorder), Node: o.Node, APIServer: hostOf(mgr.GetConfig()),
	}
	checkSwitch := func(ctx context.Context) error { return ovs.CheckSwitch(ctx, filepath.Dir(o.OVSSocket)) }
	node := &host.Reconciler{
		Client:          mgr.GetClient(),
		Node:            o.Node,
		Bridge:          bridge,
		NFT:             nft,
		Services:        cidrs,
		FixedMTU:        o.MTU,
		TunnelTypes:     o.TunnelTypes,
		TunnelInterface: o.TunnelInterface,
		MTUChanged:      mtuChanged,
		Switch:          checkSwitch,
		NetworksChanged: probed.Wake,
		RuleDeleted:     probed.RuleDeleted,
		Plugin:          host.Plugin{Source: o.PluginSource, BinDir: o.CNIBinDir, ConfDir: o.CNIConfDir, Priority: o.CNIConfPriority, Socket: o.CNISocket},
		Served:          sync.OnceFunc(func() { close(served) }),
	}
	pods, err := cniserver.NewPods(ctx, mgr.GetCache(), mgr.GetAPIReader())
	if err != nil {
		return err
	}
	neighbours := &underlay.Neighbours{Bridge: bridge, Subnets: mgr.GetClient()}
	server := &cniserver.Server{
		Socket: o.CNISocket, Node: o.Node, Bridge: bridge, Pods: pods, Probes: probed, MTU: node.MTU, MTUChanged: mtuChanged,
		ProviderMTU:     func(ctx context.Context, provider string) (int, error) { return underlay.MTU(ctx, bridge, provider) },
		CheckNeighbours: neighbours.Check,
		Services:        cidrs.List,
		Mirror:          cmp.Or(o.Mirror, &cniserver.MirrorSetting{}),
		Recorder:        mgr.GetEventRecorder(probes.Recorder),
		Ready: func(ctx context.Context) error {
			if !pods.Synced() {
				return errors.New("the pods of this node are not known yet")
			}
			return node.Ready(ctx)
		},
	}
	ready.set(server.Ready)
	if err := errors.Join(serveServices(ctx, mgr, o, cidrs), addTool(mgr, o, served)); err != nil {
		return err
	}
	providers := &underlay.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Node: o.Node, Bridge: bridge, Neighbours: neighbours,
		Recorder: mgr.GetEventRecorder(probes.Recorder),
		MTUChanged: func() {
			select {
			case mtuChanged <- struct{}{}:
			default:
			}
		},
	}
	lease := &host.Lease{Client: mgr.GetClient(), Node: o.Node, Namespace: o.Namespace, Wanted: node.Gateway, Ready: func(ctx context.Context) error {
		if err := node.Ready(ctx); err != nil {
			return err
		}
		return checkSwitch(ctx)
	}}
	connections := &flush.Reconciler{Client: mgr.GetClient(), Node: o.Node, Connections: ovs.Connections{Directory: filepath.Dir(o.OVSSocket)}}
	if err := errors.Join(connections.SetupWithManager(mgr), node.SetupWithManager(mgr), probed.SetupWithManager(mgr), providers.SetupWithManager(mgr), mgr.Add(lease), server.SetupWithManager(mgr), mgr.Add(sweeper(mgr, server))); err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	return nil
}

// addTool installs the kubectl plugin after the node's network has served, so that it does not delay the first pods.
func addTool(mgr ctrl.Manager, o Options, served <-chan struct{}) error {
	if o.ToolingDir == "" {
		return nil
	}
	return mgr.Add(&host.Tool{
		Source: o.ToolSource, Directory: o.ToolingDir, Node: o.Node, Recorder: mgr.GetEventRecorder(probes.Recorder), After: served,
	})
}

// hostOf returns the host part of the API server's URL.
func hostOf(config *rest.Config) string {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return ""
	}
	return server.Hostname()
}

// serveServices starts the Services proxy. If another program serves Services, it removes the proxy's table and the node's condition
// instead.
func serveServices(ctx context.Context, mgr ctrl.Manager, o Options, cidrs svc.CIDRs) error {
	nft, err := knftables.New(knftables.InetFamily, services.Table)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	kubeProxy, err := services.NewKubeProxyCheck(mgr.GetClient(), o.Node)
	if err != nil {
		return err
	}
	if !o.ServeServices {
		forget := manager.RunnableFunc(func(ctx context.Context) error {
			if err := kubeProxy.RemoveCondition(ctx); err != nil { // a failure to remove the condition must not end the agent
				log.FromContext(ctx).Error(err, "cannot take the node's condition about kube-proxy away")
			}
			return nil
		})
		return errors.Join(services.Remove(ctx, nft), mgr.Add(forget))
	}
	if err := mgr.Add(&services.Proxy{Cache: mgr.GetCache(), Node: o.Node, NFT: nft, CIDRs: cidrs, KubeProxy: kubeProxy}); err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	return nil
}

// readiness serves /readyz before the CNI server exists.
type readiness struct {
	ask atomic.Pointer[func(context.Context) error]
}

func (r *readiness) set(ask func(context.Context) error) { r.ask.Store(&ask) }

func (r *readiness) check(request *http.Request) error {
	ask := r.ask.Load()
	if ask == nil {
		return errors.New("waiting for Open vSwitch")
	}
	return (*ask)(request.Context())
}

// connect retries until ovsdb-server accepts the connection: the pod ovs-ovn may start later than this one. It returns nil if ctx ends
// first.
func connect(ctx context.Context, socket string) (*ovsdbclient.Client, error) {
	var database *ovsdbclient.Client
	// DelayFunc, because a Backoff alone stops when its delay reaches Cap.
	pauses := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.1, Steps: math.MaxInt32, Cap: 3 * time.Second}.DelayFunc()
	err := pauses.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		var err error
		database, err = ovsdbclient.VSwitch(ctx, ovsdbclient.Options{Endpoints: []string{"unix:" + socket}, Log: log.FromContext(ctx)})
		if err != nil {
			log.FromContext(ctx).Info("waiting for Open vSwitch; see the pod ovs-ovn of this node", "problem", err.Error())
		}
		return err == nil, nil
	})
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("connect to Open vSwitch: %w", err)
	}
	return database, nil
}

// newManager returns a manager whose caches hold only the objects that the agent reads, and which serves metrics and health.
func newManager(config *rest.Config, o Options, ready healthz.Checker) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	err := errors.Join(corev1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme),
		networkingv1.AddToScheme(scheme), v1.AddToScheme(scheme))
	if err != nil {
		return nil, fmt.Errorf("make the scheme: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject:         watched(o),
		},
		Metrics: scrape.NoServer(),
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	if err := scrape.Serve(mgr, scrape.Served{Address: o.Address, Probes: scrape.ProbesLocal, Ready: ready, Access: o.Access}); err != nil {
		return nil, err
	}
	return mgr, nil
}

// watched returns the kinds of which the caches hold only a part.
func watched(o Options) map[client.Object]cache.ByObject {
	objects := services.Watched(o.ServeServices)
	objects[&corev1.Pod{}] = cache.ByObject{Field: fields.OneTermEqualSelector("spec.nodeName", o.Node)}
	objects[&v1.Subnet{}] = cache.ByObject{Transform: trimSubnet}
	objects[&v1.ProviderNetwork{}] = cache.ByObject{Transform: trimProviderNetwork}
	objects[&corev1.Node{}] = cache.ByObject{Field: fields.OneTermEqualSelector("metadata.name", o.Node), Transform: trimNode}
	return objects
}

// trimNode drops large fields that the agent does not use.
func trimNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		node.ManagedFields, node.Status.Images, node.Status.VolumesAttached, node.Status.VolumesInUse = nil, nil, nil, nil
	}
	return object, nil
}

// trimSubnet drops the ACLs, which only OVN uses.
func trimSubnet(object any) (any, error) {
	if subnet, ok := object.(*v1.Subnet); ok {
		subnet.ManagedFields, subnet.Spec.ACLs = nil, nil
		if last := subnet.Status.ValidatedSpec; last != nil {
			last.ACLs = nil
		}
	}
	return object, nil
}

// trimProviderNetwork drops the status, which lists all nodes, but for the turn, which permits a move.
func trimProviderNetwork(object any) (any, error) {
	if network, ok := object.(*v1.ProviderNetwork); ok {
		network.ManagedFields, network.Status = nil, v1.ProviderNetworkStatus{Turn: network.Status.Turn}
	}
	return object, nil
}

// sweeper removes stale ports: once when the watch has delivered all pods, and then periodically.
func sweeper(mgr ctrl.Manager, server *cniserver.Server) manager.Runnable {
	return manager.RunnableFunc(func(ctx context.Context) error {
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return nil
		}
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if err := server.Sweep(ctx); err != nil {
				log.FromContext(ctx).Error(err, "cannot remove ports that were left behind")
			}
		}, sweepInterval)
		return nil
	})
}
