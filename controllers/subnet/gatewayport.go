// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/leases"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation"
)

// maxChassis bounds the nodes that can host a gateway port: every node monitors its tunnels to them by BFD.
const maxChassis = 3

// gatewayPort returns the port of the VPC's router in an underlay subnet; nil if it has none. The error is ErrWaiting while no node can host the
// port, or no address is free for it. A port that works stays with an error, unless it may not have its addresses.
func (r *Reconciler) gatewayPort(ctx context.Context, in inputs, c checked) (*translate.GatewayPort, error) {
	spec := &in.subnet.Spec
	if spec.Vlan == "" || !spec.U2OInterconnection {
		if err := r.releaseInterconnection(ctx, in.subnet); err != nil {
			return nil, err
		}
	}
	if spec.Vlan == "" || !spec.OnRouter() {
		return nil, nil //nolint:nilnil // such a subnet has no gateway port
	}
	port := &translate.GatewayPort{Addresses: c.network.Gateways}
	if lookup.VpcOf(in.subnet) == kubeovnv1.DefaultVpc {
		port.NodesOf = kubeovnv1.DefaultVpc
	}
	var noAddress, noNode error
	if spec.U2OInterconnection {
		port.Interconnects, port.OverlayOnly = true, spec.U2OFeatures != nil && spec.U2OFeatures.OverlayOnlyRouting
		if port.Addresses, noAddress = r.interconnection(ctx, in, c); len(port.Addresses) == 0 {
			return nil, noAddress
		}
		port.Into = in.without(c)
	}
	port.Chassis, noNode = r.gatewayNodes(ctx, in)
	if len(port.Chassis) == 0 {
		return nil, noNode
	}
	return port, errors.Join(noAddress, noNode)
}

