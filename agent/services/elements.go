// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// family is how Kubernetes and nftables spell a family.
type family struct {
	name           corev1.IPFamily
	addresses      discoveryv1.AddressType
	v6             bool
	suffix         string // of names in the table
	key, value     string // the header and its addresses' type
	nfproto        string
	loopback, zero string
}

var families = []family{
	{corev1.IPv4Protocol, discoveryv1.AddressTypeIPv4, false, "4", "ip", "ipv4_addr", "ipv4", "127.0.0.0/8", "0.0.0.0"},
	{corev1.IPv6Protocol, discoveryv1.AddressTypeIPv6, true, "6", "ip6", "ipv6_addr", "ipv6", "::1", "::"},
}

// element is one of a set or map of the table: the object's name and the key as nftables writes it.
type element struct{ object, key string }

// chain is one of those that many Services share: it leads to one of n slots, keeps a client for n seconds, or has the guard of the number n.
type chain struct {
	kind string
	n    int
}

// Kinds of chains. Their names are put together: node-, for node ports; sticky-, for affinity; then one of these.
const (
	kindPick     = "pick"     // answers have to come back through this node
	kindKeep     = "keep"     // the endpoint sees the client's own address
	kindRemember = "remember" // writes down who got which endpoint
	kindGuard    = "guard"    // with the family's digit: lets some clients in
	prefixNode   = "node-"
	prefixSticky = "sticky-"
)

func (c chain) name() string { return c.kind + "-" + strconv.Itoa(c.n) }

func (c chain) verdict() string { return verdictPrefix + c.name() }

const (
	verdictPrefix = "goto "
	verdictJump   = "jump "
	verdictDrop   = "drop"
)

// chainOf is the chain that a map's value leads to.
func chainOf(value string) (chain, bool) {
	name, ok := strings.CutPrefix(value, verdictPrefix)
	if !ok {
		name, ok = strings.CutPrefix(value, verdictJump)
	}
	if !ok {
		return chain{}, false
	}
	return parseChain(name)
}

// parseChain reads a name as chain.name wrote it.
func parseChain(name string) (chain, bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return chain{}, false
	}
	n, err := strconv.Atoi(name[i+1:])
	return chain{name[:i], n}, err == nil
}

// elements calls add for everything that a pool has in the table.
func (p *pool) elements(add func(e element, value string)) {
	for _, f := range p.fronts {
		p.frontElements(f, add)
	}
}

func (p *pool) frontElements(f front, add func(e element, value string)) {
	node := !f.address.IsValid()
	key := fmt.Sprintf("%s . %d", p.proto, f.port)
	if !node {
		key = f.address.String() + " . " + key
	}
	put := func(object, key, value string) { add(element{p.family.object(object, node), key}, value) }
	if f.guard != nil {
		put(mapGuards, key, f.guard.verdict())
	}
	if len(p.slots) == 0 {
		put(setRefused, key, "")
		return
	}
	reach := len(p.slots)
	if !f.external && p.internalLocal {
		reach = p.local
	}
	put(mapFronts, key, p.verdict(kindPick, node, reach))
	if f.external && p.externalLocal {
		put(mapOutside, key, p.verdict(kindKeep, node, p.local))
	}
	for i, slot := range p.slots[:reach] {
		put(mapEndpoints, key+" . "+strconv.Itoa(i), slotText(slot))
	}
	if p.affinity > 0 {
		put(mapSticky, key, chain{kindRemember, int(p.affinity)}.verdict())
	}
}

// verdict leads to one of the first n slots; without any, nowhere: there are endpoints, but none that the client may have.
func (p *pool) verdict(kind string, node bool, n int) string {
	if n == 0 {
		return verdictDrop
	}
	if p.affinity > 0 {
		kind = prefixSticky + kind
	}
	if node {
		kind = prefixNode + kind
	}
	return chain{kind, n}.verdict()
}

func slotText(e netip.AddrPort) string { return fmt.Sprintf("%s . %d", e.Addr(), e.Port()) }
