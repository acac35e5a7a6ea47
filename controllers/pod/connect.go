// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/limits"
)

// reasonNoAddress is the reason of the event on a pod that cannot get an address. It is the same as Kube-OVN's.
const reasonNoAddress = "AcquireAddressFailed"

// connect returns the connection of a port; it allocates addresses if there are none. The error is a *address.Problem if the pod has to wait.
func (r *Reconciler) connect(ctx context.Context, s *subject) (*connection, error) {
	allocation, err := r.allocation(ctx, s)
	if err != nil {
		return nil, err
	}
	subnet, err := r.addresses.Subnet(ctx, s.port.Provider, allocation.Subnet)
	if p := (*address.Problem)(nil); errors.As(err, &p) {
		p.Quiet = p.Quiet || s.published // the Subnet's condition reports it, not an event on a connected pod
	}
	if err != nil {
		return nil, err
	}
	c := &connection{subject: s, allocation: allocation, subnet: subnet}
	cidrs, cidrErr := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
	gateways, gatewayErr := ipfamily.ParseAddrs(subnet.Spec.Gateway)
	if err := errors.Join(cidrErr, gatewayErr); err != nil {
		return nil, fmt.Errorf("read subnet %s: %w", subnet.Name, err)
	}
	for _, a := range allocation.Addresses {
		family := ipfamily.Of(a)
		c.cidrs = append(c.cidrs, ofFamily(cidrs, family, netip.Prefix.Addr)...)
		c.gateways = append(c.gateways, ofFamily(gateways, family, func(g netip.Addr) netip.Addr { return g })...)
	}
	if c.underlay, err = r.underlay(ctx, subnet); err != nil {
		return nil, err
	}
	if c.dhcp, err = ownDHCP(c, cidrs, gateways); err != nil {
		k8s.Warn(r.Recorder, s.pod, reasonDHCP, err.Error()) // the subnet's options still apply
	}
	c.metered = r.Limits.Userspace()
	c.limits, c.adjusted = limits.Effective(s.asks.limits, subnet.Status.PodLimits, c.metered)
	c.secure = s.asks.secure || r.addresses.Secures(subnet) // a pod cannot opt out
	if c.shared, err = r.shared(ctx, c); err != nil {
		return nil, err
	}
	c.groups, err = r.Grants.Groups(ctx, s.port.Namespace, s.asks.groups, s.asks.keptGroups)
	return c, err
}

func ofFamily[T any](values []T, family ipfamily.Family, address func(T) netip.Addr) []T {
	return slices.DeleteFunc(slices.Clone(values), func(v T) bool { return ipfamily.Of(address(v)) != family })
}

// allocation returns the allocation of a port. It first frees the allocation of a previous pod of the same name, unless the pod inherits it.
func (r *Reconciler) allocation(ctx context.Context, s *subject) (ipam.Allocation, error) {
	allocation, held := r.Allocator.Lookup(s.port.Name)
	owns := r.owns(s)
	var ip *kubeovnv1.IP
	var err error
	if !held || !owns {
		ip, err = r.ipObjects.Find(ctx, s.port.Name)
	}
	if err == nil && !owns {
		err = r.checkName(ctx, s.port, ip, held)
	}
	if err == nil {
		err = r.yieldName(ctx, s.port, allocation, held)
	}
	if err != nil {
		return ipam.Allocation{}, err
	}
	switch {
	case held && owns:
		early := r.keeper.Gained(s.port) // at the start, the cache did not have the pod yet
		if early || s.machine != "" && r.addresses.Moved(s.port.Name, s.pod.Spec.NodeName) {
			r.settle(ctx, s, allocation)
			r.ipObjects.Update(ctx, s.port.Name)
		}
		return allocation, nil
	case held:
		inherits, err := r.keeper.Inherits(ctx, &s.asks.Claim, ip, allocation)
		if p := (*address.Problem)(nil); errors.As(err, &p) {
			// The previous pod is released as if no pod of this name existed. Each attempt of the waiting pod does this again, so it must not change the
			// waiting list: a pod that is new there is retried at once.
			if _, failed := r.release(ctx, s.port); failed != nil {
				return ipam.Allocation{}, fmt.Errorf("remove the port of the previous pod of this name: %w", failed)
			}
		}
		if err != nil {
			return ipam.Allocation{}, err
		}
		if inherits {
			r.got(ctx, s, allocation, allocations.SourceRetained)
			return allocation, nil
		}
		if err := r.free(ctx, s.port, "another pod has the name now, and does not inherit them"); err != nil {
			return ipam.Allocation{}, fmt.Errorf("free the allocation of a pod of the same name: %w", err)
		}
	}
	if err := s.asks.invalidDHCP; err != nil {
		return ipam.Allocation{}, &address.Problem{Message: err.Error()}
	}
	allocation, source, err := r.addresses.For(ctx, &s.asks.Claim, ip)
	if err == nil {
		r.got(ctx, s, allocation, source)
	}
	return allocation, err
}

