// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package speaker is kube-ovn-speaker, the BGP speaker of a node: it announces the prefixes of package routes in the sessions of package bgp.
package speaker

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/speaker/bgp"
	"github.com/kiln-net/kiln/agent/speaker/routes"
	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/node/bgpstate"
)

// Reconciler applies the difference between the prefixes of a node and those that its sessions announce. Passes do not run concurrently.
type Reconciler struct {
	Client client.Client
	// Node is this node's name.
	Node   string
	Server *bgp.Server
	// Passwords is the directory with the files <Secret>/<key>.
	Passwords string
	// Interfaces returns all addresses of the node's interfaces.
	Interfaces func() ([]netip.Addr, error)
	// Recorder reports objects beyond the limit of prefixes; nil for no reports.
	Recorder events.EventRecorder
	Log      logr.Logger

	// spec is the newest spec.speaker; nil before the first OVNCluster.
	spec atomic.Pointer[specValue]
	wake chan struct{}

	mu     sync.Mutex // of the fields below
	table  *routes.Table
	loaded bool
	// replace is true after Announce failed: the next pass sends all prefixes.
	replace bool
}

type specValue struct {
	speaker *v1alpha1.Speaker
	pools   []v1alpha1.LoadBalancerPool
}

// NewReconciler returns a Reconciler without sessions.
func NewReconciler(c client.Client, o Options, server *bgp.Server, log logr.Logger) *Reconciler {
	return &Reconciler{
		Client: c, Node: o.Node, Server: server, Passwords: o.Passwords, Interfaces: interfaceAddresses, Log: log,
		wake: make(chan struct{}, 1), table: routes.New(o.Node),
	}
}

// Set applies spec.speaker of the OVNCluster, nil if there is none, and its pools of load balancers. It does not block.
func (r *Reconciler) Set(spec *v1alpha1.Speaker, pools ...v1alpha1.LoadBalancerPool) {
	r.spec.Store(&specValue{spec, pools})
	r.Wake()
}

// Wake enqueues a pass over the settings of the sessions. It does not block.
func (r *Reconciler) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Reconcile updates the table from one object and announces what changed. The first pass reads all objects: the first updates in a session are
// complete, so that a router with graceful restart keeps the routes.
func (r *Reconciler) Reconcile(ctx context.Context, k key) (ctrl.Result, error) {
	spec := r.spec.Load()
	if spec == nil {
		return ctrl.Result{}, nil // Set enqueues the key of the sessions
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !r.loaded
	if first {
		if err := r.load(ctx); err != nil {
			return ctrl.Result{}, err
		}
		r.loaded = true
	} else if err := r.update(ctx, k); err != nil {
		return ctrl.Result{}, err
	}
	if k.kind == sessions || first {
		r.table.Set(settings(spec.speaker, spec.pools))
	}
	if err := r.announce(); err != nil {
		return ctrl.Result{}, err
	}
	r.reportExcess(ctx)
	if k.kind == sessions || k.kind == "Node" && k.Name == r.Node || first {
		return ctrl.Result{}, r.configure(ctx, spec.speaker)
	}
	return ctrl.Result{}, nil
}

// reportExcess sends an event for each object that is beyond the limit of its namespace since the last call. One of the nodes sends it.
func (r *Reconciler) reportExcess(ctx context.Context) {
	for owner, reason := range r.table.NewExcess() {
		if r.Recorder == nil || !r.table.Reports() {
			continue
		}
		var o client.Object = &corev1.Pod{}
		if owner.Kind == kubeovnv1.OnService {
			o = &corev1.Service{}
		}
		if err := r.Client.Get(ctx, owner.NamespacedName, o); err == nil { // a deleted object needs no event
			k8s.Warn(r.Recorder, o, ReasonTooManyPrefixes, reason)
		}
	}
}

// ReasonTooManyPrefixes is the reason of events of objects that are not announced because of the limit of their namespace.
const ReasonTooManyPrefixes = "TooManyPrefixes"

// announce sends the changes of the table to the peers.
func (r *Reconciler) announce() error {
	announce, withdraw := r.table.Changes()
	if len(announce) > 0 || len(withdraw) > 0 {
		r.Log.V(1).Info("prefixes changed", "announce", announce, "withdraw", withdraw)
	}
	var err error
	if r.replace {
		err = r.Server.Replace(r.table.Announced())
	} else {
		err = r.Server.Announce(announce, withdraw)
	}
	r.replace = err != nil
	return err
}

// configure makes the sessions of the node equal to the spec.
func (r *Reconciler) configure(ctx context.Context, spec *v1alpha1.Speaker) error {
	var node corev1.Node
	switch err := r.Client.Get(ctx, types.NamespacedName{Name: r.Node}, &node); {
	case apierrors.IsNotFound(err):
		return r.Server.Configure(ctx, nil)
	case err != nil:
		return fmt.Errorf("read the node: %w", err)
	}
	addresses, err := r.Interfaces()
	if err != nil {
		return err
	}
	return r.Server.Configure(ctx, bgp.ConfigOf(spec, bgp.Node{Node: &node, Interfaces: addresses, Password: r.password}))
}

// password reads the file of a Secret's key. The error has no part of the content.
func (r *Reconciler) password(k v1alpha1.SecretKey) (string, error) {
	key := k.Key
	if key == "" {
		key = v1alpha1.DefaultPasswordKey
	}
	text, err := os.ReadFile(filepath.Join(r.Passwords, k.Name, key))
	if os.IsNotExist(err) {
		return "", fmt.Errorf("the Secret %s in the namespace of the operator, or its key %s, does not exist, or the kubelet has not read it yet", k.Name, key)
	}
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// fill adds the content of the table to a state, sorted.
func (r *Reconciler) fill(s *bgpstate.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	owners := r.table.OwnersOf()
	for _, p := range r.table.Announced() {
		s.Prefixes = append(s.Prefixes, bgpstate.Prefix{Prefix: p.String(), Object: owners[p.Prefix].String()})
	}
	for owner, reason := range r.table.Refused() {
		s.Refused = append(s.Refused, bgpstate.Refusal{Object: owner.String(), Reason: reason})
	}
	slices.SortFunc(s.Refused, func(a, b bgpstate.Refusal) int { return strings.Compare(a.Object, b.Object) })
}

// counts returns the numbers of announced prefixes of each family, of objects whose annotations have no effect, and of those beyond the limit by namespace.
func (r *Reconciler) counts() (ipv4, ipv6, refused int, excess map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.table.Announced() {
		if p.Addr().Is4() {
			ipv4++
		} else {
			ipv6++
		}
	}
	return ipv4, ipv6, len(r.table.Refused()), r.table.Excess()
}
