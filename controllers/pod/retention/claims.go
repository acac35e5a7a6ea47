// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/ippools"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// claimRules decides about allocations whose only evidence is a pod's annotations. Without admission policies, users with write access to pod
// annotations can forge them.
type claimRules struct {
	reader  client.Reader // the cache
	live    client.Reader // for IP objects, which the cache may not have yet
	chooser *address.Chooser
}

// deny returns why the claim of a pod is not granted, or "". It is if the namespace may use the subnet and the pools that contain
// the addresses, none of them is one of the subnet's vips, and no host of a physical network can have the MAC address, or if the IP object of the port has the same addresses. Tenants cannot write
// IP objects, so these prove the allocation of a running pod whose namespace is no longer listed.
func (c *claimRules) deny(ctx context.Context, of claim) (string, error) {
	if c == nil {
		return "", nil
	}
	namespace, allocation := of.owner.Namespace, of.allocation
	s, err := address.Subnet(ctx, c.reader, allocation.Subnet)
	if s == nil || err != nil {
		return "", err // the allocator has no such subnet either
	}
	denied, err := c.chooser.Grants.Subnet(ctx, namespace, s)
	if err != nil {
		return "", err
	}
	if denied == "" {
		if denied, err = c.deniedByPool(ctx, namespace, s, allocation.Addresses); err != nil {
			return "", err
		}
	}
	if vip, shared := lookup.SharedAmong(&s.Spec, allocation.Addresses); denied == "" && shared {
		denied = fmt.Sprintf("%s is one of the vips of subnet %s", vip, s.Name)
	}
	if denied == "" && c.chooser.Secures(s) && address.ForeignMAC(s, allocation.MAC, allocation.Addresses) {
		denied = fmt.Sprintf("hosts of the physical network of subnet %s may have MAC address %s", s.Name, allocation.MAC)
	}
	if denied == "" {
		return "", nil
	}
	if proven, err := c.matchesIPObject(ctx, of); proven || err != nil {
		return "", err
	}
	return denied, nil
}

// deniedByPool returns why a namespace may not use the pools of a subnet that contain any of the addresses, or "".
func (c *claimRules) deniedByPool(ctx context.Context, namespace string, s *kubeovnv1.Subnet, addresses []netip.Addr) (string, error) {
	pools, err := c.chooser.Pools.OfSubnet(ctx, s.Name)
	if err != nil {
		return "", err
	}
	for _, pool := range pools {
		denied := c.chooser.Grants.Pool(namespace, pool)
		if denied == "" {
			continue
		}
		ranges, problem := ippools.RangesOf(pool, s)
		if problem == nil && ipfamily.InAny(ranges, addresses...) {
			return denied, nil
		}
	}
	return "", nil
}

// matchesIPObject reports whether the IP object of a claim's port contains the allocation's subnet and addresses, and its MAC address or none.
func (c *claimRules) matchesIPObject(ctx context.Context, of claim) (bool, error) {
	if c == nil {
		return false, nil
	}
	ip, err := k8s.Find[kubeovnv1.IP](ctx, c.live, client.ObjectKey{Name: of.port})
	if err != nil {
		return false, fmt.Errorf("get IP %s: %w", of.port, err)
	}
	if ip == nil || of.contradicts(ip) {
		return false, nil
	}
	allocation := of.allocation
	addresses, err := ipfamily.ParseAddrs(ip.Spec.IPAddress)
	mac, noMAC := net.ParseMAC(ip.Spec.MACAddress)
	return err == nil && ip.Spec.Subnet == allocation.Subnet && slices.Equal(addresses, allocation.Addresses) && (noMAC != nil || bytes.Equal(mac, allocation.MAC)), nil
}

// retained returns the IP objects that retain addresses, for workloads or for users.
func (c *claimRules) retained(ctx context.Context) ([]kubeovnv1.IP, error) {
	if c == nil {
		return nil, nil
	}
	var ips kubeovnv1.IPList
	if err := c.live.List(ctx, &ips, allocations.ThatRetain()); err != nil {
		return nil, fmt.Errorf("list IPs that keep addresses: %w", err)
	}
	return ips.Items, nil
}

// place is an address in a subnet.
type place struct {
	subnet  string
	address netip.Addr
}

