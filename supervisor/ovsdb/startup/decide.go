// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package startup decides how a member of a database starts. Its functions are pure, so that the recovery model in
// controllers/operator can use them, too.
package startup

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Step is the supervisor's action on the database file before it starts the server.
type Step int

// The steps of a Plan.
const (
	// Wait for a change of the record.
	Wait Step = iota
	// Start the server with the existing file.
	Start
	// Create the first file of a new cluster.
	Create
	// Join the recorded cluster with a new file.
	Join
	// Rejoin renames the existing file and joins with a new one.
	Rejoin
	// Recover renames the existing file and creates a new cluster from the source of the Plan.
	Recover
)

// File is the identity that a database file contains.
type File struct {
	Path string
	// ClusterID is empty while a joining member has not learned it.
	ClusterID string
	ServerID  string
	// Since is the record by which the member joined; zero for the member that created the cluster.
	Since time.Time
	// Unusable is the reason why the file cannot serve on this node.
	Unusable error
}

// ErrMoved is wrapped in Unusable of an intact file that this node's member wrote before the node's address changed. A Raft
// member cannot change its address, but a recovery can read the file.
var ErrMoved = errors.New("a member cannot change its address")

// Moved reports whether the node's new address is the only reason why the file cannot serve.
func (f *File) Moved() bool { return f != nil && errors.Is(f.Unusable, ErrMoved) }

// Plan is a step, with its reason or its arguments.
type Plan struct {
	Step Step
	// Reason of Wait and Rejoin, for users.
	Reason string
	// Rejoin is set with Wait: the member waits until the operator has removed its server from the cluster and recorded that it
	// joins again.
	Rejoin bool
	// ClusterID and Remotes (addresses) of the cluster to join; Since is the record to join by.
	ClusterID string
	Remotes   []netip.Addr
	Since     time.Time
	// Source and Backup are the source of the new cluster for Recover. Archive is the IP address of the server that has the backup,
	// if this node does not have it.
	Source  v1alpha1.RecoverySource
	Backup  string
	Archive string
}

// Decide returns how a member of a database starts, from the status and the existing file (nil: none). Only the recorded node
// may create a cluster, and only while no cluster ID is recorded, so that a second cluster is impossible. An error needs an
// administrator.
func Decide(file *File, status v1alpha1.DatabaseStatus, node string, self netip.Addr) (Plan, error) {
	switch recovery := status.Recovery; {
	case status.ClusterID == "" && recovery != nil && recovery.Phase == v1alpha1.RecoveryCreating:
		return decideRecovery(file, status, node), nil
	case status.ClusterID == "":
		return decideFirst(file, status, node)
	}
	at := slices.IndexFunc(status.Members, func(m v1alpha1.DatabaseMember) bool { return m.Node == node })
	if at < 0 {
		return Plan{Reason: fmt.Sprintf("node %s is to hold no member of the database", node)}, nil
	}
	record := status.Members[at]
	why := whyNotStart(file, record, status.ClusterID)
	switch {
	case why == "":
		return Plan{Step: Start}, nil
	case record.ServerID != "":
		reason := why + ": the member joins again once the operator has removed it from the cluster, for which the other members must have a leader"
		if file.Moved() {
			reason += fmt.Sprintf("; if they have none, set spec.central.recovery with source Member and node %s, which recovers from this file", node)
		}
		return Plan{Rejoin: true, Reason: reason}, nil
	}
	p := decideJoin(status, self)
	if record.Since != nil {
		p.Since = record.Since.Time
	}
	if p.Step == Join && file != nil {
		p.Step, p.Reason = Rejoin, why
	}
	return p, nil
}

// recoverElsewhere is the advice for a recovery whose node has no usable file.
const recoverElsewhere = "set spec.central.recovery.node to another node, or choose another source, under a new spec.central.recovery.id"

// decideRecovery is Decide while a recovery creates a new cluster on the recorded node. All other nodes wait for its cluster ID.
func decideRecovery(file *File, status v1alpha1.DatabaseStatus, node string) Plan {
	recovery := status.Recovery
	p := Plan{Step: Recover, Since: since(status), Source: recovery.Source, Backup: recovery.Backup, Archive: recovery.BackupAddress}
	switch {
	case status.BootstrapNode != node:
		return Plan{Reason: fmt.Sprintf("node %s re-creates the database", status.BootstrapNode)}
	case file != nil && file.Unusable == nil && file.Since.Equal(p.Since):
		return Plan{Step: Start}
	case recovery.Source == v1alpha1.RecoverMember && file == nil:
		return Plan{Reason: "no database file is here to make the database from: " + recoverElsewhere}
	case recovery.Source == v1alpha1.RecoverMember && file.Unusable != nil && !file.Moved():
		return Plan{Reason: fmt.Sprintf("the database cannot be made from its file: %s: %s", file.Unusable, recoverElsewhere)}
	}
	return p
}

// since returns the time at which a recovery created the recorded cluster; zero for the first cluster.
func since(status v1alpha1.DatabaseStatus) time.Time {
	if status.Since == nil {
		return time.Time{}
	}
	return status.Since.Time
}

// Superseded reports whether a file of this date belongs to a cluster that a recovery has replaced or is about to replace.
func Superseded(began time.Time, status v1alpha1.DatabaseStatus) bool {
	return began.Before(since(status))
}

// decideFirst is Decide before a cluster ID is recorded.
func decideFirst(file *File, status v1alpha1.DatabaseStatus, node string) (Plan, error) {
	switch {
	case status.BootstrapNode == "":
		return Plan{Reason: "the operator has not recorded yet which node creates the database"}, nil
	case file != nil && status.BootstrapNode != node:
		return Plan{Reason: fmt.Sprintf("%s is here already, but no cluster ID is recorded and node %q creates the database",
			file.Path, status.BootstrapNode)}, nil
	case status.BootstrapNode != node:
		return Plan{Reason: fmt.Sprintf("node %s creates the database", status.BootstrapNode)}, nil
	case file == nil:
		return Plan{Step: Create}, nil
	case file.Moved(): // a recovery is refused, because no cluster ID is recorded
		return Plan{}, fmt.Errorf("%w: give node %s its former address, or move the file away: the member then creates an empty database",
			file.Unusable, node)
	case file.Unusable != nil:
		return Plan{}, file.Unusable
	}
	return Plan{Step: Start}, nil
}

// whyNotStart returns why the file is not the recorded member's; empty if it is.
func whyNotStart(file *File, record v1alpha1.DatabaseMember, clusterID string) string {
	switch {
	case file == nil:
		return "no database file is here"
	case file.Unusable != nil:
		return file.Unusable.Error()
	case file.ClusterID != "" && file.ClusterID != clusterID:
		return fmt.Sprintf("%s belongs to cluster %s, but the OVNCluster's is %s", file.Path, file.ClusterID, clusterID)
	case record.Since != nil && file.Since.Before(record.Since.Time):
		return fmt.Sprintf("%s is of an earlier membership of this node", file.Path)
	case record.ServerID != "" && file.ServerID != record.ServerID:
		return fmt.Sprintf("%s is of server %s, but %s is recorded", file.Path, file.ServerID, record.ServerID)
	}
	return ""
}

// decideJoin joins through the members that have joined, or through all other members if none has.
func decideJoin(status v1alpha1.DatabaseStatus, self netip.Addr) Plan {
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
		return Plan{Reason: fmt.Sprintf("cluster %s is recorded, but its file is not here and no other member is known to join through: "+
			"put the file back from the node's disk or a backup", status.ClusterID)}
	}
	return Plan{Step: Join, ClusterID: status.ClusterID, Remotes: others}
}
