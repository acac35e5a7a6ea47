// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
)

// followers bounds how many pods are renumbered at a time.
const followers = 4

// SetupWithManager has containers that run follow their subnet, whose CIDRs and gateways may change. What a container was brought to
// stands in Open vSwitch, so that nothing but that is looked at for pods of which nothing has changed, at the agent's start as well.
func (s *Server) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("pod").
		For(&corev1.Pod{}, builder.OnlyMetadata, builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return len(numbering(e.Object.GetAnnotations())) > 0 },
			UpdateFunc: func(e event.UpdateEvent) bool {
				return renumbers(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations())
			},
			DeleteFunc:  func(event.DeleteEvent) bool { return false },
			GenericFunc: func(event.GenericEvent) bool { return false },
		})).
		WithOptions(k8s.Workers(followers)).
		WatchesRawSource(source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			go s.enqueueAll(ctx, q.Add)
			return nil
		})).
		Complete(reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			return ctrl.Result{}, s.follow(ctx, req.NamespacedName)
		}))
	if err != nil {
		return fmt.Errorf("add the controller of pods that run: %w", err)
	}
	return mgr.Add(s)
}

// numbering are the annotations of all networks that a change of a subnet changes on a pod that runs.
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

// renumbers is false for pods that get their network only now: their ADD waits for that.
func renumbers(before, after map[string]string) bool {
	was := numbering(before)
	return len(was) > 0 && !maps.Equal(was, numbering(after))
}

// follow brings every interface of a pod to what its annotations say, and records probe ports that an earlier version did not.
func (s *Server) follow(ctx context.Context, key types.NamespacedName) error {
	pod, err := s.Pods.get(ctx, key)
	if pod == nil {
		return err
	}
	var failed []error
	for annotation := range pod.Annotations {
		provider, ok := strings.CutSuffix(annotation, v1.AnnotationCIDR.For(""))
		if !ok {
			continue
		}
		network, missing := allocation(pod, "", provider)
		if missing != "" { // the controller is about to write it again
			continue
		}
		attachments, err := s.Bridge.AttachmentsOf(ctx, logicalPort(pod, provider))
		failed = append(failed, err)
		for _, a := range attachments {
			if !numbered(a, network) {
				failed = append(failed, s.renumberInTurn(ctx, a, network))
			}
			failed = append(failed, s.resizeInTurn(ctx, a, network), s.recordProbePorts(ctx, pod, a, network))
		}
	}
	return errors.Join(failed...)
}

// catchUp does what follow could not do while there was no port: the annotations, or the MTU, may have changed since the ADD has read them.
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
		return errors.Join(s.renumber(ctx, a, network), s.resize(ctx, a, network))
	}
	return nil
}

func (s *Server) renumberInTurn(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) error {
	return s.inTurn(ctx, a, func(a ovs.Attachment) error { return s.renumber(ctx, a, network) })
}

// inTurn locks an interface and calls f with what its port has now, unless the port is gone.
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

// renumber brings the interface of a container to the CIDRs and gateways of its network, and then takes note of that. Addresses themselves
// never change while a pod runs.
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
		return nil // the container is gone, and its DEL is to come
	case err != nil:
		return fmt.Errorf("container %s of pod %s/%s: %w", a.ContainerID, a.PodNamespace, a.PodName, err)
	}
	a.CIDRs, a.Gateways = network.CIDRs, network.Gateways
	return s.Bridge.Attach(ctx, a)
}

func numbered(a ovs.Attachment, network v1.PodNetwork) bool {
	return slices.Equal(a.CIDRs, network.CIDRs) && slices.Equal(a.Gateways, network.Gateways)
}

// moved are the gateways that have another one of their family in their place.
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

// followed makes the interface that the result of an ADD describes what its port says that it was brought to since.
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
