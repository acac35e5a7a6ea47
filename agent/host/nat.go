// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Names in nftables. Names of sets and maps have the family's digit as suffix.
const (
	// NATTable is the agent's table, of the inet family. No other program writes to it.
	NATTable    = "kiln"
	chainNAT    = "postrouting"
	setCluster  = "cluster"
	setOutgoing = "outgoing"
	setNode     = "node"
	setCentral  = "central"
	setJoin     = "join"
	// chainForward rejects packets of connections whose translation was on another gateway, and packets between VPCs.
	chainForward = "forward"
	// chainProbes filters packets that pods of custom VPCs send on probe links.
	chainProbes = "probes"
	// chainCopies drops copies of packets. Its priority precedes defragmentation (-400) and connection tracking (-200): pods control the content of copies, and the
	// kernel must not reassemble a pod's forged fragments with fragments for the node.
	chainCopies    = "copies"
	priorityCopies = knftables.BaseChainPriority("-450") // NF_IP_PRI_RAW_BEFORE_DEFRAG
	// chainOutgoing receives traffic that leaves subnets with natOutgoing; chainTranslate receives the part of it that is translated.
	chainOutgoing  = "outgoing"
	chainTranslate = "translate"
	// mapPolicies maps a subnet to the chain of its rules, whose name begins with policyPrefix.
	mapPolicies  = "policies"
	policyPrefix = "policy-"
	// mapEgress maps a subnet to the source address of its translated traffic.
	mapEgress = "egress"
)

// spelling holds nftables' keywords for a family.
type spelling struct {
	family             ipfamily.Family
	suffix, key, value string
}

// families are the families for which the agent writes rules.
var families = []spelling{
	{ipfamily.IPv4, "4", "ip", "ipv4_addr"},
	{ipfamily.IPv6, "6", "ip6", "ipv6_addr"},
}

// setMasquerade sets the agent's table to m in one transaction: connections keep their translation. The table has no entries for single
// pods. A packet that another table drops stays dropped, whatever the verdict of this one (nft(8), "verdict statements").
func setMasquerade(ctx context.Context, nft knftables.Interface, m Masquerade) error {
	stale, err := staleChains(ctx, nft, m.Policies)
	if err != nil {
		return err
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("source NAT of pods that leave the overlay through this node")})
	tx.Add(&knftables.Chain{
		Name:     chainNAT,
		Type:     knftables.PtrTo(knftables.NATType),
		Hook:     knftables.PtrTo(knftables.PostroutingHook),
		Priority: knftables.PtrTo(knftables.SNATPriority),
	})
	tx.Add(&knftables.Chain{
		Name:     chainForward,
		Type:     knftables.PtrTo(knftables.FilterType),
		Hook:     knftables.PtrTo(knftables.ForwardHook),
		Priority: knftables.PtrTo(knftables.FilterPriority),
	})
	tx.Add(&knftables.Chain{
		Name:     chainProbes,
		Type:     knftables.PtrTo(knftables.FilterType),
		Hook:     knftables.PtrTo(knftables.PreroutingHook),
		Priority: knftables.PtrTo(knftables.ManglePriority),
	})
	tx.Flush(&knftables.Chain{Name: chainProbes})
	tx.Add(&knftables.Rule{
		Chain: chainProbes, Rule: knftables.Concat("iifname", `"`+sandbox.ProbePrefix+`*"`, "ct state != { established, related } drop"),
		Comment: knftables.PtrTo("pods of custom VPCs may only reply to their node"),
	})
	tx.Add(&knftables.Chain{
		Name:     chainCopies,
		Type:     knftables.PtrTo(knftables.FilterType),
		Hook:     knftables.PtrTo(knftables.PreroutingHook),
		Priority: knftables.PtrTo(priorityCopies),
	})
	tx.Flush(&knftables.Chain{Name: chainCopies})
	// Pods control the content of copies: a broadcast frame can contain a datagram to a port of the node.
	tx.Add(&knftables.Rule{
		Chain: chainCopies, Rule: knftables.Concat("iifname", ovs.MirrorInterface, "drop"),
		Comment: knftables.PtrTo("copies of packets are for programs that capture them"),
	})
	tx.Flush(&knftables.Chain{Name: chainNAT})
	tx.Flush(&knftables.Chain{Name: chainForward})
	for _, name := range append([]string{chainTranslate, chainOutgoing}, policyChains(m.Policies)...) {
		tx.Add(&knftables.Chain{Name: name})
		tx.Flush(&knftables.Chain{Name: name})
	}
	for _, f := range families {
		for _, set := range []struct {
			name     string
			prefixes []netip.Prefix
		}{{setCluster, m.Cluster}, {setOutgoing, m.Outgoing}, {setNode, m.Node}, {setCentral, m.Central}, {setJoin, m.Join}} {
			name := set.name + f.suffix
			tx.Add(&knftables.Set{Name: name, Type: f.value, Flags: []knftables.SetFlag{knftables.IntervalFlag}})
			tx.Flush(&knftables.Set{Name: name})
			for _, p := range set.prefixes {
				if ipfamily.Of(p.Addr()) == f.family {
					tx.Add(&knftables.Element{Set: name, Key: []string{p.String()}})
				}
			}
		}
		setMaps(tx, m, f)
		for _, rule := range rules(f.key, f.suffix) {
			tx.Add(&knftables.Rule{Chain: chainNAT, Rule: rule.text, Comment: knftables.PtrTo(rule.why)})
		}
		for _, rule := range forwardRules(f) {
			tx.Add(&knftables.Rule{Chain: chainForward, Rule: rule.text, Comment: knftables.PtrTo(rule.why)})
		}
	}
	setOutgoingChains(tx, m.Policies)
	for _, name := range stale {
		tx.Flush(&knftables.Chain{Name: name})
		tx.Delete(&knftables.Chain{Name: name})
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write nftables table %s: %w", NATTable, err)
	}
	return nil
}

