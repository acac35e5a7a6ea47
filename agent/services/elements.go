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

// family holds the names of an address family in Kubernetes and nftables.
type family struct {
	name       corev1.IPFamily
	addresses  discoveryv1.AddressType
	v6         bool
	suffix     string // of names in the table
	key, value string // the header, and the type of its addresses
	nfproto    string
	loopback   string
}

var families = []family{
	{corev1.IPv4Protocol, discoveryv1.AddressTypeIPv4, false, "4", "ip", "ipv4_addr", "ipv4", "127.0.0.0/8"},
	{corev1.IPv6Protocol, discoveryv1.AddressTypeIPv6, true, "6", "ip6", "ipv6_addr", "ipv6", "::1"},
}

// element is an element of a set or map of the table: the name of the object, and the key in nftables' syntax.
type element struct{ object, key string }

// chain is a chain that many Services share. Depending on its kind, n is the number of slots, the affinity timeout in seconds, or the
// number of the guard.
type chain struct {
	kind string
	n    int
}

// Kinds of chains. A kind may have prefixes: node- for node ports, then sticky- for affinity.
const (
	kindPick     = "pick"     // translates the source too, so that replies return through this node
	kindKeep     = "keep"     // the endpoint receives the client's own address
	kindRemember = "remember" // records the endpoint of a client
	kindGuard    = "guard"    // with the family's digit: admits some clients
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

// chainOf returns the chain to which the value of a map element refers.
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

// parseChain is the inverse of chain.name.
func parseChain(name string) (chain, bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return chain{}, false
	}
	n, err := strconv.Atoi(name[i+1:])
	return chain{name[:i], n}, err == nil
}

// elements calls add for every element of a pool in the table.
func (p *pool) elements(add func(e element, value string)) {
	for _, f := range p.fronts {
		p.frontElements(f, add)
	}
}

func (p *pool) frontElements(f front, add func(e element, value string)) {
	at := p.place(f)
	node, key := at.node(), at.key()
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

// verdict returns a verdict that selects one of the first n slots. If n is 0, it drops packets: all endpoints are on other nodes and the
// policy is Local.
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
