// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package routergateway connects the routers of VPCs to physical networks: it decides which addresses their ports have there, and which nodes host
// them. The controllers of the objects that connect a router call it, and write the rows.
package routergateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/go-logr/logr"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/iprecord"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation"
)

// maxChassis bounds the nodes that can host a gateway port: every node monitors its tunnels to them by BFD.
const maxChassis = 3

// Ports decides about the ports of routers in physical networks.
type Ports struct {
	Client     client.Client
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	// WasAbsent reports whether a node must end connections of external addresses before it hosts ports again; nil for ports without such addresses.
	WasAbsent func(ctx context.Context, node string) (bool, error)
	// Settings select the nodes that can host ports; nil for all.
	Settings *Settings
}

// Underlay is an underlay subnet with a valid spec.
type Underlay struct {
	Subnet *kubeovnv1.Subnet
	// Provider is the ProviderNetwork of its Vlan.
	Provider string
	Network  validation.Network
	// Asked are the addresses of u2oInterconnectionIP.
	Asked []netip.Addr
	// Hosts maps addresses in the subnet that nodes must reach outside of OVN to a description of their owner.
	Hosts map[netip.Addr]string
}

// Port returns the port of the VPC's router in an underlay subnet; nil if it has none. The error is northbound.ErrWaiting while no node can host the
// port, or no address is free for it. A port that works stays with an error, unless it may not have its addresses.
func (p *Ports) Port(ctx context.Context, u Underlay) (*translate.GatewayPort, error) {
	spec := &u.Subnet.Spec
	if !spec.U2OInterconnection {
		if err := p.Release(ctx, u.Subnet); err != nil {
			return nil, err
		}
	}
	if !spec.OnRouter() {
		return nil, nil //nolint:nilnil // such a subnet has no gateway port
	}
	port := &translate.GatewayPort{Addresses: u.Network.Gateways}
	if lookup.VpcOf(u.Subnet) == kubeovnv1.DefaultVpc {
		port.NodesOf = kubeovnv1.DefaultVpc
	}
	var noAddress, noNode error
	if spec.U2OInterconnection {
		port.Interconnects, port.OverlayOnly = true, spec.U2OFeatures != nil && spec.U2OFeatures.OverlayOnlyRouting
		if port.Addresses, noAddress = p.interconnection(ctx, u); len(port.Addresses) == 0 {
			return nil, noAddress
		}
		port.Into = u.inside()
	}
	port.Chassis, noNode = p.chassis(ctx, u.Subnet.Name, u.Provider, func() []string { return p.applied(translate.SubnetOwner(u.Subnet.Name), "") })
	if len(port.Chassis) == 0 {
		return nil, noNode
	}
	return port, errors.Join(noAddress, noNode)
}

// chassis returns the nodes that can host a router's port in a network, in order of precedence: nodes that are down, or were absent, come last. Otherwise the order
// differs between the subnets or VPCs of the ports, and a node that comes or goes does not change it for the others. While no node is ready and selected, the applied nodes
// stay, and the error is ErrWaiting.
func (p *Ports) chassis(ctx context.Context, of, network string, applied func() []string) ([]string, error) {
	provider, err := k8s.Find[kubeovnv1.ProviderNetwork](ctx, p.Client, client.ObjectKey{Name: network}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get ProviderNetwork %s: %w", network, err)
	}
	if provider == nil || len(provider.Status.ReadyNodes) == 0 {
		return applied(), fmt.Errorf("%w: no node of ProviderNetwork %s is ready, so none can host the router's port: its status has the causes",
			northbound.ErrWaiting, network)
	}
	type candidate struct {
		name  string
		state gateway.State
		rank  [sha256.Size]byte
	}
	candidates := make([]candidate, 0, len(provider.Status.ReadyNodes))
	for _, name := range provider.Status.ReadyNodes {
		node, err := k8s.Find[corev1.Node](ctx, p.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		if p.Settings != nil && !p.Settings.hosts(node) {
			continue
		}
		c := candidate{name, gateway.Down, sha256.Sum256([]byte(of + "\x00" + name))}
		if node != nil {
			c.state = StateOf(node)
		}
		if p.WasAbsent != nil {
			if absent, err := p.WasAbsent(ctx, name); err != nil {
				return nil, err
			} else if absent {
				c.state = gateway.Down
			}
		}
		candidates = append(candidates, c)
	}
	if len(candidates) == 0 {
		return applied(), fmt.Errorf("%w: no ready node of ProviderNetwork %s can host external ports by %s", northbound.ErrWaiting, network, p.Settings.whichHosts())
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.state, b.state), bytes.Compare(a.rank[:], b.rank[:]))
	})
	var nodes []string
	for _, c := range candidates[:min(len(candidates), maxChassis)] {
		nodes = append(nodes, c.name)
	}
	return nodes, nil
}

// StateOf returns the state of a node as host of gateway ports. Within seconds, BFD between the chassis replaces a node that fails.
func StateOf(node *corev1.Node) gateway.State { return gateway.StateOf(node, gateway.NoLease) }

// applied returns the applied chassis of an owner's port, in order of precedence. An empty name is any port.
func (p *Ports) applied(owner desired.Owner, port string) []string {
	rows := northbound.Of[nb.GatewayChassis](p.Northbound, owner)
	rows = slices.DeleteFunc(rows, func(row *nb.GatewayChassis) bool { return port != "" && row.Name != port+"_"+row.ChassisName })
	slices.SortFunc(rows, func(a, b *nb.GatewayChassis) int { return cmp.Compare(b.Priority, a.Priority) })
	var nodes []string
	for _, row := range rows {
		nodes = append(nodes, row.ChassisName)
	}
	return nodes
}