// gatewayNodes returns the nodes that can host the gateway port of a subnet, in order of precedence: nodes that are down come last. Otherwise the order
// differs between subnets, and a node that comes or goes does not change it for the others. While no node is ready, the present nodes stay, and the error is ErrWaiting.
func (r *Reconciler) gatewayNodes(ctx context.Context, in inputs) ([]string, error) {
	name := in.vlan.Spec.Provider
	provider, err := k8s.Find[kubeovnv1.ProviderNetwork](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get ProviderNetwork %s: %w", name, err)
	}
	if provider == nil || len(provider.Status.ReadyNodes) == 0 {
		return r.chassisOf(in.subnet.Name), fmt.Errorf("%w: no node of ProviderNetwork %s is ready, so none can host the router's port: its status has the causes",
			northbound.ErrWaiting, name)
	}
	type candidate struct {
		name  string
		state gateway.State
		rank  [sha256.Size]byte
	}
	candidates := make([]candidate, 0, len(provider.Status.ReadyNodes))
	for _, name := range provider.Status.ReadyNodes {
		node, err := k8s.Find[corev1.Node](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		c := candidate{name, gateway.Down, sha256.Sum256([]byte(in.subnet.Name + "\x00" + name))}
		if node != nil {
			c.state = stateOf(node)
		}
		candidates = append(candidates, c)
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

// stateOf returns the state of a node as host of gateway ports. Within seconds, BFD between the chassis replaces a node that fails.
func stateOf(node *corev1.Node) gateway.State { return gateway.StateOf(node, gateway.NoLease) }

// chassisOf returns the applied chassis of a subnet's gateway port, in order of precedence.
func (r *Reconciler) chassisOf(subnet string) []string {
	rows := northbound.Of[nb.GatewayChassis](r.Northbound, translate.SubnetOwner(subnet))
	slices.SortFunc(rows, func(a, b *nb.GatewayChassis) int { return cmp.Compare(b.Priority, a.Priority) })
	var nodes []string
	for _, row := range rows {
		nodes = append(nodes, row.ChassisName)
	}
	return nodes
}

// interconnection returns the addresses of the router in an interconnected subnet, one per CIDR. It allocates them on first use, and retains
// them while the spec permits them, and until one that it asks for is free. With addresses and an error, the router uses them.
func (r *Reconciler) interconnection(ctx context.Context, in inputs, c checked) ([]netip.Addr, error) {
	s, log, holder := in.subnet, logr.FromContextOrDiscard(ctx), translate.InterconnectionHolder(in.subnet.Name)
	lease, held := r.Allocator.Lookup(holder)
	if held && !in.permits(lease.Addresses, c) {
		leases.Release(log, r.Allocator, holder, "the subnet does not permit these addresses, or the API server has them")
		held = false
	}
	var notGiven error
	if !held || !asIn(c.features.Interconnection, lease.Addresses) {
		given, err := r.Allocator.Allocate(holder, ipam.Request{
			Subnet: s.Name, Addresses: c.features.Interconnection, AnyPool: true,
			Avoid: func(a netip.Addr) bool { return in.hosts[a] != "" },
		})
		var taken *ipam.TakenError
		switch {
		case err == nil:
			lease = given
			leases.LogGiven(log, holder, lease, leases.SourceSubnet)
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
	if err := r.unrecordInterconnection(ctx, s, name); err != nil {
		return lease.Addresses, errors.Join(notGiven, err)
	}
	return lease.Addresses, errors.Join(notGiven, r.record(ctx, name, s.Name, lease.Addresses, translate.GatewayPortMAC(lease.Addresses)))
}

// unrecordInterconnection deletes the IP objects of the router's port in a subnet, except the one named keep. A former VPC of the subnet has one until
// the status has the present VPC.
func (r *Reconciler) unrecordInterconnection(ctx context.Context, s *kubeovnv1.Subnet, keep string) error {
	for _, vpc := range []string{lookup.VpcOf(s), s.Status.U2OInterconnectionVPC} {
		if name := translate.InterconnectionRecord(vpc, s.Name); vpc != "" && name != keep {
			if err := r.unrecord(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// without returns the CIDRs of a subnet without its gateways and the API server: these have no route to the overlay, so pods there reach them
// through nodes.
func (in inputs) without(c checked) []netip.Prefix {
	var set netipx.IPSetBuilder
	for _, cidr := range c.network.CIDRs {
		set.AddPrefix(cidr)
	}
	for _, gateway := range c.network.Gateways {
		set.Remove(gateway)
	}
	for address, host := range in.hosts {
		if host == lookup.HostAPIServer {
			set.Remove(address)
		}
	}
	rest, _ := set.IPSet() // it fails for invalid addresses only
	return rest.Prefixes()
}

// permits reports whether the router may keep addresses in a subnet: one in each CIDR, and none of the API server. A node does not get an address that the router
// has (controllers/node).
func (in inputs) permits(addresses []netip.Addr, c checked) bool {
	return len(addresses) == len(c.network.CIDRs) &&
		!slices.ContainsFunc(addresses, func(a netip.Addr) bool {
			return outside(a, c.network) || isGateway(a, c.network) || in.hosts[a] == lookup.HostAPIServer
		})
}

// asIn reports whether all asked addresses are among those of the router.
func asIn(asked, addresses []netip.Addr) bool {
	return !slices.ContainsFunc(asked, func(a netip.Addr) bool { return !slices.Contains(addresses, a) })
}

// interconnectionInUse returns a problem if something else has an address that the spec asks for.
func (r *Reconciler) interconnectionInUse(in inputs, asked []netip.Addr) *validation.Problem {
	if len(asked) == 0 {
		return nil
	}
	for _, address := range asked {
		if host := in.hosts[address]; host != "" {
			return validation.InUse("u2oInterconnectionIP %s is the address of %s: choose another one", address, host)
		}
	}
	if held := r.holders(in.subnet.Name, func(a netip.Addr) bool { return slices.Contains(asked, a) }); len(held) > 0 {
		return validation.InUse("u2oInterconnectionIP is in use: %s: delete its owner, or choose another one", listed(held))
	}
	return nil
}

// releaseInterconnection frees the addresses of the router in a subnet, and deletes their IP object. It is idempotent.
func (r *Reconciler) releaseInterconnection(ctx context.Context, s *kubeovnv1.Subnet) error {
	holder := translate.InterconnectionHolder(s.Name)
	if _, held := r.Allocator.Lookup(holder); !held && s.Status.U2OInterconnectionIP == "" {
		return nil
	}
	if err := r.unrecordInterconnection(ctx, s, ""); err != nil {
		return err
	}
	leases.Release(logr.FromContextOrDiscard(ctx), r.Allocator, holder, "the subnet is not interconnected")
	return nil
}

// setInterconnection writes the router's addresses in an interconnected subnet into its status. Call it after validatedSpec is set.
func setInterconnection(s *kubeovnv1.Subnet, port *translate.GatewayPort) {
	status := &s.Status
	status.U2OInterconnectionIP, status.U2OInterconnectionMAC, status.U2OInterconnectionVPC = "", "", ""
	if port != nil && port.Interconnects {
		status.U2OInterconnectionIP = ipfamily.Join(port.Addresses)
		status.U2OInterconnectionMAC = translate.GatewayPortMAC(port.Addresses).String()
		status.U2OInterconnectionVPC = cmp.Or(cmp.Or(status.ValidatedSpec, &s.Spec).Vpc, kubeovnv1.DefaultVpc)
	}
}

// viewProvider is the part of a ProviderNetwork that its subnets depend on.
func viewProvider(p *kubeovnv1.ProviderNetwork) string {
	return strings.Join(p.Status.ReadyNodes, ",") + " " + strings.Join(p.Status.Vlans, ",")
}

// onProvider enqueues the subnets of a ProviderNetwork that have a gateway port.
func (r *Reconciler) onProvider(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, vlan := range o.(*kubeovnv1.ProviderNetwork).Status.Vlans {
		requests = append(requests, r.ofVlan(ctx, vlan, func(s *kubeovnv1.Subnet) bool { return s.Spec.OnRouter() })...)
	}
	return requests
}

// onHost enqueues the subnets with a gateway port of the ProviderNetworks for which a node is ready.
func (r *Reconciler) onHost(ctx context.Context, node client.Object) []reconcile.Request {
	var networks kubeovnv1.ProviderNetworkList
	if err := r.Client.List(ctx, &networks, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	for i := range networks.Items {
		if slices.Contains(networks.Items[i].Status.ReadyNodes, node.GetName()) {
			requests = append(requests, r.onProvider(ctx, &networks.Items[i])...)
		}
	}
	return requests
}
