// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"
)

// Interface is a network interface of a node.
type Interface struct {
	Name      string
	MTU       int
	Addresses []netip.Addr
}

// ownBridge is the bridge that takes over nodes.tunnelInterface in the userspace datapath, with its addresses.
const ownBridge = "br-phy"

// TunnelOf returns the interface for tunnels: br-phy, the one of nodes.tunnelInterface, or the one with an InternalIP.
func TunnelOf(s NodeSettings, interfaces []Interface) TunnelEnd {
	for _, name := range []string{ownBridge, s.TunnelInterface} {
		for _, i := range interfaces {
			if at := slices.IndexFunc(i.Addresses, netip.Addr.IsGlobalUnicast); name != "" && i.Name == name && at >= 0 {
				return TunnelEnd{i.Name, i.Addresses[at], i.MTU}
			}
		}
	}
	if s.TunnelInterface != "" {
		return TunnelEnd{}
	}
	for _, a := range s.Addresses {
		for _, i := range interfaces {
			if slices.Contains(i.Addresses, a) {
				return TunnelEnd{i.Name, a, i.MTU}
			}
		}
	}
	return TunnelEnd{}
}

// Interfaces returns the network interfaces of this process.
func Interfaces() ([]Interface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var all []Interface
	for _, i := range list {
		addresses, err := i.Addrs()
		if err != nil {
			continue // it was deleted
		}
		found := Interface{Name: i.Name, MTU: i.MTU}
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				found.Addresses = append(found.Addresses, prefix.Addr())
			}
		}
		all = append(all, found)
	}
	return all, nil
}

// ThisNode checks the node of this process, which is in the network of the node.
func ThisNode(s NodeSettings) NodeReport {
	interfaces, err := Interfaces()
	if err != nil {
		return NodeReport{Findings: []Finding{{Warning, subjectMTU, err.Error()}}, Time: time.Now()}
	}
	tunnel := TunnelOf(s, interfaces)
	return NodeReport{Findings: CheckNode(os.DirFS("/"), tunnel, s), Tunnel: tunnel, Time: time.Now()}
}
