// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// step is what to do about the database file.
type step int

const (
	stepWait step = iota
	stepStart
	stepCreate
	stepJoin
	// stepRejoin sets the file that is there aside and joins.
	stepRejoin
	// stepRecover keeps the file that is there under another name and makes a new cluster from what the plan says.
	stepRecover
)

// plan is a step and its reason, or what it needs.
type plan struct {
	step step
	// reason of waiting or of setting the file aside, for readers.
	reason string
	// rejoin: it waits until the operator has kicked what the member was and tells it to join anew.
	rejoin bool
	// clusterID and remotes (addresses) of the cluster to join, and the record to join by.
	clusterID string
	remotes   []netip.Addr
	since     time.Time
	// source and backup are what stepRecover makes the new cluster from. archive has the backup when this node has not: an IP address.
	source  v1alpha1.RecoverySource
	backup  string
	archive string
}

// decide says how this member begins, from the API and the file that is there (nil: none). Only the recorded node may create a
// cluster, and only while no cluster ID is recorded, so that there is never a second cluster. An error needs a person.
func decide(file *identity, status v1alpha1.DatabaseStatus, node string, self netip.Addr) (plan, error) {
	switch recovery := status.Recovery; {
	case status.ClusterID == "" && recovery != nil && recovery.Phase == v1alpha1.RecoveryCreating:
		return decideRecovery(file, status, node), nil
	case status.ClusterID == "":
		return decideFirst(file, status, node)
	}
	at := slices.IndexFunc(status.Members, func(m v1alpha1.DatabaseMember) bool { return m.Node == node })
	if at < 0 {
		return plan{reason: fmt.Sprintf("node %s is to hold no member of the database", node)}, nil
	}
	record := status.Members[at]
	why := whyNotStart(file, record, status.ClusterID)
	switch {
	case why == "":
		return plan{step: stepStart}, nil
	case record.ServerID != "":
		return plan{rejoin: true, reason: why + ": the member joins anew once the operator has taken it out of the cluster, " +
			"for which the other members must have a leader"}, nil
	}
	p := decideJoin(status, self)
	if record.Since != nil {
		p.since = record.Since.Time
	}
	if p.step == stepJoin && file != nil {
		p.step, p.reason = stepRejoin, why
	}
	return p, nil
}

// decideRecovery is decide while a recovery makes a new cluster, on the node that is recorded. Everybody else waits for its cluster ID.
func decideRecovery(file *identity, status v1alpha1.DatabaseStatus, node string) plan {
	recovery := status.Recovery
	p := plan{step: stepRecover, since: since(status), source: recovery.Source, backup: recovery.Backup, archive: recovery.BackupAddress}
	switch {
	case status.BootstrapNode != node:
		return plan{reason: fmt.Sprintf("node %s makes the database anew", status.BootstrapNode)}
	case file != nil && file.unusable == nil && file.since.Equal(p.since):
		return plan{step: stepStart}
	case recovery.Source == v1alpha1.RecoverMember && file == nil:
		return plan{reason: "no database file is here to make the database from: recover from another node, or another source, under a new id"}
	case recovery.Source == v1alpha1.RecoverMember && file.unusable != nil:
		return plan{reason: fmt.Sprintf("the database cannot be made from its file: %s: recover from another node, or another source, under a new id",
			file.unusable)}
	}
	return p
}

// since is when the cluster that is recorded was made anew; zero for the first one.
func since(status v1alpha1.DatabaseStatus) time.Time {
	if status.Since == nil {
		return time.Time{}
	}
	return status.Since.Time
}

// superseded says whether a file that began so is of a cluster in whose place there is, or will be, another one.
func superseded(began time.Time, status v1alpha1.DatabaseStatus) bool {
	return began.Before(since(status))
}

// decideFirst is decide before a cluster ID is recorded.
func decideFirst(file *identity, status v1alpha1.DatabaseStatus, node string) (plan, error) {
	switch {
	case status.BootstrapNode == "":
		return plan{reason: "the operator has not recorded yet which node creates the database"}, nil
	case file != nil && status.BootstrapNode != node:
		return plan{reason: fmt.Sprintf("%s is here already, but no cluster ID is recorded and node %q creates the database",
			file.path, status.BootstrapNode)}, nil
	case status.BootstrapNode != node:
		return plan{reason: fmt.Sprintf("node %s creates the database", status.BootstrapNode)}, nil
	case file == nil:
		return plan{step: stepCreate}, nil
	case file.unusable != nil:
		return plan{}, file.unusable
	}
	return plan{step: stepStart}, nil
}

// whyNotStart says why the file is not the recorded member's, or nothing.
func whyNotStart(file *identity, record v1alpha1.DatabaseMember, clusterID string) string {
	switch {
	case file == nil:
		return "no database file is here"
	case file.unusable != nil:
		return file.unusable.Error()
	case file.clusterID != "" && file.clusterID != clusterID:
		return fmt.Sprintf("%s belongs to cluster %s, but the OVNCluster's is %s", file.path, file.clusterID, clusterID)
	case record.Since != nil && file.since.Before(record.Since.Time):
		return fmt.Sprintf("%s is of an earlier membership of this node", file.path)
	case record.ServerID != "" && file.serverID != record.ServerID:
		return fmt.Sprintf("%s is of server %s, but %s is recorded", file.path, file.serverID, record.ServerID)
	}
	return ""
}

// decideJoin joins through the members that are known to serve, or else through all others.
func decideJoin(status v1alpha1.DatabaseStatus, self netip.Addr) plan {
	var joined, others []netip.Addr
	for _, m := range status.Members {
		address, err := netip.ParseAddr(m.Address)
		if err != nil || address == self {
			continue
		}
		others = append(others, address)
		if m.ServerID != "" {
			joined = append(joined, address)
		}
	}
	if len(joined) > 0 {
		others = joined
	}
	if len(others) == 0 {
		return plan{reason: fmt.Sprintf("cluster %s is recorded, but its file is not here and no other member is known to join through: "+
			"put the file back from the node's disk or a backup", status.ClusterID)}
	}
	return plan{step: stepJoin, clusterID: status.ClusterID, remotes: others}
}
