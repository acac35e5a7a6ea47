// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/internal/ipfamily"
)

// Table is the table of this package, of the inet family. Nobody else writes to it.
const Table = "kiln-services"

// Sets and maps, once per family: the family's digit stands behind the name. Those of fronts exist once more for node ports, with keys
// that have no address; prefixNode stands before the name.
const (
	mapFronts    = "fronts"    // to the chain that chooses an endpoint
	mapOutside   = "outside"   // the same for clients that get this node's endpoints only: those outside, at node ports pods as well
	mapEndpoints = "endpoints" // from a front and a slot to the endpoint
	mapSticky    = "sticky"    // to the chain that writes down who got which endpoint
	setRefused   = "refused"   // fronts without endpoints
	mapGuards    = "guards"    // from fronts that are for some clients only to the chain that lets these in
	mapAffinity  = "affinity"  // from a front and a client to its endpoint; the kernel fills it
	setServices  = "services"  // the CIDRs of Services
)

// Chains that are always there.
const (
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPostrouting = "postrouting"
	chainInput       = "input"
	chainOutside     = "from-outside"
	chainServices    = "services"
	chainNew         = "new"    // after the endpoint was chosen
	chainRefuse      = "refuse" // and what nobody serves
	chainRefusal     = "refusal"
	chainForward     = "forward"
	chainFilterOut   = "filter-output"
)

// masquerade is the bit of a packet's mark that says that its source has to be this node's: the same as kube-proxy's and the kubelet's,
// which others keep clear of. It is taken off again before the packet leaves.
const masquerade = "0x4000"

// overlay is the interface through which everything from pods comes (agent/host).
const overlay = "ovn0"

// affinitySize bounds how many clients are remembered, in each family.
const affinitySize = 1 << 18

// object is the name of a set or map of a family, of fronts with an address or of node ports.
func (f family) object(name string, node bool) string {
	if node {
		name = prefixNode + name
	}
	return name + f.suffix
}

// isSet reports whether an object is a set; the others are maps.
func isSet(object string) bool {
	name := strings.TrimRight(strings.TrimPrefix(object, prefixNode), "46")
	return name == setRefused || name == setServices
}

// declare adds the table, its sets, maps and chains, and leaves all of them empty but for what the kernel filled.
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
	dropPairs(tx)
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
	// What numgen returns has no name among types. Expressions stand for their types: that of the port is one which says nothing of the
	// protocol, or nft would limit rules with this map to it.
	endpoints := &knftables.Map{
		Name:   f.object(mapEndpoints, node),
		TypeOf: slot + "meta l4proto . ct original proto-dst . numgen random mod 2 : " + f.key + " daddr . ct original proto-dst",
	}
	tx.Add(endpoints)
	tx.Flush(endpoints)
	refused := &knftables.Set{Name: f.object(setRefused, node), Type: concat(key...)}
	tx.Add(refused)
	tx.Flush(refused)
}

// concat joins types with dots, and what a map leads to with a colon.
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

// staticRules are the chains and rules that are there whatever Services there are. A NAT chain sees the first packet of a connection.
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

// rules of a chain that many Services share.
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
	} else if node { // an endpoint would answer a pod without this node
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