type rule struct{ text, why string }

// rules returns the NAT rules of one family. A NAT chain processes only the first packet of a connection.
func rules(key, suffix string) []rule {
	cluster, outgoing, node := "@"+setCluster+suffix, "@"+setOutgoing+suffix, "@"+setNode+suffix
	text := func(parts ...any) string { return knftables.Concat(parts...) }
	return []rule{{
		text("oifname", JoinInterface, "fib saddr type local", key, "saddr !=", node, key, "saddr !=", cluster, "masquerade"),
		"from an address of the node that the overlay does not route back",
	}, {
		text("oifname", JoinInterface, "ct status dnat", key, "saddr", cluster, "masquerade"),
		"from a pod through a service of this node to a pod, whose answer must come back here",
	}, {
		text("meta nfproto", nfproto[key], "meta l4proto tcp tcp flags & (fin|syn|rst|ack) != syn return"),
		"answers on connections that began through another node",
	}, {
		text("oifname !=", JoinInterface, key, "saddr", outgoing, key, "daddr !=", cluster, "goto", chainOutgoing),
		"from a subnet with natOutgoing to the outside",
	}}
}

// forwardRules returns the forward rules of one family. The first rejects packets of TCP connections whose start this node did not see,
// from sources whose traffic is always translated. Another gateway has their translation, and this node must not expose the pod's
// address.
func forwardRules(f spelling) []rule {
	text := func(parts ...any) string { return knftables.Concat(parts...) }
	undue := text("iifname", JoinInterface, "oifname", JoinInterface, f.key, "saddr @"+setJoin+f.suffix, "ct status & dnat == 0")
	return []rule{{
		text("iifname", JoinInterface, "oifname !=", JoinInterface, f.key, "saddr @"+setCentral+f.suffix, f.key, "daddr != @"+setCluster+f.suffix,
			"meta l4proto tcp tcp flags & (fin|syn|rst|ack) != syn ct state new,invalid reject with tcp reset"),
		"connections whose translation was on another gateway: their pods learn it at once",
	}, {
		text(undue, "meta l4proto tcp reject with tcp reset"), "from a custom VPC to an address of the default one: Services alone lead there",
	}, {
		text(undue, "reject with icmpx admin-prohibited"), "the same for other protocols; the kernel limits the rate of its ICMP errors",
	}}
}

var nfproto = map[string]string{"ip": "ipv4", "ip6": "ipv6"}
