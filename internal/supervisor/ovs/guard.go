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

// guardTable is the guard's nftables table, in the inet family.
const guardTable = "kiln-databases"

// guardedPorts are the database ports that only some nodes may reach, with their permitted peers. ovsdb-server authenticates its
// peers only by CA, and has one list of CAs for all ports. Without the guard a node's key would give access to the southbound
// database's Raft port and to its port without an RBAC role.
var guardedPorts = []struct {
	name  string
	ports []int
	peers func(v1alpha1.OVNClusterStatus) []string
}{
	{"northbound", []int{6643}, func(s v1alpha1.OVNClusterStatus) []string { return memberAddresses(s.Northbound) }},
	{"southbound", []int{6644}, func(s v1alpha1.OVNClusterStatus) []string { return memberAddresses(s.Southbound) }},
	{"clients", []int{6641, 6645, 6649}, func(s v1alpha1.OVNClusterStatus) []string { return s.Clients }},
}

func memberAddresses(db v1alpha1.DatabaseStatus) []string {
	all := make([]string, 0, len(db.Members))
	for _, m := range db.Members {
		all = append(all, m.Address)
	}
	return all
}

// holds reports whether the status lists the node as a member of a database.
func holds(s v1alpha1.OVNClusterStatus, node string) bool {
	is := func(m v1alpha1.DatabaseMember) bool { return m.Node == node }
	return slices.ContainsFunc(s.Northbound.Members, is) || slices.ContainsFunc(s.Southbound.Members, is)
}

// guard restricts, with nftables, which addresses reach the database ports of this node. It rejects connections with a TCP reset
// instead of dropping them, so that a client that is blocked by mistake fails at once. A port with an empty list of peers is not
// restricted: the operator records peers in status before they connect.
type guard struct {
	// known is true once an OVNCluster was received. Until then, without the API server, the table of a previous process stays.
	known bool
	// status is the newest status of the OVNCluster; nil if the guard is off on this node.
	status *v1alpha1.OVNClusterStatus
	// applied is the last transaction, committed at the time at.
	applied string
	at      time.Time
	nft     knftables.Interface
}

// guardRefresh is the age after which the next event rewrites the table: another program can flush it without a notification.
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
	tx.Delete(&knftables.Table{}) // in one transaction, so that the table is never missing
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
	tx.Add(&knftables.Table{Comment: new("clients that may reach the databases of this node")})
	tx.Add(&knftables.Chain{
		Name: "input", Type: new(knftables.FilterType), Hook: new(knftables.InputHook), Priority: new(knftables.FilterPriority),
	})
	tx.Add(&knftables.Rule{Chain: "input", Rule: "tcp dport != { 6641, 6643-6645, 6649 } accept"})
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
