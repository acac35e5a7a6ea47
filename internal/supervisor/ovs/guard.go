// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// guardTable is the nftables table of the guard, of the inet family.
const guardTable = "kiln-databases"

// guardedPorts are the databases' ports that are not for every node, and who may come to them. ovsdb-server cannot tell its peers
// apart but by authority, and has one list of authorities for all ports: without the guard a node's key would open the southbound
// database's Raft and its port without a role.
var guardedPorts = []struct {
	name  string
	ports []int
	peers func(v1alpha1.OVNClusterStatus) []string
}{
	{"northbound", []int{6643}, func(s v1alpha1.OVNClusterStatus) []string { return memberAddresses(s.Northbound) }},
	{"southbound", []int{6644}, func(s v1alpha1.OVNClusterStatus) []string { return memberAddresses(s.Southbound) }},
	{"clients", []int{6641, 6645}, func(s v1alpha1.OVNClusterStatus) []string { return s.Clients }},
}

func memberAddresses(db v1alpha1.DatabaseStatus) []string {
	all := make([]string, 0, len(db.Members))
	for _, m := range db.Members {
		all = append(all, m.Address)
	}
	return all
}

// holds says whether a node has, or is to have, a member of a database.
func holds(s v1alpha1.OVNClusterStatus, node string) bool {
	is := func(m v1alpha1.DatabaseMember) bool { return m.Node == node }
	return slices.ContainsFunc(s.Northbound.Members, is) || slices.ContainsFunc(s.Southbound.Members, is)
}

// guard makes the node refuse those who are not to reach the ports of the databases on it. What it refuses is answered, so that someone
// whom it keeps out by mistake learns it at once. Peers that are not known are not limited: the operator tells of them before they come.
type guard struct {
	// known: status says what is wanted. Until then, without the API server, what an earlier process wrote stays.
	known bool
	// status of the OVNCluster where this node is guarded, as last seen; nil where it is not.
	status *v1alpha1.OVNClusterStatus
	// applied is the transaction of the last time, and at its time.
	applied string
	at      time.Time
	nft     knftables.Interface
}

// guardRefresh is after which time an event has the table written again: others may have flushed it, and nobody tells of that.
const guardRefresh = time.Minute

func (g *guard) follow(cluster *v1alpha1.OVNCluster, node string) {
	g.known, g.status = true, nil
	if cluster.Spec.Central.PortAccess != v1alpha1.PortAccessOpen && holds(cluster.Status, node) {
		g.status = &cluster.Status
	}
}

func (g *guard) apply(ctx context.Context) error {
	if !g.known {
		return nil
	}
	if g.nft == nil {
		nft, err := knftables.New(knftables.InetFamily, guardTable)
		if err != nil {
			return fmt.Errorf("guard the databases' ports: %w", err)
		}
		g.nft = nft
	}
	tx := g.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{}) // in one transaction: there is no moment without it
	if g.status != nil {
		addGuard(tx, *g.status)
	}
	if tx.String() == g.applied && time.Since(g.at) < guardRefresh {
		return nil
	}
	if err := g.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("guard the databases' ports: %w", err)
	}
	g.applied, g.at = tx.String(), time.Now()
	return nil
}

func addGuard(tx *knftables.Transaction, status v1alpha1.OVNClusterStatus) {
	tx.Add(&knftables.Table{Comment: new("who may reach the databases of this node")})
	tx.Add(&knftables.Chain{
		Name: "input", Type: new(knftables.FilterType), Hook: new(knftables.InputHook), Priority: new(knftables.FilterPriority),
	})
	tx.Add(&knftables.Rule{Chain: "input", Rule: "tcp dport != { 6641, 6643-6645 } accept"})
	tx.Add(&knftables.Rule{Chain: "input", Rule: "fib saddr type local accept", Comment: new("the node itself")})
	for _, g := range guardedPorts {
		peers := g.peers(status)
		if len(peers) == 0 {
			continue
		}
		tx.Add(&knftables.Set{Name: g.name + "4", Type: "ipv4_addr"})
		tx.Add(&knftables.Set{Name: g.name + "6", Type: "ipv6_addr"})
		for _, peer := range peers {
			if a, err := netip.ParseAddr(peer); err == nil {
				tx.Add(&knftables.Element{Set: g.name + map[bool]string{true: "4", false: "6"}[a.Unmap().Is4()], Key: []string{a.Unmap().String()}})
			}
		}
		for _, p := range g.ports {
			port := strconv.Itoa(p)
			tx.Add(&knftables.Rule{Chain: "input", Rule: "ip saddr != @" + g.name + "4 tcp dport " + port + " reject with tcp reset"})
			tx.Add(&knftables.Rule{Chain: "input", Rule: "ip6 saddr != @" + g.name + "6 tcp dport " + port + " reject with tcp reset"})
		}
	}
}
