// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Table is this package's table, of the inet family. No other program writes to it.
const Table = "kiln-services"

// Sets and maps. Each exists once per family, with the family's digit as suffix. Objects with fronts as keys exist a second time for node
// ports, with the prefix prefixNode and keys without an address.
const (
	mapFronts    = "fronts"    // from a front to the chain that chooses an endpoint
	mapOutside   = "outside"   // the same for clients restricted to this node's endpoints: clients outside, and at node ports pods as well
	mapEndpoints = "endpoints" // from a front and a slot to the endpoint
	mapSticky    = "sticky"    // from a front to the chain that records the endpoint of a client
	setRefused   = "refused"   // fronts without endpoints
	mapGuards    = "guards"    // from restricted fronts to the chain that admits their clients
	mapAffinity  = "affinity"  // from a front and a client to its endpoint; the kernel adds the elements
	setServices  = "services"  // the CIDRs of Services
	setReleased  = "released"  // fronts that Services gave up lately, for a process that starts before connections to them have ended
)

// Chains that exist without any Service.
const (
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPostrouting = "postrouting"
	chainInput       = "input"
	chainOutside     = "from-outside"
	chainServices    = "services"
	chainNew         = "new"    // after an endpoint was chosen
	chainRefuse      = "refuse" // also rejects connections to unserved addresses
	chainRefusal     = "refusal"
	chainForward     = "forward"
	chainFilterOut   = "filter-output"
)

// masquerade is the mark bit that requests translation of a packet's source to this node's address. kube-proxy and the kubelet use the
// same bit, so other programs avoid it. It is cleared before the packet leaves.
const masquerade = "0x4000"

// overlay is the interface that receives all traffic from pods (agent/host).
const overlay = "ovn0"

// affinitySize bounds the number of clients with a recorded endpoint, in each family.
const affinitySize = 1 << 18

// maxReleased bounds the number of fronts that one process records in setReleased at a time.
var maxReleased = 1 << 14

// releasedFor is how long setReleased holds a front: longer than the kubelet's longest pause before it restarts a container.
const releasedFor = 10 * time.Minute

// object returns the name of a set or map of a family, for fronts with an address or for node ports.
func (f family) object(name string, node bool) string {
	if node {
		name = prefixNode + name
	}
	return name + f.suffix
}

// isSet reports whether an object is a set; the others are maps.
func isSet(object string) bool {
	name := strings.TrimRight(strings.TrimPrefix(object, prefixNode), "46")
	return name == setRefused || name == setServices || name == setReleased
}

// declare adds the table, its sets, maps and chains. It empties all of them except the affinity maps, which the kernel fills, and the sets
// of released fronts, whose elements expire.
func declare(tx *knftables.Transaction, services []netip.Prefix) {
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("Services, from this node and from outside")})
	for _, f := range families {
		for _, node := range []bool{false, true} {
			declareObjects(tx, f, node)
		}
		tx.Add(&knftables.Map{
			Name: f.object(mapAffinity, false), Type: concat(f.value, "inet_proto", "inet_service", f.value, ":", f.value, "inet_service"),
			Flags: []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag}, Size: knftables.PtrTo(uint64(affinitySize)),
		})
		set := &knftables.Set{Name: f.object(setServices, false), Type: f.value, Flags: []knftables.SetFlag{knftables.IntervalFlag}}
		tx.Add(set)
		tx.Flush(set)
		for _, cidr := range services {
			if (ipfamily.Of(cidr.Addr()) == ipfamily.IPv6) == f.v6 {
				tx.Add(&knftables.Element{Set: set.Name, Key: []string{cidr.String()}})
			}
		}
	}
	declareChains(tx)
}

func declareObjects(tx *knftables.Transaction, f family, node bool) {
	key, slot := []string{f.value, "inet_proto", "inet_service"}, f.key+" daddr . "
	if node {
		key, slot = key[1:], ""
	}
	verdicts := []string{mapFronts, mapOutside, mapSticky}
	if !node {
		verdicts = append(verdicts, mapGuards)
	}
	for _, name := range verdicts {
		m := &knftables.Map{Name: f.object(name, node), Type: concat(append(key, ":", "verdict")...)}
		tx.Add(m)
		tx.Flush(m)
	}
	// The type of numgen's result has no name, so the map's type is given by expressions. The port's expression must not imply a
	// protocol, because nft would restrict rules that use the map to this protocol.
	endpoints := &knftables.Map{
		Name:   f.object(mapEndpoints, node),
		TypeOf: slot + "meta l4proto . ct original proto-dst . numgen random mod 2 : " + f.key + " daddr . ct original proto-dst",
	}
	tx.Add(endpoints)
	tx.Flush(endpoints)
	refused := &knftables.Set{Name: f.object(setRefused, node), Type: concat(key...)}
	tx.Add(refused)
	tx.Flush(refused)
	tx.Add(&knftables.Set{Name: f.object(setReleased, node), Type: concat(key...), Timeout: knftables.PtrTo(releasedFor)})
}

// concat joins the types of a map's key and value: dots within each, and a colon between them.
func concat(parts ...string) string {
	return strings.ReplaceAll(strings.Join(parts, " . "), ". : .", ":")
}

