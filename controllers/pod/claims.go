// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/selection"
)

// claimRules decides about leases whose only evidence is a pod's annotations. Without admission policies, users with write access to pod
// annotations can forge them.
type claimRules struct {
	reader client.Reader // the cache
	live   client.Reader // for IP objects, which the cache may not have yet
	pools  *selection.Pools
	grants *selection.Grants
}

// allow reports whether a pod of a namespace may keep a lease. It may if the namespace may use the subnet and the pools that contain the
// addresses, and none of them is one of the subnet's vips, or if the IP object of the port has the same addresses. Tenants cannot write IP
// objects, so these prove the lease of a running pod whose namespace is no longer listed.
func (c *claimRules) allow(ctx context.Context, namespace, port string, lease ipam.Lease) (bool, error) {
	if c == nil {
		return true, nil
	}
	s := &kubeovnv1.Subnet{}
	if err := c.reader.Get(ctx, client.ObjectKey{Name: lease.Subnet}, s, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("get subnet %s: %w", lease.Subnet, err)
		}
		return true, nil // the allocator has no such subnet either
	}
	denied, err := c.grants.Subnet(ctx, namespace, s)
	if err != nil {
		return false, err
	}
	if denied == "" {
		if denied, err = c.deniedByPool(ctx, namespace, s, lease.Addresses); err != nil {
			return false, err
		}
	}
	spec := cmp.Or(k8s.ValidSpec(s), &s.Spec)
	if _, shared := selection.SharedAmong(spec, lease.Addresses); denied == "" && !shared {
		return true, nil
	}
	return c.recorded(ctx, port, lease)
}

// deniedByPool returns why a namespace may not use the pools of a subnet that contain any of the addresses, or "".
func (c *claimRules) deniedByPool(ctx context.Context, namespace string, s *kubeovnv1.Subnet, addresses []netip.Addr) (string, error) {
	pools, err := c.pools.OfSubnet(ctx, s.Name)
	if err != nil {
		return "", err
	}
	for _, pool := range pools {
		denied := c.grants.Pool(namespace, pool)
		if denied == "" {
			continue
		}
		ranges, problem := selection.RangesOf(pool, s)
		if problem == nil && slices.ContainsFunc(addresses, func(a netip.Addr) bool {
			return slices.ContainsFunc(ranges, func(r ipfamily.Range) bool { return r.Contains(a) })
		}) {
			return denied, nil
		}
	}
	return "", nil
}

// recorded reports whether the IP object of a port contains the lease's subnet and addresses.
func (c *claimRules) recorded(ctx context.Context, port string, lease ipam.Lease) (bool, error) {
	if c == nil {
		return false, nil
	}
	ip := &kubeovnv1.IP{}
	if err := c.live.Get(ctx, client.ObjectKey{Name: port}, ip); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("get IP %s: %w", port, err)
		}
		return false, nil
	}
	addresses, err := ipfamily.ParseAddrs(ip.Spec.IPAddress)
	return err == nil && ip.Spec.Subnet == lease.Subnet && slices.Equal(addresses, lease.Addresses), nil
}
