// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// pool is a pool of the OVNCluster. Its addresses do not change.
type pool struct {
	spec v1alpha1.LoadBalancerPool
	// err is why the pool has no addresses.
	err error
	// ranges are the addresses of each family, disjoint and in order.
	ranges [2][]ipfamily.Range
}

func newPool(spec *v1alpha1.LoadBalancerPool) *pool {
	p := &pool{spec: *spec.DeepCopy()}
	var all []ipfamily.Range
	if all, p.err = ipfamily.ParseRanges(spec.Addresses); p.err != nil {
		return p
	}
	slices.SortFunc(all, func(a, b ipfamily.Range) int { return a.From.Compare(b.From) })
	for _, r := range all {
		of := &p.ranges[ipfamily.Of(r.From)]
		if last := len(*of) - 1; last >= 0 && r.From.Compare((*of)[last].To) <= 0 {
			if (*of)[last].To.Less(r.To) {
				(*of)[last].To = r.To
			}
			continue
		}
		*of = append(*of, r)
	}
	return p
}

func (p *pool) contains(a netip.Addr) bool { return ipfamily.InAny(p.ranges[ipfamily.Of(a)], a) }

// from returns the first address of the pool that is not before an address; the zero Addr if there is none.
func (p *pool) from(f ipfamily.Family, a netip.Addr) netip.Addr {
	for _, r := range p.ranges[f] {
		switch {
		case !a.IsValid() || a.Less(r.From):
			return r.From
		case a.Compare(r.To) <= 0:
			return a
		}
	}
	return netip.Addr{}
}

// after returns the first address of the pool after an address; the zero Addr if there is none.
func (p *pool) after(a netip.Addr) netip.Addr {
	if next := a.Next(); next.IsValid() {
		return p.from(ipfamily.Of(a), next)
	}
	return netip.Addr{}
}

// Pools are the settings of the OVNCluster. The zero value has no pool.
type Pools struct {
	mu      sync.Mutex
	set     settings
	byClass map[string]*pool
	changed k8s.RequestSource
}

// settings are the parts of the OVNCluster that decide about addresses.
type settings struct {
	pools []v1alpha1.LoadBalancerPool
	// hosts are addresses that nodes reach through their own network, with descriptions.
	hosts map[netip.Addr]string
}

// Set applies the spec of the OVNCluster. It does not block.
func (p *Pools) Set(spec *v1alpha1.OVNClusterSpec) {
	next := settings{pools: spec.Services.LoadBalancerPools, hosts: map[netip.Addr]string{}}
	if spec.Speaker != nil {
		for _, peer := range spec.Speaker.Peers {
			for _, a := range ipfamily.ValidAddrs(peer.Address) {
				next.hosts[a] = "a BGP peer"
			}
		}
	}
	if spec.APIServer != nil {
		for _, a := range ipfamily.ValidAddrs(spec.APIServer.Host) {
			next.hosts[a] = "the API server"
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if equality.Semantic.DeepEqual(p.set.pools, next.pools) && equality.Semantic.DeepEqual(p.set.hosts, next.hosts) {
		return
	}
	p.set, p.byClass = next, map[string]*pool{}
	for i := range next.pools {
		p.byClass[next.pools[i].Class] = newPool(&next.pools[i])
	}
	p.changed.AddKey(everyService)
}

// everyService is the request for all Services with a class.
var everyService = types.NamespacedName{}

func (p *Pools) of(class string) *pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byClass[class]
}

func (p *Pools) host(a netip.Addr) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.set.hosts[a]
}

// contain reports whether a pool has one of the addresses.
func (p *Pools) contain(addresses []netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pool := range p.byClass {
		if slices.ContainsFunc(addresses, pool.contains) {
			return true
		}
	}
	return false
}

// all returns the pools.
func (p *Pools) all() []*pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pools := make([]*pool, 0, len(p.byClass))
	for _, pool := range p.byClass {
		pools = append(pools, pool)
	}
	return pools
}
