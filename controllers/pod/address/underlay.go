// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// allocateInUnderlay allocates an address of a physical network for a pod of the default VPC. It leaves out the addresses of nodes, of the API server and of
// EgressAddresses, which are in the same network.
func (c *Chooser) allocateInUnderlay(ctx context.Context, port string, s *kubeovnv1.Subnet, want ipam.Request) (ipam.Allocation, error) {
	reached, err := c.reached(ctx, s)
	if err != nil {
		return ipam.Allocation{}, err
	}
	for _, address := range want.Addresses {
		if owner := reached.hosts[address]; owner != "" {
			return ipam.Allocation{}, &ipam.TakenError{Address: address, By: owner}
		}
	}
	want.Avoid = func(address netip.Addr) bool { return reached.hosts[address] != "" }
	return c.Allocator.Allocate(port, want)
}

// withoutForeignMACs returns the requests of a pod without those for a MAC address in an underlay subnet: a router, a node or another host of the physical
// network can have it, and gets no frames once a pod uses it. IP objects, which tenants cannot write, reserve such addresses. Subnets without port security
// accept frames from all MAC addresses anyway. The error is a *problem if no request is left.
func (c *Chooser) withoutForeignMACs(ctx context.Context, wants []ipam.Request) ([]ipam.Request, error) {
	var kept []ipam.Request
	var denied []string
	for _, want := range wants {
		if len(want.MAC) == 0 {
			return wants, nil // all of them have the MAC address of the annotation, or none
		}
		s, err := Subnet(ctx, c.Client, want.Subnet)
		if err != nil {
			return nil, err
		}
		if s != nil && c.Secures(s) && ForeignMAC(s, want.MAC, want.Addresses) {
			denied = append(denied, s.Name)
			continue
		}
		kept = append(kept, want)
	}
	if len(kept) == 0 && len(denied) > 0 {
		return nil, &Problem{Subnets: denied, Message: fmt.Sprintf("annotation %s: hosts of the physical network of subnet %s may have this MAC address: remove the annotation, "+
			"or let an administrator reserve it for the pod by an IP object", kubeovnv1.AnnotationMACAddress.Key(), strings.Join(denied, ", "))}
	}
	return kept, nil
}

// ForeignMAC reports whether hosts of the physical network of a subnet can have a MAC address. No host has one that derives from the pod's IPv4 address.
func ForeignMAC(s *kubeovnv1.Subnet, mac net.HardwareAddr, addresses []netip.Addr) bool {
	if s.Spec.Vlan == "" || len(mac) != 6 {
		return false
	}
	address, derived := ipfamily.OfMAC([6]byte(mac))
	return !derived || !slices.Contains(addresses, address)
}

// withRandomMAC returns the request of a pod with a random MAC address if the pod chose an IPv6 address of an underlay subnet, and no IPv4 address: MAC addresses that
// derive from IPv6 addresses have the same first octet, and the others could be chosen by the address.
func withRandomMAC(s *kubeovnv1.Subnet, want ipam.Request) ipam.Request {
	if s.Spec.Vlan == "" || len(want.MAC) > 0 || len(want.Addresses) == 0 || want.SharedBy != "" ||
		slices.ContainsFunc(want.Addresses, netip.Addr.Is4) {
		return want
	}
	want.MAC = make(net.HardwareAddr, 6)
	_, _ = rand.Read(want.MAC) // never fails (crypto/rand)
	want.MAC[0] = 0x0a         // locally administered unicast
	return want
}
