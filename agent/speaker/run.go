// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/agent/speaker/bgp"
	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/serving/httpserver"
	"github.com/kiln-net/kiln/internal/serving/scrape"
)

// Options of a process.
type Options struct {
	// Node is this node's name, Pod the name and Namespace the namespace of the pod.
	Node, Pod, Namespace string
	// Passwords is the directory of passwords.
	Passwords string
	// Address is the listen address of metrics, /healthz, /readyz and /state.
	Address string
	// Access limits who may read metrics; nil for no limit.
	Access func(metrics http.Handler) http.Handler
	// Port on which the process listens for passive peers; 0 if it may not listen.
	Port int32
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make the scheme: %w", err)
	}
	return scheme, nil
}

// mapper maps the kinds of newScheme that are read without discovery, which would wait for an API server that does not answer.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Service"), meta.RESTScopeNamespace)
	m.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	m.Add(kubeovnv1.GroupVersion.WithKind("Subnet"), meta.RESTScopeRoot)
	m.AddSpecific(kubeovnv1.GroupVersion.WithKind("EgressAddress"), kubeovnv1.GroupVersion.WithResource("egress-addresses"),
		kubeovnv1.GroupVersion.WithResource("egress-address"), meta.RESTScopeRoot)
	m.AddSpecific(kubeovnv1.GroupVersion.WithKind("OvnEip"), kubeovnv1.GroupVersion.WithResource("ovn-eips"), kubeovnv1.GroupVersion.WithResource("ovn-eip"), meta.RESTScopeRoot)
	return m
}

// NewManager returns a manager that runs the speaker of a node, and its Reconciler, which waits for Set.
func NewManager(config *rest.Config, o Options) (manager.Manager, *Reconciler, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, nil, err
	}
	s := &served{}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:         scheme,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper(), nil },
		Cache:          cache.Options{DefaultTransform: trim},
		Metrics:        scrape.NoServer(),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("make the manager: %w", err)
	}
	served := scrape.Served{
		Address: o.Address, Probes: scrape.ProbesLocal, Ready: s.ready, Access: o.Access, More: map[string]http.Handler{StatePath: httpserver.Local(s)},
	}
	if err := scrape.Serve(mgr, served); err != nil {
		return nil, nil, err
	}
	log := mgr.GetLogger().WithName("speaker")
	r := NewReconciler(mgr.GetClient(), o, bgp.NewServer(slog.New(logr.ToSlogHandler(log.WithName("gobgp").V(1))), o.Port), log)
	if host, err := url.Parse(config.Host); err == nil {
		if a, err := netip.ParseAddr(host.Hostname()); err == nil {
			r.table.SetAPIServer(a.Unmap())
		}
	}
	r.Recorder = mgr.GetEventRecorder("kube-ovn-speaker")
	s.reconciler = r
	clients, err := kubernetes.NewForConfigAndClient(config, mgr.GetHTTPClient())
	if err != nil {
		return nil, nil, fmt.Errorf("make a client of pods: %w", err)
	}
	if err := errors.Join(
		r.setUp(mgr), mgr.Add(&reporter{reconciler: r, pods: clients.CoreV1().Pods(o.Namespace), pod: o.Pod}),
		mgr.Add(manager.RunnableFunc(r.watchPasswords)), mgr.Add(manager.RunnableFunc(r.watchAddresses)),
		metrics.Registry.Register(&collector{node: o.Node, reconciler: r}),
	); err != nil {
		return nil, nil, fmt.Errorf("set up the manager: %w", err)
	}
	return mgr, r, nil
}

// setUp adds the controller. All its sources have synced before the first pass.
func (r *Reconciler) setUp(mgr ctrl.Manager) error {
	b := builder.TypedControllerManagedBy[key](mgr).Named("speaker")
	for _, k := range kinds {
		b = b.Watches(k.object(), handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []key {
			return []key{{k.name, client.ObjectKeyFromObject(o)}}
		}))
	}
	events := make(chan event.GenericEvent)
	b = b.WatchesRawSource(source.TypedChannel(events, handler.TypedEnqueueRequestsFromMapFunc(func(context.Context, client.Object) []key {
		return []key{{kind: sessions}}
	})))
	if err := b.Complete(r); err != nil {
		return fmt.Errorf("add the controller: %w", err)
	}
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		for {
			select {
			case <-r.wake:
			case <-ctx.Done():
				return nil
			}
			select {
			case events <- event.GenericEvent{Object: &corev1.Node{}}:
			case <-ctx.Done():
				return nil
			}
		}
	}))
}

// watchPasswords wakes the reconciler when the kubelet has updated the files of Secrets. It replaces the link ..data of the directory.
func (r *Reconciler) watchPasswords(ctx context.Context) error {
	if _, err := os.Stat(r.Passwords); errors.Is(err, fs.ErrNotExist) {
		r.Log.V(1).Info("no password is mounted", "directory", r.Passwords)
		return nil // a password is mounted in new pods only
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer func() { _ = watcher.Close() }()
		err = watcher.Add(r.Passwords)
	}
	if err != nil { // no reason to end the sessions
		r.Log.Error(err, "cannot watch the passwords; changed ones are used when the pod restarts", "directory", r.Passwords)
		return nil
	}
	for {
		select {
		case <-watcher.Events:
			r.Wake()
		case err := <-watcher.Errors:
			r.Log.Error(err, "the watch of the passwords failed")
		case <-ctx.Done():
			return nil
		}
	}
}

// watchAddresses wakes the reconciler when the addresses of the node's interfaces change: sourceAddresses selects one of them.
func (r *Reconciler) watchAddresses(ctx context.Context) error {
	updates := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{
		ErrorCallback: func(err error) { r.Log.V(1).Info("an update of addresses was not read", "error", err.Error()) },
	}); err != nil {
		return fmt.Errorf("watch the addresses of the node: %w", err)
	}
	for {
		select {
		case _, open := <-updates:
			if !open && ctx.Err() == nil {
				return errors.New("the watch of the node's addresses ended")
			}
			r.Wake()
		case <-ctx.Done():
			return nil
		}
	}
}

func interfaceAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the node: %w", err)
	}
	var addresses []netip.Addr
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			addresses = append(addresses, prefix.Addr().Unmap())
		}
	}
	return addresses, nil
}

// Run runs a manager until ctx ends, and then ends the sessions. Routers with graceful restart keep the routes.
func Run(ctx context.Context, mgr manager.Manager, r *Reconciler) error {
	err := mgr.Start(ctx)
	r.Server.Stop(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

// Enabled returns spec.speaker of an OVNCluster; nil if it is being removed, so that routers get no route to nodes without a network.
func Enabled(cluster *v1alpha1.OVNCluster) *v1alpha1.Speaker {
	if !cluster.DeletionTimestamp.IsZero() {
		return nil
	}
	return cluster.Spec.Speaker
}