// granted returns the claims that rules allow. Of several claims of one address, those that an IP object proves come first. A claim of an
// address that an IP object retains, or that an OvnEip or a multicast querier has, needs this proof, because their allocations are restored
// after those of pods.
func (s *restoration) granted(ctx context.Context, claims iter.Seq[claim], rules *claimRules) ([]claim, error) {
	var all []claim
	claimants := map[place]int{}
	for c := range claims {
		denied, err := rules.deny(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("check the claim of %s: %w", c.port, err)
		}
		if denied != "" {
			s.log.Info("An allocation is not restored: the namespace may not use its addresses, and no IP object proves it", "port", c.port, "reason", denied)
			continue
		}
		all = append(all, c)
		for _, a := range c.allocation.Addresses {
			claimants[place{c.allocation.Subnet, a}]++
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	holders, err := s.holders(ctx, rules)
	if err != nil {
		return nil, err
	}
	var proven, others []claim
	for _, c := range all {
		holding, disputed := "", false
		for _, a := range c.allocation.Addresses {
			at := place{c.allocation.Subnet, a}
			if h := holders[at]; h.name != "" && (h.name != c.port || c.contradicts(h.ip)) {
				holding = h.name
			}
			disputed = disputed || claimants[at] > 1
		}
		if holding == "" && !disputed {
			others = append(others, c)
			continue
		}
		recorded, err := rules.matchesIPObject(ctx, c)
		switch {
		case err != nil:
			return nil, fmt.Errorf("check the claim of %s: %w", c.port, err)
		case recorded:
			proven = append(proven, c)
		case holding == "":
			others = append(others, c)
		default:
			s.log.Info("An allocation is not restored: its address belongs to another holder, and no IP object proves it", "port", c.port, "holder", holding)
		}
	}
	return append(proven, others...), nil
}

// provenFirst returns the claims of nodes without a port in the northbound database, those that an IP object proves before the others. A kubelet can write the annotations of
// its Node.
func (s *restoration) provenFirst(ctx context.Context, claims iter.Seq[claim], rules *claimRules) ([]claim, error) {
	var proven, others []claim
	for c := range claims {
		if s.held(c.port) {
			continue
		}
		recorded, err := rules.matchesIPObject(ctx, c)
		switch {
		case err != nil:
			return nil, fmt.Errorf("check the claim of %s: %w", c.port, err)
		case recorded:
			proven = append(proven, c)
		default:
			others = append(others, c)
		}
	}
	return append(proven, others...), nil
}

// contradicts reports whether an IP object with the name of the claim's port names another port. ip may be nil.
func (c claim) contradicts(ip *kubeovnv1.IP) bool {
	port, isPods := kubeovnv1.NamedPort(c.owner.Namespace, c.owner.Name, c.port)
	return isPods && allocations.NamesOther(ip, port)
}

// holder has addresses; ip is the IP object that retains them, nil for other holders.
type holder struct {
	name string
	ip   *kubeovnv1.IP
}

// holders returns the holders of the addresses that IP objects retain, and of the addresses of OvnEips and multicast queriers.
func (s *restoration) holders(ctx context.Context, rules *claimRules) (map[place]holder, error) {
	out := map[place]holder{}
	add := func(of holder, subnet string, addresses []netip.Addr) {
		for _, a := range addresses {
			out[place{subnet, a}] = of
		}
	}
	for c := range s.querierClaims() {
		add(holder{name: c.port}, c.allocation.Subnet, c.allocation.Addresses)
	}
	for i := range s.eips.Items {
		eip := &s.eips.Items[i]
		add(holder{name: translate.OvnEipHolder(eip.Name)}, cmp.Or(eip.Spec.ExternalSubnet, kubeovnv1.DefaultExternalSubnet),
			ipfamily.ValidAddrs(eip.Status.V4IP, eip.Status.V6IP))
	}
	ips, err := rules.retained(ctx)
	if err != nil {
		return nil, err
	}
	for i := range ips {
		if request, err := allocations.RequestOf(&ips[i]); err == nil && ips[i].DeletionTimestamp == nil {
			add(holder{ips[i].Name, &ips[i]}, request.Subnet, request.Addresses)
		}
	}
	return out, nil
}
