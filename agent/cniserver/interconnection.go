// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
)

// noOverlayRoutes is the record of a container whose routes to the overlay were removed.
const noOverlayRoutes = "none"

// overlayRoutes returns the routes of a pod to Services and to the subnets of its VPC that OVN routes, through OVN's router in the pod's
// interconnected underlay subnet. A pod of another subnet has none.
func (s *Server) overlayRoutes(ctx context.Context, network v1.PodNetwork) ([]sandbox.Route, error) {
	if network.ProviderNetwork == "" {
		return nil, nil
	}
	subnet, err := k8s.Find[v1.Subnet](ctx, s.Pods.cache, client.ObjectKey{Name: network.LogicalSwitch}, client.UnsafeDisableDeepCopy)
	if err != nil || subnet == nil || subnet.Status.U2OInterconnectionIP == "" {
		return nil, err
	}
	routers, err := ipfamily.ParseAddrs(subnet.Status.U2OInterconnectionIP)
	if err != nil {
		return nil, fmt.Errorf("status of subnet %s: %w", subnet.Name, err)
	}
	overlay, err := s.overlay(ctx, network)
	if err != nil {
		return nil, err
	}
	var out []sandbox.Route
	for _, to := range overlay {
		for _, router := range routers {
			if ipfamily.Of(router) == ipfamily.Of(to.Addr()) && cidrOf(network, router) >= 0 {
				out = append(out, sandbox.Route{To: to, Via: router})
			}
		}
	}
	return out, nil
}

// overlay returns the prefixes of Services and of the subnets of a pod's VPC that OVN routes, as few as possible, without the pod's own subnet.
func (s *Server) overlay(ctx context.Context, network v1.PodNetwork) ([]netip.Prefix, error) {
	services, err := s.Services(ctx)
	if err != nil {
		return nil, err
	}
	var subnets v1.SubnetList
	if err := s.Pods.cache.List(ctx, &subnets, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list subnets: %w", err)
	}
	var set netipx.IPSetBuilder
	for _, cidr := range services {
		set.AddPrefix(cidr)
	}
	for i := range subnets.Items {
		if view := viewOverlay(&subnets.Items[i]); view.vpc == network.LogicalRouter {
			cidrs, err := ipfamily.ParseCIDRs(view.cidrs)
			if err != nil {
				continue // the controller reports it in the subnet's condition
			}
			for _, cidr := range cidrs {
				set.AddPrefix(cidr)
			}
		}
	}
	for _, cidr := range network.CIDRs {
		set.RemovePrefix(cidr)
	}
	built, err := set.IPSet()
	if err != nil {
		return nil, fmt.Errorf("prefixes of the overlay: %w", err)
	}
	return built.Prefixes(), nil
}

// overlayView is the part of a Subnet on which the routes of pods of interconnected underlay subnets depend.
type overlayView struct {
	// vpc and cidrs are empty unless OVN routes the subnet.
	vpc, cidrs string
	// router is the address of OVN's router in an interconnected underlay subnet.
	router string
}

func viewOverlay(s *v1.Subnet) overlayView {
	view := overlayView{router: s.Status.U2OInterconnectionIP}
	valid := k8s.WithValidSpec(s)
	if valid != nil && !valid.Spec.PhysicalGateway() && cmp.Or(valid.Spec.Provider, v1.ProviderOVN) == v1.ProviderOVN {
		view.vpc, view.cidrs = cmp.Or(valid.Spec.Vpc, v1.DefaultVpc), valid.Spec.CIDRBlock
	}
	return view
}

// onPhysicalNetworks enqueues the pods of underlay subnets.
func (s *Server) onPhysicalNetworks(ctx context.Context, _ client.Object) []reconcile.Request {
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(PodMetadata().GroupVersionKind())
	if err := s.Pods.cache.List(ctx, pods, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	for i := range pods.Items {
		if pods.Items[i].Annotations[v1.AnnotationProviderNetwork.Key()] != "" {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pods.Items[i])})
		}
	}
	return requests
}

func (s *Server) rerouteInTurn(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) error {
	if _, record, err := s.overlayRecord(ctx, a, network); err != nil || record == a.OverlayRoutes {
		return err
	}
	return s.inTurn(ctx, a, func(a ovs.Attachment) error { return s.reroute(ctx, a, network) })
}

// reroute applies the routes to the overlay to a container, then records them in Open vSwitch.
func (s *Server) reroute(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) error {
	routes, record, err := s.overlayRecord(ctx, a, network)
	if err != nil || record == a.OverlayRoutes || a.PodUID != string(network.UID) {
		return err
	}
	iface := sandbox.Interface{NetNS: a.NetNS, Name: a.IfName}
	switch err := iface.RouteOverlay(routes); {
	case errors.Is(err, sandbox.ErrNoNamespace):
		return nil // the container was deleted, and its DEL follows
	case err != nil:
		return fmt.Errorf("container %s of pod %s/%s: %w", a.ContainerID, a.PodNamespace, a.PodName, err)
	}
	a, found, err := s.Bridge.Find(ctx, a.Name) // renumber may have changed the record
	if err != nil || !found {
		return err
	}
	a.OverlayRoutes = record
	return s.Bridge.Attach(ctx, a)
}

// overlayRecord returns the routes to the overlay and their form in Open vSwitch.
func (s *Server) overlayRecord(ctx context.Context, a ovs.Attachment, network v1.PodNetwork) ([]sandbox.Route, string, error) {
	routes, err := s.overlayRoutes(ctx, network)
	if len(routes) == 0 && a.OverlayRoutes != "" {
		return nil, noOverlayRoutes, err
	}
	parts := make([]string, 0, len(routes))
	for _, r := range routes {
		parts = append(parts, r.To.String()+" via "+r.Via.String())
	}
	return routes, strings.Join(parts, ","), err
}
