// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// Record updates the status of a database with the members' reports. A member that did not answer keeps its recorded data
// except its role. The cluster ID never changes once recorded: a report with another ID is an error.
func Record(db *v1alpha1.DatabaseStatus, reports map[string]adminapi.Status) error {
	for i := range db.Members {
		db.Members[i].Role = ""
	}
	db.Leader = ""
	for _, node := range slices.Sorted(maps.Keys(reports)) {
		report := reports[node]
		at := slices.IndexFunc(db.Members, func(m v1alpha1.DatabaseMember) bool { return m.Node == node })
		superseded := db.Since != nil && report.Since.Before(db.Since.Time) // a report that predates the recovery
		if report.ClusterID == "" || at < 0 || superseded {
			continue
		}
		if db.ClusterID == "" {
			db.ClusterID = report.ClusterID
			if r := db.Recovery; r != nil && r.Phase == v1alpha1.RecoveryCreating {
				r.Phase = v1alpha1.RecoveryFilling
			}
		}
		if report.ClusterID != db.ClusterID {
			return fmt.Errorf("the member on node %s belongs to cluster %s and not to %s: move its data away for it to join",
				node, report.ClusterID, db.ClusterID)
		}
		address, err := memberAddress(report.Address)
		if err != nil {
			return err
		}
		recordMember(db, &db.Members[at], report, address)
	}
	return nil
}

// recordMember updates a member's entry from its report. A member has joined once it is connected.
func recordMember(db *v1alpha1.DatabaseStatus, member *v1alpha1.DatabaseMember, report adminapi.Status, address netip.Addr) {
	member.Role = report.Role
	if report.Connected || member.ServerID != "" {
		member.Address, member.ServerID = address.String(), report.ServerID
	}
	db.Term = max(db.Term, report.Term)
	if report.Role == adminapi.RoleLeader && report.Term == db.Term {
		db.Leader = member.Node
	}
}

// memberAddress returns the IP address in a member's Raft address, `ssl:192.0.2.1:6643` (ovsdb(7), active OVSDB
// connection methods).
func memberAddress(raft string) (netip.Addr, error) {
	address, err := netip.ParseAddrPort(strings.TrimPrefix(raft, "ssl:"))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("parse the Raft address %q: %w", raft, err)
	}
	return address.Addr(), nil
}

// AddressOf returns the address in a member's record, which the operator wrote.
func AddressOf(d v1alpha1.DatabaseMember) netip.Addr {
	address, _ := netip.ParseAddr(d.Address) // a manual change that does not parse gives the zero address, which no node has
	return address
}
