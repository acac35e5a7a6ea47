// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/node/providerbridge"

	"github.com/kiln-net/kiln/agent/ovs"
)

// resubscribe is the delay before the netlink subscriptions are renewed after a failure.
const resubscribe = time.Second

// SetupWithManager runs the reconciler on events of this node, its record, subnets, VPCs, EgressAddresses, the kernel and Open vSwitch. The manager's cache must
// contain this node only.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	exportMetrics()
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: r.Node}}
	toNode := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{request}
	})
	b := ctrl.NewControllerManagedBy(mgr)
	if r.Services.Served() {
		b = b.Watches(&networkingv1.ServiceCIDR{}, toNode, builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	return b.
		Named("host").
		WithOptions(k8s.Workers(1)).
		Watches(&corev1.Node{}, toNode).
		Watches(&v1.IP{}, toNode, builder.WithPredicates(r.recordChanged())).
		Watches(&v1.Subnet{}, toNode, builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&v1.Vpc{}, toNode, builder.WithPredicates(r.carriesChanged())).
		Watches(&v1.EgressAddress{}, toNode, builder.WithPredicates(k8s.Changed(r.viewEgress))).
		WatchesRawSource(source.Func(func(ctx context.Context, q k8s.Queue) error {
			q.Add(request)
			r.Bridge.Subscribe(func(name string) {
				if name == "" || name == JoinInterface || name == ovs.IntegrationBridge {
					q.Add(request)
				}
			})
			go r.listen(ctx, func() { q.Add(request) })
			go r.watchSwitch(ctx, func() { q.Add(request) })
			return nil
		})).
		Complete(r)
}

// watchSwitch asks ovs-vswitchd at intervals, because there is no event when it stops, and calls changed when its answer changes.
func (r *Reconciler) watchSwitch(ctx context.Context, changed func()) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		bounded, cancel := context.WithTimeout(ctx, gateway.RenewEvery)
		defer cancel()
		var silent *Waiting
		if err := r.Switch(bounded); err != nil {
			silent = new(Waiting("ovs-vswitchd to answer: " + err.Error()))
		}
		if before := r.silent.Swap(silent); ctx.Err() == nil && (before == nil) != (silent == nil) {
			changed()
		}
	}, gateway.RenewEvery)
}

// carriesChanged passes VPCs whose traffic this node starts or stops carrying.
func (r *Reconciler) carriesChanged() predicate.Predicate {
	is := func(o client.Object) bool { return carries(r.Node, o.(*v1.Vpc)) }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return is(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool { return is(e.ObjectOld) != is(e.ObjectNew) },
		DeleteFunc: func(e event.DeleteEvent) bool { return is(e.Object) },
	}
}

// viewEgress is the part of an EgressAddress that this node applies; empty if it is on other nodes.
func (r *Reconciler) viewEgress(e *v1.EgressAddress) string {
	if !has(r.Node, &e.Status) {
		return ""
	}
	return e.Status.Node + " " + strings.Join(e.Status.Addresses, ",")
}

// recordChanged passes changes of the node's own addresses in the IP object of its port.
func (r *Reconciler) recordChanged() predicate.Predicate {
	return k8s.NodeRecords(predicate.And(
		predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == v1.NodePortName(r.Node) }),
		k8s.Changed(func(ip *v1.IP) string { return ipfamily.Join(k8s.AddressesOfNode(ip)) })))
}

// links is a set of interfaces, by index.
type links struct {
	atomic.Pointer[[]int]
}

func (l *links) has(index int) bool {
	indexes := l.Load()
	return indexes != nil && slices.Contains(*indexes, index)
}

// listen calls changed when the kernel reports a change of ovn0, its addresses, a route of the agent, the tunnel's interface, one of
// r.links, the deletion of a rule of the agent, or the end of a route while one prevents the agent's. If the kernel drops messages, it subscribes again. After each subscription it calls changed, because events may have been
// missed.
func (r *Reconciler) listen(ctx context.Context, changed func()) {
	for ctx.Err() == nil {
		if err := r.listenOnce(ctx, changed); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "lost the kernel's messages; beginning again")
		}
		select {
		case <-time.After(resubscribe):
		case <-ctx.Done():
		}
	}
}

// carriesTunnels reports whether a link's change may change the MTU of pods.
func (r *Reconciler) carriesTunnels(update netlink.LinkUpdate) bool {
	attrs, known := update.Attrs(), r.tunnel.Load()
	return attrs.Name == providerbridge.Tunnels ||
		known != nil && attrs.Index == known.index && (attrs.MTU != known.mtu || update.Header.Type == unix.RTM_DELLINK)
}

func (r *Reconciler) networksChanged() {
	if r.NetworksChanged != nil {
		r.NetworksChanged()
	}
}

// messageBuffer is the size in bytes of the kernel's buffer of messages for each subscription. Messages of links, some for each pod, have up to 4 KiB there, and
// while many pods start, the process may not run for seconds.
const messageBuffer = 8 << 20

func (r *Reconciler) listenOnce(ctx context.Context, changed func()) error {
	done := make(chan struct{})
	defer close(done)
	failed := make(chan error, 4)
	report := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	links, addresses, routes := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64), make(chan netlink.RouteUpdate, 64)
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{
		ErrorCallback: report, ReceiveBufferSize: messageBuffer, ReceiveBufferForceSize: true,
	}); err != nil {
		return fmt.Errorf("subscribe to links: %w", err)
	}
	defer func() { go drain(links) }()
	if err := netlink.AddrSubscribeWithOptions(addresses, done, netlink.AddrSubscribeOptions{
		ErrorCallback: report, ReceiveBufferSize: messageBuffer, ReceiveBufferForceSize: true,
	}); err != nil {
		return fmt.Errorf("subscribe to addresses: %w", err)
	}
	defer func() { go drain(addresses) }()
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{
		ErrorCallback: report, ReceiveBufferSize: messageBuffer, ReceiveBufferForceSize: true,
	}); err != nil {
		return fmt.Errorf("subscribe to routes: %w", err)
	}
	defer func() { go drain(routes) }()
	rules, err := deletedRules(done, report)
	if err != nil {
		return err
	}
	changed()
	r.networksChanged()
	index := 0 // of ovn0, as last reported
	for {
		select {
		case update := <-links:
			if update.Link != nil && update.Attrs().Name == JoinInterface {
				index = update.Attrs().Index
				changed()
			} else if update.Link != nil && (r.carriesTunnels(update) || r.links.has(update.Attrs().Index)) {
				changed()
			}
		case update := <-addresses:
			if index == 0 || update.LinkIndex == index || r.links.has(update.LinkIndex) {
				changed()
			}
		case update := <-routes:
			if update.Protocol == routeProtocol || update.Type == unix.RTM_DELROUTE && r.taken.Load() {
				changed()
			}
			if IsConnected(&update.Route) {
				r.networksChanged()
			}
		case protocol := <-rules:
			r.ruleDeleted(protocol, changed)
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// ruleDeleted passes the deletion of a rule on. A restart of systemd-networkd deletes rules of other programs.
func (r *Reconciler) ruleDeleted(protocol uint8, changed func()) {
	switch {
	case protocol == uint8(routeProtocol):
		changed()
	case r.RuleDeleted != nil:
		r.RuleDeleted(protocol)
	}
}

// drain discards the updates of a subscription until netlink closes the channel. Otherwise netlink's goroutine would wait forever to send
// an update, and would not notice the end of the subscription.
func drain[T any](updates <-chan T) {
	for range updates {
	}
}
