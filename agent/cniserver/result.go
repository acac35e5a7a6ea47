// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	cni "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/cni/wire"
)

// everything holds the destinations of default routes; the key is true for IPv6.
var everything = map[bool]netip.Prefix{
	false: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	true:  netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}

// gateways returns the gateways of those CIDRs of the subnet in which the pod has an address.
func gateways(network v1.PodNetwork) []netip.Addr {
	var out []netip.Addr
	for _, address := range network.Addresses {
		if i := cidrOf(network, address); i >= 0 && i < len(network.Gateways) {
			out = append(out, network.Gateways[i])
		}
	}
	return out
}

// routes returns a container's routes: the default routes through the subnet's gateways, unless the pod's annotation disables them, then
// the routes of the network configuration, then the pod annotation's routes. A route without a gateway uses the subnet's. A later route
// replaces an earlier one to the same destination.
func routes(r wire.Request, pod *metav1.PartialObjectMetadata, network v1.PodNetwork) ([]sandbox.Route, error) {
	request, err := v1.ParsePodRequestOf(pod.Annotations, r.Provider)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	via := map[bool]netip.Addr{}
	var asked []v1.Route
	for _, gateway := range gateways(network) {
		via[gateway.Is6()] = gateway
		if !request.WithoutDefaultRoute {
			asked = append(asked, v1.Route{Gateway: gateway})
		}
	}
	for _, route := range r.Routes {
		if route == nil {
			return nil, errors.New("the network configuration has null for a route")
		}
		to, err := netip.ParsePrefix(route.Dst.String())
		if err != nil {
			return nil, fmt.Errorf("route to %s: %w", route.Dst.String(), err)
		}
		gateway, _ := netip.AddrFromSlice(route.GW)
		asked = append(asked, v1.Route{Destination: to.Masked(), Gateway: gateway.Unmap()})
	}
	return resolve(append(asked, request.Routes...), via, network)
}

// resolve fills in the missing fields of routes: the destination defaults to all addresses, the gateway to the one in via of the route's
// family. It refuses a gateway that the container cannot reach, because the kernel's error for it names neither the subnet nor a remedy.
func resolve(asked []v1.Route, via map[bool]netip.Addr, network v1.PodNetwork) ([]sandbox.Route, error) {
	var out []sandbox.Route
	for _, route := range asked {
		to, gateway := route.Destination, route.Gateway
		if !to.IsValid() {
			to = everything[gateway.Is6()]
		}
		if !gateway.IsValid() {
			gateway = via[to.Addr().Is6()]
		}
		if !gateway.IsValid() {
			return nil, fmt.Errorf("route to %s: the pod has no gateway of that family", to)
		}
		if !onLink(network, gateway) {
			return nil, fmt.Errorf("route to %s: its gateway %s is not in a CIDR of the pod's subnet %s: correct the gateway, or choose the subnet with annotation %s",
				to, gateway, network.LogicalSwitch, v1.AnnotationLogicalSwitch.For(network.Provider))
		}
		out = slices.DeleteFunc(out, func(earlier sandbox.Route) bool { return earlier.To == to })
		out = append(out, sandbox.Route{To: to, Via: gateway})
	}
	return out, nil
}

// onLink reports whether a container reaches a gateway without a router: it is in a CIDR in which the pod has an address, or it is an IPv6
// link-local address (RFC 4291).
func onLink(network v1.PodNetwork, gateway netip.Addr) bool {
	return slices.ContainsFunc(network.Addresses, func(address netip.Addr) bool {
		i := cidrOf(network, address)
		return i >= 0 && network.CIDRs[i].Contains(gateway) || gateway.Is6() && address.Is6() && gateway.IsLinkLocalUnicast()
	})
}

// resultOf returns the result of an ADD in the latest CNI version: the host's end, the container's end, and its addresses and routes.
func resultOf(iface sandbox.Interface, network v1.PodNetwork, dns cni.DNS) *types100.Result {
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: iface.HostName},
			{Name: iface.Name, Mac: iface.MAC.String(), Mtu: iface.MTU, Sandbox: iface.NetNS},
		},
		DNS: dns,
	}
	for _, p := range iface.Addresses {
		ip := &types100.IPConfig{Interface: types100.Int(1), Address: *netipx.PrefixIPNet(p)}
		if i := cidrOf(network, p.Addr()); i >= 0 && i < len(network.Gateways) {
			ip.Gateway = network.Gateways[i].AsSlice()
		}
		result.IPs = append(result.IPs, ip)
	}
	for _, route := range iface.Routes {
		result.Routes = append(result.Routes, &cni.Route{Dst: *netipx.PrefixIPNet(route.To), GW: route.Via.AsSlice()})
	}
	return result
}

// interfaceIn returns the container's interface as an earlier result describes it. It is the inverse of resultOf.
func interfaceIn(result *types100.Result, netns, ifName string) (sandbox.Interface, error) {
	iface := sandbox.Interface{NetNS: netns, Name: ifName}
	if slices.Contains(result.Interfaces, nil) || slices.Contains(result.IPs, nil) || slices.Contains(result.Routes, nil) {
		return iface, cni.NewError(cni.ErrInvalidNetworkConfig, "prevResult has null for an interface, an address or a route", "")
	}
	index := -1
	for i, candidate := range result.Interfaces {
		if candidate.Name == ifName && candidate.Sandbox == netns {
			index = i
		}
	}
	if index < 0 {
		return iface, cni.NewError(cni.ErrInvalidNetworkConfig, fmt.Sprintf("prevResult has no interface %s in %s", ifName, netns), "")
	}
	described := result.Interfaces[index]
	iface.MTU = described.Mtu
	mac, err := net.ParseMAC(described.Mac)
	if err != nil {
		return iface, cni.NewError(cni.ErrInvalidNetworkConfig, "prevResult has a bad hardware address", err.Error())
	}
	iface.MAC = mac
	for _, ip := range result.IPs {
		if ip.Interface == nil || *ip.Interface != index {
			continue
		}
		p, err := netip.ParsePrefix(ip.Address.String())
		if err != nil {
			return iface, cni.NewError(cni.ErrInvalidNetworkConfig, "prevResult has a bad address", err.Error())
		}
		iface.Addresses = append(iface.Addresses, p)
	}
	for _, route := range result.Routes {
		to, err := netip.ParsePrefix(route.Dst.String())
		gateway, ok := netip.AddrFromSlice(route.GW)
		if err == nil && ok {
			iface.Routes = append(iface.Routes, sandbox.Route{To: to, Via: gateway.Unmap()})
		}
	}
	return iface, nil
}