// free removes a port, and frees its addresses. The reason is for the log.
func (r *Reconciler) free(ctx context.Context, port kubeovnv1.Port, reason string) error {
	if err := r.removePort(ctx, port); err != nil {
		return err
	}
	return r.keeper.Free(ctx, port, reason)
}

// owns reports whether the allocation of the port was made for this pod, by UID.
func (r *Reconciler) owns(s *subject) bool {
	h, known := r.ports.named(s.port.Name)
	return (!known || h.Port == s.port) && (s.published || h.pod == s.pod.UID)
}

// got records that an allocation belongs to the pod, and warns the pod's user.
func (r *Reconciler) got(ctx context.Context, s *subject, allocation ipam.Allocation, source allocations.Source) {
	allocations.LogGiven(logr.FromContextOrDiscard(ctx), s.port.Name, allocation, source)
	r.keeper.Gained(s.port)
	r.ports.set(s.port, func(h *holding) { h.pod, h.machine = s.pod.UID, s.machine != "" })
	r.latencies.reached(s.pod.UID, stageAddress)
	r.settle(ctx, s, allocation)
	r.warner.warn(ctx, &connection{subject: s, allocation: allocation}, once)
}

// reasonAmbiguous is the reason of the event on a pod that shares an address with another pod.
const reasonAmbiguous = "AddressAmbiguous"

// settle records where a pod has its addresses, and warns its user of ambiguous ones.
func (r *Reconciler) settle(ctx context.Context, s *subject, allocation ipam.Allocation) {
	if ambiguous := r.addresses.Settle(ctx, s.port.Name, s.pod.Spec.NodeName, allocation); ambiguous != "" {
		k8s.Warn(r.Recorder, s.pod, reasonAmbiguous, ambiguous+
			", in another VPC: what nodes send there, probes above all, may reach one or the other; choose other addresses for one of them")
	}
}

// shared returns the addresses of the Vips that a pod shares in its subnet. Only a port with port security needs them.
func (r *Reconciler) shared(ctx context.Context, c *connection) ([]netip.Addr, error) {
	if !c.secure {
		return nil, nil
	}
	var addresses []netip.Addr
	for _, name := range r.Vips.SharedBy(client.ObjectKeyFromObject(c.pod)) {
		vip, err := k8s.Find[kubeovnv1.Vip](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get Vip %s: %w", name, err)
		}
		if vip == nil {
			continue
		}
		if vip = k8s.AppliedVip(vip); vip.Spec.Type != "" || address.VipSubnet(vip) != c.subnet.Name {
			continue
		}
		denied, err := r.Grants.Vip(ctx, c.port.Namespace, vip)
		if err != nil {
			return nil, err
		}
		if denied == "" {
			addresses = append(addresses, address.VipAddresses(vip)...)
		}
	}
	return addresses, nil
}