func declareChains(tx *knftables.Transaction) {
	for _, c := range []struct {
		name     string
		of       knftables.BaseChainType
		hook     knftables.BaseChainHook
		priority knftables.BaseChainPriority
	}{
		{chainPrerouting, knftables.NATType, knftables.PreroutingHook, knftables.DNATPriority},
		{chainOutput, knftables.NATType, knftables.OutputHook, knftables.DNATPriority},
		{chainPostrouting, knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority + "-5"}, // before the agent's other table
		{chainInput, knftables.FilterType, knftables.InputHook, knftables.FilterPriority},
		{chainForward, knftables.FilterType, knftables.ForwardHook, knftables.FilterPriority},
		{chainFilterOut, knftables.FilterType, knftables.OutputHook, knftables.FilterPriority},
	} {
		tx.Add(&knftables.Chain{Name: c.name, Type: &c.of, Hook: &c.hook, Priority: &c.priority})
		tx.Flush(&knftables.Chain{Name: c.name})
	}
	for _, name := range []string{chainOutside, chainServices, chainNew, chainRefuse, chainRefusal} {
		tx.Add(&knftables.Chain{Name: name})
		tx.Flush(&knftables.Chain{Name: name})
	}
	for _, r := range staticRules() {
		tx.Add(&knftables.Rule{Chain: r[0], Rule: r[1]})
	}
}

// staticRules returns pairs of chain and rule that do not depend on Services. A NAT chain processes only the first packet of a
// connection.
func staticRules() [][2]string {
	rules := [][2]string{
		{chainPrerouting, "jump " + chainOutside},
		{chainPrerouting, "jump " + chainServices},
		{chainOutput, "jump " + chainServices},
		{chainPostrouting, "ct status dnat jump " + chainNew},
		{chainPostrouting, "meta mark & " + masquerade + " == " + masquerade + " meta mark set meta mark ^ " + masquerade + " masquerade"},
		{chainInput, "ct state new ct status dnat jump " + chainNew},
		{chainInput, "ct state new jump " + chainRefuse},
		{chainForward, "ct state new jump " + chainRefuse},
		{chainFilterOut, "ct state new jump " + chainRefuse},
		{chainRefusal, "meta l4proto tcp reject with tcp reset"},
		{chainRefusal, "reject"},
	}
	for _, f := range families {
		key, nodeKey := f.key+" daddr . meta l4proto . th dport", "meta l4proto . th dport"
		atNode := fmt.Sprintf("meta nfproto %s fib daddr type local %s daddr != %s ", f.nfproto, f.key, f.loopback)
		original := fmt.Sprintf("ct original %s daddr . meta l4proto . ct original proto-dst", f.key)
		of := func(name string) string { return " @" + f.object(name, false) }
		ofNode := func(name string) string { return " @" + f.object(name, true) }
		rules = append(rules, [][2]string{
			{chainOutside, "iifname != " + overlay + " " + key + " vmap" + of(mapOutside)},
			{chainOutside, atNode + nodeKey + " vmap" + ofNode(mapOutside)},
			{chainServices, key + " vmap" + of(mapFronts)},
			{chainServices, atNode + nodeKey + " vmap" + ofNode(mapFronts)},
			{chainNew, original + " vmap" + of(mapSticky)},
			{chainNew, "meta nfproto " + f.nfproto + " meta l4proto . ct original proto-dst vmap" + ofNode(mapSticky)},
			{chainRefuse, key + of(setRefused) + " goto " + chainRefusal},
			{chainRefuse, atNode + nodeKey + ofNode(setRefused) + " goto " + chainRefusal},
			{chainRefuse, f.key + " daddr" + of(setServices) + " goto " + chainRefusal},
		}...)
		guard := key + " vmap" + of(mapGuards)
		rules = append([][2]string{{chainPrerouting, guard}, {chainOutput, guard}}, rules...)
	}
	return rules
}

// rules returns the rules of a chain that many Services share.
func (c chain) rules() []string {
	var rules []string
	if c.kind == kindRemember {
		for _, f := range families {
			rules = append(rules, fmt.Sprintf(
				"update @%s { ct original %[2]s daddr . meta l4proto . ct original proto-dst . ct original %[2]s saddr timeout %ds : %[2]s daddr . th dport }",
				f.object(mapAffinity, false), f.key, c.n))
		}
		return rules
	}
	node, sticky := strings.HasPrefix(c.kind, prefixNode), strings.Contains(c.kind, prefixSticky)
	if strings.HasSuffix(c.kind, kindPick) {
		rules = append(rules, "fib saddr type != local meta mark set meta mark | "+masquerade)
	} else if node { // otherwise the endpoint would reply to a pod directly, bypassing this node
		rules = append(rules, "iifname "+overlay+" meta mark set meta mark | "+masquerade)
	}
	for _, f := range families {
		to := fmt.Sprintf("dnat %s to ", f.key)
		if sticky {
			rules = append(rules, to+f.key+" daddr . meta l4proto . th dport . "+f.key+" saddr map @"+f.object(mapAffinity, false))
		}
		key := f.key + " daddr . meta l4proto . th dport"
		if node {
			key, to = "meta l4proto . th dport", "meta nfproto "+f.nfproto+" "+to
		}
		rules = append(rules, fmt.Sprintf("%s%s . numgen random mod %d map @%s", to, key, c.n, f.object(mapEndpoints, node)))
	}
	return rules
}
