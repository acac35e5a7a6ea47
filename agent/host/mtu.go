// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
)

// minMTU is the packet size that every IPv4 host must accept (RFC 791). Pods with IPv6 need 1280 (RFC 8200, section 5); the kernel
// enforces that.
const minMTU = 576

// ipv6Overhead is the number of bytes that an IPv6 header has more than an IPv4 header.
const ipv6Overhead = 20

// PodMTU returns the MTU of pods whose traffic is tunnelled from the address encapsulation through an interface with MTU tunnelMTU. With
// several types, packets fit in each of them.
func PodMTU(tunnelMTU int, tunnelTypes []string, encapsulation netip.Addr) (int, error) {
	headers := 0
	for _, t := range tunnelTypes {
		of := v1alpha1.TunnelType(t).Overhead()
		if of == 0 {
			return 0, fmt.Errorf("unknown tunnel type %q", t)
		}
		headers = max(headers, of)
	}
	if encapsulation.Is6() {
		headers += ipv6Overhead
	}
	if mtu := tunnelMTU - headers; mtu >= minMTU {
		return mtu, nil
	}
	return 0, fmt.Errorf("the tunnel interface has an MTU of %d: pods would have %d, less than %d", tunnelMTU, tunnelMTU-headers, minMTU)
}

// tunnel is the last known state of the tunnel interface, and the resulting MTU of pods.
type tunnel struct{ index, mtu, podMTU int }

// MTU returns the MTU in bytes of pods whose subnet sets none: the configured MTU, or the tunnel interface's without the tunnel overhead.
// It uses the result of the last pass, so that an ADD does not search the node's interfaces.
func (r *Reconciler) MTU(ctx context.Context) (int, error) {
	if known := r.tunnel.Load(); known != nil {
		return known.podMTU, nil
	}
	return r.findMTU(ctx)
}

func (r *Reconciler) findMTU(ctx context.Context) (int, error) {
	mtu, err := r.lookForMTU(ctx)
	if err == nil && r.podMTU.Swap(int64(mtu)) != int64(mtu) {
		select {
		case r.MTUChanged <- struct{}{}:
		default: // an event is pending already
		}
	}
	return mtu, err
}

func (r *Reconciler) lookForMTU(ctx context.Context) (int, error) {
	if r.FixedMTU != 0 {
		return r.FixedMTU, nil
	}
	r.tunnel.Store(nil) // until a link is found
	address, err := r.Bridge.Encapsulation(ctx)
	if err != nil {
		return 0, err
	}
	link, err := tunnelLink(r.TunnelInterface, address)
	if err != nil {
		return 0, err
	}
	mtu, err := PodMTU(link.Attrs().MTU, r.TunnelTypes, address)
	if err != nil {
		return 0, fmt.Errorf("MTU of pods by interface %s: %w", link.Attrs().Name, err)
	}
	r.tunnel.Store(&tunnel{index: link.Attrs().Index, mtu: link.Attrs().MTU, podMTU: mtu})
	return mtu, nil
}

// tunnelLink returns br-phy if it exists, else the configured interface, else the interface that has the encapsulation address.
func tunnelLink(configured string, encapsulation netip.Addr) (netlink.Link, error) {
	for _, name := range []string{providerbridge.Tunnels, configured} {
		if name == "" {
			continue
		}
		link, err := netlinksafe.LinkByName(name)
		var missing netlink.LinkNotFoundError
		if err == nil || !errors.As(err, &missing) {
			return link, err
		}
	}
	list, err := netlinksafe.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, candidate := range list {
		if ipfamily.PrefixOf(candidate.IPNet).Addr() == encapsulation {
			return netlink.LinkByIndex(candidate.LinkIndex)
		}
	}
	return nil, fmt.Errorf("no interface of this node has the tunnel address %s", encapsulation)
}