// interconnection returns the addresses of the router in an interconnected subnet, one per CIDR. It allocates them on first use, and retains
// them while the spec permits them, and until one that it asks for is free. With addresses and an error, the router uses them.
func (p *Ports) interconnection(ctx context.Context, u Underlay) ([]netip.Addr, error) {
	s, log, holder := u.Subnet, logr.FromContextOrDiscard(ctx), translate.InterconnectionHolder(u.Subnet.Name)
	allocation, held := p.Allocator.Lookup(holder)
	if held && !u.permits(allocation.Addresses) {
		allocations.Release(log, p.Allocator, holder, "the subnet does not permit these addresses, or the API server has them")
		held = false
	}
	var notGiven error
	if !held || !asIn(u.Asked, allocation.Addresses) {
		given, err := p.Allocator.Allocate(holder, ipam.Request{
			Subnet: s.Name, Addresses: u.Asked, AnyPool: true,
			Avoid: func(a netip.Addr) bool { return u.Hosts[a] != "" },
		})
		var taken *ipam.TakenError
		switch {
		case err == nil:
			allocation = given
			allocations.LogGiven(log, holder, allocation, allocations.SourceSubnet)
		case errors.Is(err, ipam.ErrExhausted) || errors.As(err, &taken):
			notGiven = fmt.Errorf("%w: the router gets no address for u2oInterconnection: %w", northbound.ErrWaiting, err)
		default:
			notGiven = fmt.Errorf("find an address for u2oInterconnection: %w", err)
		}
		if notGiven != nil && !held {
			return nil, notGiven
		}
	}
	name := translate.InterconnectionRecord(lookup.VpcOf(s), s.Name)
	if err := p.unrecord(ctx, s, name); err != nil {
		return allocation.Addresses, errors.Join(notGiven, err)
	}
	allocation.MAC = translate.GatewayPortMAC(allocation.Addresses)
	return allocation.Addresses, errors.Join(notGiven, iprecord.Write(ctx, p.Client, iprecord.Of(name, allocation), iprecord.IsOfSubnet))
}

// unrecord deletes the IP objects of the router's port in a subnet, except the one named keep. A former VPC of the subnet has one until
// the status has the present VPC.
func (p *Ports) unrecord(ctx context.Context, s *kubeovnv1.Subnet, keep string) error {
	for _, vpc := range []string{lookup.VpcOf(s), s.Status.U2OInterconnectionVPC} {
		if name := translate.InterconnectionRecord(vpc, s.Name); vpc != "" && name != keep {
			if err := iprecord.Delete(ctx, p.Client, name, iprecord.IsOfSubnet); err != nil {
				return err
			}
		}
	}
	return nil
}

// inside returns the CIDRs of the subnet without its gateways and the API server: these have no route to the overlay, so pods there reach them
// through nodes.
func (u Underlay) inside() []netip.Prefix {
	var set netipx.IPSetBuilder
	for _, cidr := range u.Network.CIDRs {
		set.AddPrefix(cidr)
	}
	for _, gateway := range u.Network.Gateways {
		set.Remove(gateway)
	}
	for address, host := range u.Hosts {
		if host == lookup.HostAPIServer {
			set.Remove(address)
		}
	}
	rest, _ := set.IPSet() // it fails for invalid addresses only
	return rest.Prefixes()
}

// permits reports whether the router may keep addresses in a subnet: one in each CIDR, and none of the API server. A node does not get an address that the router
// has (controllers/node).
func (u Underlay) permits(addresses []netip.Addr) bool {
	return len(addresses) == len(u.Network.CIDRs) &&
		!slices.ContainsFunc(addresses, func(a netip.Addr) bool {
			return !u.Network.Assignable(a) || u.Hosts[a] == lookup.HostAPIServer
		})
}

// asIn reports whether the router has all asked addresses.
func asIn(asked, addresses []netip.Addr) bool {
	return !slices.ContainsFunc(asked, func(a netip.Addr) bool { return !slices.Contains(addresses, a) })
}

// Release frees the addresses of the router in a subnet, and deletes their IP object. It is idempotent.
func (p *Ports) Release(ctx context.Context, s *kubeovnv1.Subnet) error {
	holder := translate.InterconnectionHolder(s.Name)
	if _, held := p.Allocator.Lookup(holder); !held && s.Status.U2OInterconnectionIP == "" {
		return nil
	}
	if err := p.unrecord(ctx, s, ""); err != nil {
		return err
	}
	allocations.Release(logr.FromContextOrDiscard(ctx), p.Allocator, holder, "the subnet is not interconnected")
	return nil
}

// SetStatus writes the router's addresses in an interconnected subnet into its status. Call it after validatedSpec is set.
func SetStatus(s *kubeovnv1.Subnet, port *translate.GatewayPort) {
	status := &s.Status
	status.U2OInterconnectionIP, status.U2OInterconnectionMAC, status.U2OInterconnectionVPC = "", "", ""
	if port != nil && port.Interconnects {
		status.U2OInterconnectionIP = ipfamily.Join(port.Addresses)
		status.U2OInterconnectionMAC = translate.GatewayPortMAC(port.Addresses).String()
		status.U2OInterconnectionVPC = cmp.Or(cmp.Or(status.ValidatedSpec, &s.Spec).Vpc, kubeovnv1.DefaultVpc)
	}
}
