// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/limits"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
)

// followers bounds how many pods are renumbered concurrently.
const followers = 4

// SetupWithManager adds the server, and a controller that updates running containers when the CIDRs, gateways or limits of their subnet change, their
// own requests of limits, or the routes of an interconnected underlay subnet.
// Open vSwitch records the state applied to each container. For an unchanged pod only this record is read, also when the agent starts.
func (s *Server) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("pod").
		For(&corev1.Pod{}, builder.OnlyMetadata, builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return len(numbering(e.Object.GetAnnotations())) > 0 },
			UpdateFunc: func(e event.UpdateEvent) bool {
				before, after := e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations()
				return renumbers(before, after) || relimits(before, after) || remirrors(before, after)
			},
			DeleteFunc:  func(event.DeleteEvent) bool { return false },
			GenericFunc: func(event.GenericEvent) bool { return false },
		})).
		Watches(&v1.Subnet{}, handler.EnqueueRequestsFromMapFunc(s.onPhysicalNetworks), builder.WithPredicates(k8s.Changed(viewOverlay))).
		Watches(&v1.Subnet{}, handler.EnqueueRequestsFromMapFunc(s.onLimits), builder.WithPredicates(k8s.Changed(limits.OfSubnet))).
		WithOptions(k8s.Workers(followers)).
		WatchesRawSource(source.Func(func(ctx context.Context, q k8s.Queue) error {
			go s.enqueueAll(ctx, q.Add)
			return nil
		})).
		Complete(reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			return ctrl.Result{}, s.follow(ctx, req.NamespacedName)
		}))
	if err != nil {
		return fmt.Errorf("add the controller of pods that run: %w", err)
	}
	if err := s.setupRepairs(mgr); err != nil {
		return err
	}
	if err := s.setupMirror(mgr); err != nil {
		return err
	}
	counter := &limitCounter{node: s.Node, limited: s.Bridge.LimitedPorts, shaped: sandbox.Shapings}
	if err := metrics.Registry.Register(counter); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		return fmt.Errorf("add the metrics of limits: %w", err)
	}
	return mgr.Add(s)
}

// numbering returns the CIDR and gateway annotations of all networks of a pod: a change of a subnet rewrites them on running pods.
func numbering(annotations map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range annotations {
		_, name, _ := strings.Cut(key, "/")
		if name == string(v1.AnnotationCIDR) || name == string(v1.AnnotationGateway) {
			out[key] = value
		}
	}
	return out
}

// renumbers reports whether an update of a pod changes its numbering. It is false for a pod that had none before: its ADD waits for it.
func renumbers(before, after map[string]string) bool {
	was := numbering(before)
	return len(was) > 0 && !maps.Equal(was, numbering(after))
}

// follow brings every interface of a pod in line with the pod's annotations.
func (s *Server) follow(ctx context.Context, key types.NamespacedName) error {
	pod, err := s.Pods.get(ctx, key)
	if pod == nil {
		return err
	}
	var failed []error
	for provider := range providers(pod) {
		network, missing := allocation(pod, "", provider)
		if missing != "" { // the controller writes it again soon
			continue
		}
		attachments, err := s.Bridge.AttachmentsOf(ctx, v1.PortOf(pod, provider).Name)
		failed = append(failed, err)
		for _, a := range attachments {
			if !numbered(a, network) {
				failed = append(failed, s.renumberInTurn(ctx, a, network))
			}
			failed = append(failed, s.resizeInTurn(ctx, a, network), s.rerouteInTurn(ctx, a, network), s.relimitInTurn(ctx, a, network))
			failed = append(failed, s.mirrorInTurn(ctx, a, pod, provider))
		}
	}
	return errors.Join(failed...)
}

// providers returns the providers of the networks that the annotations of a pod describe.
func providers(pod *metav1.PartialObjectMetadata) iter.Seq[string] {
	return func(yield func(string) bool) {
		for annotation := range pod.Annotations {
			if provider, is := strings.CutSuffix(annotation, v1.AnnotationCIDR.For("")); is && !yield(provider) {
				return
			}
		}
	}
}

// catchUp applies the changes of annotations, limits and MTU since the ADD has read them, and the routes to the overlay: follow skips a container that
// has no port yet.
func (s *Server) catchUp(ctx context.Context, name string, had v1.PodNetwork) error {
	a, found, err := s.Bridge.Find(ctx, name)
	if err != nil || !found {
		return err
	}
	pod, err := s.Pods.get(ctx, types.NamespacedName{Namespace: a.PodNamespace, Name: a.PodName})
	if err != nil {
		return err
	}
	if network, missing := allocation(pod, types.UID(a.PodUID), had.Provider); missing == "" {
		return errors.Join(s.renumber(ctx, a, network), s.resize(ctx, a, network), s.reroute(ctx, a, network), s.relimit(ctx, a, network),
			s.mirror(ctx, a, pod, had.Provider))
	}
	return nil
}

func (s *Server) renumberInTurn(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) error {
	return s.inTurn(ctx, a, func(a ovs.Attachment) error { return s.renumber(ctx, a, network) })
}

// inTurn locks an interface and calls f with the current record of its port. It does nothing if the port was deleted.
func (s *Server) inTurn(ctx context.Context, a ovs.Attachment, f func(ovs.Attachment) error) error {
	unlock, err := s.locks.lock(ctx, a.ContainerID, a.IfName)
	if err != nil {
		return err
	}
	defer unlock()
	a, found, err := s.Bridge.Find(ctx, a.Name)
	if err != nil || !found {
		return err
	}
	return f(a)
}

// renumber applies the CIDRs and gateways of a network to the interface of a container, then records them in Open vSwitch. The addresses
// of a running pod never change.
func (s *Server) renumber(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) error {
	if numbered(a, network) || a.PodUID != string(network.UID) || !slices.Equal(a.Addresses, network.Addresses) {
		return nil
	}
	iface := sandbox.Interface{NetNS: a.NetNS, Name: a.IfName}
	var err error
	if iface.Addresses, err = prefixes(network); err != nil {
		return fmt.Errorf("annotations of pod %s/%s: %w", a.PodNamespace, a.PodName, err)
	}
	switch err := iface.Renumber(moved(a.Gateways, network.Gateways)); {
	case errors.Is(err, sandbox.ErrNoNamespace):
		return nil // the container was deleted, and its DEL follows
	case err != nil:
		return fmt.Errorf("container %s of pod %s/%s: %w", a.ContainerID, a.PodNamespace, a.PodName, err)
	}
	a.CIDRs, a.Gateways = network.CIDRs, network.Gateways
	return s.Bridge.Attach(ctx, a)
}

func numbered(a ovs.Attachment, network v1.PodNetwork) bool {
	return slices.Equal(a.CIDRs, network.CIDRs) && slices.Equal(a.Gateways, network.Gateways)
}

// moved maps each old gateway that differs from the new one of its family to that new gateway.
func moved(before, after []netip.Addr) map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for _, old := range before {
		for _, gateway := range after {
			if gateway.Is6() == old.Is6() && gateway != old {
				out[old] = gateway
			}
		}
	}
	return out
}

// followed updates the interface that an ADD result describes to the CIDRs and gateways that its port records: they may have changed
// since the ADD.
func followed(iface *sandbox.Interface, result *types100.Result, port ovs.Attachment) {
	now := v1.PodNetwork{CIDRs: port.CIDRs}
	for i, p := range iface.Addresses {
		if c := cidrOf(now, p.Addr()); c >= 0 {
			iface.Addresses[i] = netip.PrefixFrom(p.Addr(), port.CIDRs[c].Bits())
		}
	}
	var gateways []netip.Addr
	for _, ip := range result.IPs {
		if gateway, ok := netip.AddrFromSlice(ip.Gateway); ok {
			gateways = append(gateways, gateway.Unmap())
		}
	}
	changed := moved(gateways, port.Gateways)
	for i, route := range iface.Routes {
		if gateway, ok := changed[route.Via]; ok {
			iface.Routes[i].Via = gateway
		}
	}
}
